"""Files left by runs, audits and attacks on a user's own data: only the owner can read them, and figures are coarse."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from bench.cli.main import app
from bench.core.config import Preset
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.types import AuditKind, PrivateData, Released
from bench.evaluation.attack.attack import attack_student
from bench.evaluation.attack.workplace import AttackOptions, Workplace
from bench.evaluation.audit.audit import audit_student
from bench.evaluation.audit.options import AuditOptions
from bench.experiments.noise_salt import salt_of
from bench.experiments.run import record_failure, run_cell
from bench.results.provenance import Clock
from bench.results.record import Provenance, Record
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.data import image_folder
from helpers.one_teacher import OneTeacher, one_cell

RESULTS = ("records", "released", "attacks", "audits", "logs")


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(run_dir: RunDir) -> dict[str, int]:
    return {
        str(path.relative_to(run_dir.path)): path.stat().st_mode & 0o777
        for name in RESULTS
        for path in (run_dir.path / name, *(run_dir.path / name).rglob("*"))
    }


def is_coarse(provenance: Provenance) -> bool:
    memory = provenance.peak_memory_mib
    assert memory is not None
    return (
        len(provenance.started) == len("2026-01-01")
        and provenance.wall_seconds % 60 == 0
        and memory.is_integer()
        and int(memory).bit_count() == 1
        and {"started", "wall_seconds", "peak_memory_mib"} <= provenance.unread.keys()
    )


class Baseline(OneTeacher):
    """Trains on the private labels, without any noise."""

    private = False


@pytest.mark.parametrize("method", [OneTeacher, Baseline])
def test_results_on_data_of_ones_own_are_the_owners_alone(method: type[OneTeacher], tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "mine")
    with one_cell(tmp_path / "runs", dataset=folder, method=method) as (cell, run_dir, source):
        record = run_cell(cell, run_dir, source, Progress())
        assert record.failure is None, record.failure
        options = AuditOptions(canaries=4, guesses=2, draws=0, power=False, kind=AuditKind.ONE_RUN)
        audit = audit_student(record, options, run_dir, source, Progress(), dataset=folder)
        with ExitStack() as stack:
            place = Workplace(run_dir, source, Progress(), AttackOptions(Preset.TINY), folder=folder, stack=stack)
            attack = attack_student(record, "loss", place)
        lost = record_failure(cell, run_dir, BenchError("its process died"))
    assert audit.failure is None, audit.failure
    assert attack.failure is None, attack.failure
    found = modes(run_dir)
    assert len([name for name in found if name.startswith("attacks/")]) == 2, "a record and a picture"
    assert len([name for name in found if name.startswith("released/")]) == 2
    folders = {name for name in found if name in RESULTS}
    assert {found[name] for name in folders} == {0o700}
    assert {found[name] for name in found.keys() - folders} == {0o600}
    assert all(is_coarse(one.provenance) for one in (record, audit, attack, lost))
    assert os.umask(0o022) == 0o022, "the process's mode is as before"


@pytest.mark.parametrize("command", ["audit", "attack", "run"])
def test_every_command_deletes_salts_of_cells_that_are_done(command: str, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "mine")
    out = ["-o", str(tmp_path / "runs"), "-q", "--workers", "1"]
    options = {
        "audit": [
            *("--data", folder, "--kind", "one-run", "--canaries", "4", "--guesses", "2", "--draws", "0"),
            *("--no-power", *out),
        ],
        "attack": ["--data", folder, "-a", "robustness", "-p", "tiny", *out],
        "run": ["-m", "one-teacher", "-d", folder, "-p", "tiny", "-e", "1", *out],
    }
    with one_cell(tmp_path / "runs", dataset=folder) as (cell, run_dir, source):
        salt_of(cell, run_dir)
        left = (run_dir.noise_path / cell.key).read_bytes()
        record = run_cell(cell, run_dir, source, Progress())
        assert record.failure is None, record.failure
        (run_dir.noise_path / cell.key).write_bytes(left)
        (run_dir.cache_path / f"{cell.key}.noise").write_bytes(b"of an earlier version")
        done = CliRunner().invoke(app, [command, *options[command]])
    assert done.exit_code == 0, done.output
    assert [*run_dir.noise_path.iterdir(), *run_dir.path.glob("**/*.noise")] == []


def test_results_on_a_public_benchmark_are_for_everyone_and_exact(tmp_path: Path) -> None:
    with one_cell(tmp_path) as (cell, run_dir, source):
        record: Record = run_cell(cell, run_dir, source, Progress())
    found = modes(run_dir)
    assert {mode for name, mode in found.items() if name in RESULTS} == {0o755}
    assert {mode for name, mode in found.items() if name not in RESULTS} == {0o644}
    assert not is_coarse(record.provenance)


def test_how_much_memory_private_data_took_is_told_to_a_power_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for peak, told in ((700.3, 1024.0), (1024.0, 1024.0), (1024.1, 2048.0)):
        usage = SimpleNamespace(ru_maxrss=peak * (1 << (20 if sys.platform == "darwin" else 10)))
        monkeypatch.setattr("resource.getrusage", lambda who, usage=usage: usage)
        assert Clock().stop(private=True).peak_memory_mib == told
        assert Clock().stop().peak_memory_mib == peak


@pytest.mark.parametrize("place", ["runs/cache", "root/folders"])
def test_what_others_can_write_is_not_taken_from(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "root"))
    command = ["run", "-m", "nonprivate", "-d", image_folder(tmp_path / "data"), "-p", "tiny", "-q"]
    command += ["-o", str(tmp_path / "runs")]
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place).chmod(0o777)
    done = bench(*command)
    assert (done.returncode, f"{tmp_path / place} can be written by other users" in done.stderr) == (2, True), done
    (tmp_path / place).chmod(0o700)
    assert bench(*command).returncode == 0


class Chained(OneTeacher):
    """Fails without a message, after an error that quotes a record."""

    def train_student(self, private: PrivateData, *arguments: object) -> Released:
        try:
            raise ValueError(f"the label is {private.labels[0]}, in the file patient-7.png")
        except ValueError as error:
            raise AssertionError from error


def test_a_traceback_stays_in_the_cache_even_if_the_last_error_has_no_message(tmp_path: Path) -> None:
    with one_cell(tmp_path / "runs", dataset=image_folder(tmp_path / "mine"), method=Chained) as (
        cell,
        run_dir,
        source,
    ):
        failure = run_cell(cell, run_dir, source, Progress()).failure
    assert failure is not None
    assert failure.reason == "AssertionError; the message may reveal private records and stays in the log"
    assert failure.log == f"cache/{cell.key}.log"
    log = run_dir.path / failure.log
    assert "patient-7.png" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert list(run_dir.logs_path.iterdir()) == []
