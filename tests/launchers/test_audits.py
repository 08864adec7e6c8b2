"""Pair audits in many processes: each is made once, whoever launches them, and nothing is left behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.results.attack_record import AuditRecord
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.launches import nothing_is_left_over

# A few seconds for each; every process of an audit trains.
OPTIONS = ["--minutes", "0.05", "--draws", "0", "--no-power", "--workers", "1"]


@pytest.fixture(scope="module")
def students(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("students") / "runs"
    done = bench("run", "-m", "dgd", "-d", "digits", "-e", "1,10", "-p", "tiny", "-o", out, "--workers", "1", "-q")
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def out(students: Path, tmp_path: Path) -> Iterator[Path]:
    """Two students of a run directory, of which each test has a copy."""
    copy = tmp_path / "runs"
    shutil.copytree(students, copy)
    yield copy
    nothing_is_left_over(copy)


def audits(out: Path) -> dict[str, AuditRecord]:
    return {audit.student: audit for audit in RunDir(out).read_audits()[0]}


def test_audits_join_the_directory_and_leave_out_what_another_process_makes(out: Path) -> None:
    run_dir = RunDir(out)
    first, second = (record.key for record in run_dir.read_records().found)
    assert bench("audit", first, "-o", out, *OPTIONS, "-q").returncode in (0, 1)
    claim = audits(out)[first].key.replace(first, second)
    with run_dir.joined():
        held = run_dir.claim(claim)
        assert held is not None
        with held:
            done = bench("audit", "-o", out, *OPTIONS, "--json")
        assert f"left out: {claim}, which another process makes" in done.stderr
        assert set(audits(out)) == {first}
        assert bench("audit", "-o", out, *OPTIONS, "-q").returncode in (0, 1)
        assert set(audits(out)) == {first, second}
        canaries = bench("audit", "-o", out, "--kind", "one-run", "-q")
        assert "in use by a run or pair audits" in canaries.stderr
