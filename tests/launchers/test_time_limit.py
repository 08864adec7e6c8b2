"""What the signal before a job's time limit does to the cell that runs: submitit's handler, with a false scontrol."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from submitit.core.utils import DelayedSubmission, JobPaths
from submitit.slurm.slurm import SlurmJobEnvironment

from bench.core.config import Grid, Preset
from bench.core.options import ONE_CPU
from bench.core.progress import Progress
from bench.experiments.data_source import DataSource
from bench.experiments.plan import expand
from bench.launchers.manifest import Options, begin
from bench.launchers.schedule import units_of
from bench.launchers.slurm_job import Job
from bench.results.record import Record
from bench.results.run_dir import RunDir
from helpers.commands import registries_restored
from helpers.launches import METHOD, nothing_is_left_over, until

GRID = Grid((METHOD,), ("digits",), (10.0,), preset=Preset.TINY)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    numbers = (signal.SIGUSR2, signal.SIGTERM, signal.SIGCONT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


STARTED = "log"  # the file that a cell of the grid method writes at its start


def records(
    folder: Path, monkeypatch: pytest.MonkeyPatch, scontrol: str, requeues: int, grid: Grid = GRID, made: str = STARTED
) -> list[Record]:
    """Run a cell in a job, have its time end once a file `made` is there, with `requeues` left; return the records."""
    commands = folder / "bin"
    commands.mkdir()
    (commands / "scontrol").write_text(f"#!/bin/sh\necho $* >> {folder}/asked\n{scontrol}\n")
    (commands / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("GRID_LOG", str(folder / STARTED))
    monkeypatch.setenv("GRID_SECONDS", "100")
    run_dir = RunDir(folder / "runs").create()
    with registries_restored():
        units = units_of(expand(grid, DataSource(Progress()).describe))
        launch = begin(run_dir, "slurm", units, Options(resources=ONE_CPU), [METHOD])
        job = Job(str(launch.folder), (units[0].key,), minutes=1)
        delayed = DelayedSubmission(job)
        delayed.set_timeout(1, requeues)
        SlurmJobEnvironment()._handle_signals(JobPaths(launch.folder, "7"), delayed)

        def end_the_time() -> None:
            until(lambda: any(folder.glob(made)), 300)
            os.kill(os.getpid(), signal.SIGUSR2)

        watcher = threading.Thread(target=end_the_time)
        watcher.start()
        job()
        watcher.join()
    nothing_is_left_over(run_dir.path)
    return run_dir.read_records().found


def test_a_time_limit_is_no_failure_of_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert records(tmp_path, monkeypatch, "exit 0", requeues=1) == []
    assert (tmp_path / "asked").read_text() == "requeue 7\n"


def test_a_slurm_that_does_not_requeue_leaves_the_cell_to_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert records(tmp_path, monkeypatch, "exit 1", requeues=1) == []


def test_a_cell_that_is_out_of_time_too_often_fails_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = records(tmp_path, monkeypatch, "exit 0", requeues=0)
    assert record.failure is not None
    assert "reached its time limit too often" in record.failure.reason
    assert "--time" in record.failure.reason
    assert not (tmp_path / "asked").exists()


def test_a_training_is_saved_before_a_short_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = replace(GRID, methods=("dp-sgd",), overrides=("epochs=100000",))
    saved = "runs/cache/checkpoint-student-*"
    assert records(tmp_path, monkeypatch, "exit 0", 1, grid, made=saved) == []
    assert len(list(tmp_path.glob(saved))) == 1
