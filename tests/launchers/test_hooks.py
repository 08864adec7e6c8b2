"""The user's commands per record, on a failure and at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.core.config import Grid, Preset
from bench.core.errors import BenchError
from bench.core.options import ONE_CPU
from bench.core.progress import Progress
from bench.launchers import grid, hooks
from bench.launchers.hooks import at_end, hooked
from bench.launchers.settings import Cluster
from bench.launchers.worker import Outcome
from bench.results.record import Failure, Record, Status
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.paths import GRID_METHOD
from helpers.records import record


class Said(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def failed(key: str) -> Record:
    return record(key=key).model_copy(update={"status": Status.FAILED, "failure": Failure(kind="lost", reason="why")})


def test_commands_are_told_what_they_are_about(tmp_path: Path) -> None:
    log = tmp_path / "log"
    settings = Cluster(
        on_record=f"echo record $BENCH_KEY $BENCH_STATUS $(basename $BENCH_RECORD) >> {log}",
        on_failure=f"echo failure $BENCH_KEY >> {log}",
        on_end=f"echo end $BENCH_DONE $BENCH_FAILED $BENCH_LEFT $(basename $BENCH_OUT) >> {log}",
    )
    run_dir, told = RunDir(tmp_path / "runs").create(), list[str]()
    then = hooked(lambda made: told.append(made.key), settings, run_dir, Progress())
    results = [record(key="a"), failed("b$(touch x)")]  # a name is never executed
    for made in results:
        then(made)
    at_end(Outcome(results, left=3), settings, run_dir, Progress())
    assert told == ["a", "b$(touch x)"]
    assert log.read_text().splitlines() == [
        "record a done a.json", "record b$(touch x) failed b$(touch", "failure b$(touch x)", "end 1 1 3 runs",
    ]  # fmt: skip


def test_a_command_that_fails_or_hangs_is_told_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "LONGEST_SECONDS", 0.2)
    said = Said()
    settings = Cluster(on_record="echo no such tracker; exit 3", on_end="sleep 5")
    run_dir = RunDir(tmp_path / "runs").create()
    hooked(lambda made: None, settings, run_dir, said)(record(key="a"))
    at_end(Outcome(), settings, run_dir, said)
    assert said.lines[0] == "on_record ended with status 3: no such tracker"
    assert said.lines[1].startswith("on_end did not finish: ")
    assert "timed out" in said.lines[1]


def test_a_command_may_leave_something_in_the_background(tmp_path: Path) -> None:
    begin = time.monotonic()
    at_end(Outcome(), Cluster(on_end="sleep 30 & echo started"), RunDir(tmp_path).create(), Said())
    assert time.monotonic() - begin < 20


def test_the_command_at_the_end_runs_after_an_error_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(*_: object, done: Callable[[Record], None], **__: object) -> Outcome:
        done(record(key="a"))
        raise BenchError("the workers keep dying.")

    monkeypatch.setattr(grid, "execute", execute)
    asked = Grid(("nonprivate",), ("digits",), (1.0,), (0, 1, 2), Preset.TINY)
    settings = Cluster(on_end=f"echo $BENCH_DONE $BENCH_FAILED $BENCH_LEFT > {tmp_path}/log")
    with pytest.raises(BenchError, match="keep dying"):
        grid.run_grid(asked, tmp_path / "runs", Progress(), settings, ONE_CPU)
    assert (tmp_path / "log").read_text() == "1 0 2\n"


def test_a_run_runs_them(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"on_record: echo $BENCH_STATUS >> {tmp_path}/log\non_end: echo end >> {tmp_path}/log\n")
    words = ["run", "-m", GRID_METHOD, "-d", "digits", "-e", "1", "-p", "tiny", "--device", "cpu", "--cluster", cluster]
    ran = bench(*words, "-o", tmp_path / "runs")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "log").read_text() == "done\nend\n"
