"""The least that must hold on a real Slurm, in about a minute: a grid, a time limit, a requeue and a kill."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bench.results.run_dir import RunDir
from helpers.launches import finish, nothing_is_left_over, until
from helpers.slurm_jobs import FOUR, SLURM, both_made, log, start
from helpers.slurm_node import slurm_node, why_not

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def starts(out: Path) -> int:
    return sum(line.startswith("start") for line in log(out))


def test_a_grid_with_a_time_limit_a_requeue_and_a_kill(tmp_path: Path) -> None:
    grid, limit = tmp_path / "grid" / "runs", tmp_path / "limit" / "runs"
    for out in (grid, limit):
        out.parent.mkdir()
        (out.parent / "log.hold").touch()  # no cell ends
    with slurm_node(tmp_path / "node", cpus=5) as node:
        limited = start(limit, *SLURM, "--eps", "1", "--seeds", "0", "--time", "1")
        all_four = start(grid, *SLURM, *FOUR)
        until(lambda: both_made(grid))  # and the others wait for these two
        killed, put_back = (owner for owner in RunDir(grid).claims().values() if "title" in owner.about)
        os.kill(killed.pid, signal.SIGKILL)
        node.run("scontrol", "requeue", str(put_back.about["job"]))
        until(lambda: starts(grid) > 2)
        (grid.parent / "log.hold").unlink()
        said = finish(all_four)
        until(lambda: starts(limit) >= 2)  # the limit of a minute has put it back
        (limit.parent / "log.hold").unlink()
        assert "submitted again" not in finish(limited)
        assert node.queue() == {}
    assert "submitted again" in said
    assert starts(grid) == 6  # 4, and one more for each that was hit
    for out, cells in ((grid, 4), (limit, 1)):
        assert [record.status for record in RunDir(out).read_records().found] == ["done"] * cells
        assert not [line for line in log(out) if line.startswith("OVERLAP")]
        nothing_is_left_over(out)
