"""Jobs of a real Slurm that run out of time or memory come back with more of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.launchers.attempts import Attempt, attempts_of
from bench.results.run_dir import RunDir
from helpers.launches import finish, nothing_is_left_over, until
from helpers.slurm_jobs import SLURM, start
from helpers.slurm_node import HOST, SlurmNode, slurm_node, why_not

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(why_not()), reason=why_not())]

# No cgroup: slurmd itself looks every second and kills what is over its memory.
WATCHED = """JobAcctGatherType=jobacct_gather/linux
JobAcctGatherParams=OverMemoryKill
JobAcctGatherFrequency=task=1
"""
ONE = [*SLURM, "--eps", "1", "--seeds", "0"]


@pytest.fixture(scope="module", autouse=True)
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNode]:
    with slurm_node(tmp_path_factory.mktemp("slurm"), cpus=4, memory=8000, more=WATCHED) as node:
        yield node


def tried(out: Path) -> list[Attempt]:
    (launch,) = out.glob("launches/*")
    (record,) = RunDir(out).read_records().found
    return attempts_of(launch, record.key)


def test_more_memory_after_a_job_that_had_too_little(tmp_path: Path) -> None:
    out = tmp_path / "grid" / "runs"
    said = finish(start(out, *ONE, "--memory", "1", "--max-memory", "3", memory=1200, seconds=6))
    assert "out of memory): submitted again with 2 GB" in said
    first, second = tried(out)
    assert (first.reason, first.node, second.reason) == ("out of memory", HOST, "done")
    assert first.job != second.job
    assert second.peak_memory_mib
    assert second.peak_memory_mib > 1200
    (record,) = RunDir(out).read_records().found
    assert record.status == "done"
    nothing_is_left_over(out)


def test_all_the_memory_that_is_allowed_was_too_little(tmp_path: Path) -> None:
    out = tmp_path / "grid" / "runs"
    said = finish(start(out, *ONE, "--memory", "1", "--max-memory", "1", memory=1200, seconds=6), status=1)
    assert "out of memory): given up" in said
    (record,) = RunDir(out).read_records().found
    assert record.failure is not None
    assert f"on {HOST}: out of memory. `bench logs {record.key}`" in record.failure.reason
    assert len(tried(out)) == 1


def test_more_time_after_a_job_that_had_too_little(tmp_path: Path) -> None:
    out = tmp_path / "grid" / "runs"
    out.parent.mkdir()
    hold = out.parent / "log.hold"
    hold.touch()  # no cell ends
    process = start(out, *ONE, "--time", "1", "--max-time", "9")
    until(lambda: bool(list(out.glob("launches/*/attempts/*.2.json"))))
    hold.unlink()
    assert f"on {HOST}: out of time): submitted again with 2 min" in finish(process)
    first, *_, last = tried(out)
    assert (first.reason, first.node, last.reason) == ("out of time", HOST, "done")
    nothing_is_left_over(out)
