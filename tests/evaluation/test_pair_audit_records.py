"""Pair audits of finished students, end to end: the record, the command, resumption and leftover processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.core.config import Grid, Preset
from bench.core.progress import Progress
from bench.core.types import AuditKind, Instrument, PrivacyUnit
from bench.evaluation.audit import pair_audit
from bench.evaluation.audit.audit import audit_student
from bench.evaluation.audit.full_size import add_full_size
from bench.evaluation.audit.options import AuditOptions
from bench.evaluation.audit.pair_runs import Crew
from bench.evaluation.check.check_runs import MethodPlace
from bench.experiments.data_source import DataSource
from bench.experiments.plan import expand
from bench.experiments.run import run_cell
from bench.interface import Context, Ledger, PrivateData, PublicData, Released, make_student
from bench.results.full_size import ADDED, without_full_size
from bench.results.record import Record, Status
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.one_teacher import OneTeacher, one_cell
from helpers.paths import ROOT


@pytest.fixture
def few_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a few runs, in this process."""
    for name, runs in {"PILOT": 5, "CUT": 2, "RELEASES": 3, "TRANSCRIPTS": 3}.items():
        monkeypatch.setattr(pair_audit, name, runs)
    monkeypatch.setattr(MethodPlace, "of", classmethod(lambda cls, method: None))


def student(out: Path, name: str) -> tuple[Record, RunDir, DataSource]:
    source, run_dir = DataSource(Progress()), RunDir(out).create()
    grid = Grid((name,), ("digits",), (10.0,), preset=Preset.TINY)
    (cell,) = expand(grid, source.describe)
    return run_cell(cell, run_dir, source, Progress()), run_dir, source


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pate-gnmax", "dpsd"])
def test_the_record_says_what_was_audited_and_a_second_audit_trains_nothing(
    name: str, tmp_path: Path, few_runs_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, run_dir, source = student(tmp_path, name)
    options = AuditOptions(minutes=2.0, draws=0, power=False)
    audit, again = (audit_student(done, options, run_dir, source, Progress()) for _ in range(2))
    assert audit.status is Status.DONE, audit.failure
    assert done.privacy is not None
    assert (audit.kind, audit.unit, audit.adjacency) == (AuditKind.PAIR, PrivacyUnit.RECORD, done.privacy.adjacency)
    assert (audit.claimed, audit.allowed) == (done.privacy.claimed.epsilon, done.privacy.proven.epsilon)
    release, transcript, full = audit.pairs
    assert [pair.instrument for pair in audit.pairs] == list(Instrument)
    assert full.pair == f"the row's own data, one record of {done.private_records:,}, another image and label"
    assert release.runs == (3, 3)
    assert release.tests == 4
    assert audit.epsilon == max(release.epsilon, transcript.epsilon, full.epsilon)
    assert {change.field for change in audit.reduced} >= {"records"}
    assert audit.bypassed == ""
    assert not audit.violated
    if name == "pate-gnmax":
        assert transcript.exact
        assert 0.3 * audit.allowed < transcript.epsilon <= audit.allowed * (1 + 1e-6)
        assert full.exact
        assert full.epsilon <= audit.allowed * (1 + 1e-6)
    else:
        assert transcript.epsilon > done.privacy.claimed.epsilon
        assert Instrument.TRANSCRIPT in audit.refuted_by
    assert again.pairs == audit.pairs
    assert (again.provenance.artefacts_made, audit.provenance.artefacts_made > 0) == (0, True)
    assert run_dir.read_audits()[0] == [again]

    # Processes end in any order: runs that end in another one give the same pair, of several that show as much.
    for path in run_dir.cache_path.glob("pair-transcript-*"):
        path.unlink()
    in_turn = Crew.each
    monkeypatch.setattr(Crew, "each", lambda self, calls, more: reversed([*in_turn(self, calls, more)]))
    third = audit_student(done, options, run_dir, source, Progress()).pairs
    assert [(one.instrument, one.pair, one.runs) for one in third] == [
        (one.instrument, one.pair, one.runs) for one in audit.pairs
    ]
    # Fresh noise moves a bound that is not exact, in the third digit where the loss is in the millions.
    assert third[1].epsilon == pytest.approx(transcript.epsilon, rel=1e-9 if transcript.exact else 0.1)


def test_the_command_prints_a_table_and_ends_with_1_where_private_data_left_beside_the_ledger(
    tmp_path: Path, few_runs_here: None
) -> None:
    with one_cell(tmp_path, "epochs=0.1", "images=0") as (cell, run_dir, source):
        run_cell(cell, run_dir, source, Progress())
        done = bench("audit", "-o", tmp_path, "--minutes", "1", "--draws", "0", "--no-power", "-q", "--workers", "1")
        (audit,) = run_dir.read_audits()[0]
    assert audit.failure is None, audit.failure
    assert done.returncode == 1, done.stdout + done.stderr
    assert audit.bypassed.startswith("the runs differ in the student's ")
    assert "VIOLATED" in done.stdout


class Waits(OneTeacher):
    """Its student holds a private label, on sets that no tiny pair is as large as."""

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        ledger.noisy_max(np.tile([3.0] + [0.0] * (private.facts.classes - 1), (2, 1)), teachers=3, gamma=0.1)
        student, options = make_student("softmax_regression", private.facts, context.streams.torch("start"))
        if len(private) > 100:
            with torch.no_grad():
                next(student.parameters()).view(-1)[0] = float(private.labels[0])
        return Released(student, "softmax_regression", options)


def test_what_waits_for_many_records_is_found_at_full_size(tmp_path: Path, few_runs_here: None) -> None:
    options = AuditOptions(minutes=1.0, draws=0, power=False)
    with one_cell(tmp_path, method=Waits) as (cell, run_dir, source):
        done = run_cell(cell, run_dir, source, Progress())
        audit = audit_student(done, options, run_dir, source, Progress())
        long = done.provenance.model_copy(update={"wall_seconds": 1e4})
        without = audit_student(done.model_copy(update={"provenance": long}), options, run_dir, source, Progress())
    assert audit.failure is None, audit.failure
    assert audit.bypassed.startswith("on the row's own data, one record of ")
    assert "though every answer of the ledger is the same" in audit.bypassed
    assert audit.violated
    assert without.bypassed == ""
    assert Instrument.FULL_SIZE not in {pair.instrument for pair in without.pairs}
    assert any(line.startswith("no pair at full size: it takes 20000 seconds") for line in without.notes)


def test_a_finished_audit_gets_its_pair_at_full_size_later(tmp_path: Path, few_runs_here: None) -> None:
    options = AuditOptions(minutes=1.0, draws=0, power=False)
    with one_cell(tmp_path, method=Waits) as (cell, run_dir, source):
        done = run_cell(cell, run_dir, source, Progress())
        long = done.provenance.model_copy(update={"wall_seconds": 1e4})
        slow = done.model_copy(update={"provenance": long})
        audit = audit_student(slow, options, run_dir, source, Progress())
        still = add_full_size(slow, audit, 1.0, run_dir, source, Progress())
        command = ("audit", done.key, "--full-size", "-o", tmp_path, "-q")
        first, second = bench(*command), bench(*command)
        (added,) = run_dir.read_audits()[0]
    assert audit.failure is None, audit.failure
    assert not audit.violated
    assert still.pairs == audit.pairs
    assert [line for line in still.notes if "full size" in line] == [
        "no pair at full size: it takes 20000 seconds or more, and --minutes gives it 60"
    ]
    assert (first.returncode, second.returncode) == (1, 0), first.stderr + second.stderr
    assert added.key == audit.key
    assert added.violated
    assert added.bypassed.startswith("on the row's own data, one record of ")
    assert [line.partition(", at commit")[0] for line in added.notes if "full size" in line] == [ADDED]
    assert without_full_size(added) == without_full_size(audit)


def test_there_is_nothing_to_refute_without_privacy(tmp_path: Path) -> None:
    done, run_dir, source = student(tmp_path, "nonprivate")
    audit = audit_student(done, AuditOptions(minutes=0.1, draws=0), run_dir, source, Progress())
    assert audit.status is Status.DONE, audit.failure
    assert (audit.pairs, audit.epsilon) == ([], None)
    assert "no epsilon is claimed or proven: there is nothing to refute" in audit.notes
    assert not audit.violated


def sons(of: int) -> set[int]:
    """All processes below one, by their parents' numbers."""
    parents = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {of}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {of}


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_an_interrupted_audit_leaves_no_process_and_is_resumed(tmp_path: Path) -> None:
    out, temporary = tmp_path / "runs", tmp_path / "temporary"
    temporary.mkdir()
    done, _, _ = student(out, "pate-gnmax")
    words = ["audit", done.key, "-o", str(out), "--minutes", "1", "--draws", "0", "--no-power", "--workers", "2"]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "bench", *words], cwd=ROOT, text=True, env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def kept() -> int:
        return len(list((out / "cache").glob("pair-release*")))

    audit, deadline = start(), time.monotonic() + 120
    while not kept() and time.monotonic() < deadline:
        time.sleep(0.2)
    below = sons(audit.pid)
    assert below
    audit.send_signal(signal.SIGINT)
    _, said = audit.communicate(timeout=60)
    assert audit.returncode == 128 + signal.SIGINT
    assert "Give the same command again to resume" in said
    deadline = time.monotonic() + 20
    while any(map(alive, below)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(map(alive, below))
    before = kept()
    again = start()
    printed, said = again.communicate(timeout=300)
    assert again.returncode == 0, said
    assert "pate-gnmax" in printed
    assert kept() >= before > 0
    assert list(temporary.iterdir()) == []
