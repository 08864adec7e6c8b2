"""The time that a plan tells is that of the schedule which its launcher then makes, simulated job by job."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.core.config import Reuse
from bench.core.options import ONE_CPU
from bench.core.progress import Progress
from bench.launchers import dry_run, executors, slurm
from bench.launchers.dry_run import START_SECONDS, forecast, jobs_of
from bench.launchers.executors import Executor, run_by_executor
from bench.launchers.manifest import Launch, Options, begin
from bench.launchers.runtime_estimate import RunningTime
from bench.launchers.schedule import Order, Unit, units_of
from bench.launchers.settings import Cluster
from bench.launchers.slurm_cli import Limits
from bench.launchers.slurm_jobs import Jobs
from bench.results.run_dir import RunDir
from helpers.cells import METHOD, cells
from helpers.records import record


@pytest.fixture(params=range(3))
def plan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Unit], dict[str, float]]:
    """Twenty-eight cells of four seeds, each of which has a maker, and their seconds, drawn anew each time."""
    units, draw = units_of(cells(7, 4)), random.Random(request.param)
    seconds = {unit.key: draw.uniform(1, 300) for unit in units}
    times = {key: RunningTime(value, "") for key, value in seconds.items()}
    monkeypatch.setattr(dry_run, "running_times", lambda units, run_dir: times)
    return units, seconds


def told(units: Sequence[Unit], settings: Cluster) -> dict[str, Any]:
    return forecast([unit.cell for unit in units], units, RunDir(Path("none")), settings, Reuse.DONE).totals


@dataclass
class Clock:
    """A time that passes only where somebody sleeps."""

    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def test_inline_and_local_processes(plan: tuple[list[Unit], dict[str, float]]) -> None:
    units, seconds = plan
    assert told(units, Cluster(jobs=8))["seconds"] == pytest.approx(sum(seconds.values()))
    for workers in (1, 3, 8):
        free, left, done = [0.0] * workers, list(units), dict[str, float]()
        while left:  # whoever is free first takes the first cell that waits for nothing
            now = min(free)
            ready = [unit for unit in left if all(done.get(key, float("inf")) <= now for key in unit.after)]
            if not ready:
                free[free.index(now)] = min(end for end in (*done.values(), *free) if end > now)
                continue
            left.remove(ready[0])
            done[ready[0].key] = free[free.index(now)] = now + seconds[ready[0].key]
        expected = START_SECONDS + max(done.values())
        assert told(units, Cluster(launcher="local", jobs=workers))["seconds"] == pytest.approx(expected)


@dataclass
class FakeCluster:
    """A Slurm of so many cores that remembers what is submitted, and computes when all of it has ended."""

    arrays: list[tuple[list[tuple[str, ...]], list[str], int]] = field(default_factory=list)

    def submit(
        self, _launch: Launch, calls: Sequence[Callable[[], str]], cluster: Cluster, _own: object,
        waits: Sequence[str] = (), _requeues: int = 0,
    ) -> list[str]:  # fmt: skip
        jobs = [tuple(call().split()) for call in calls]
        self.arrays.append((jobs, list(waits), cluster.parallel or len(calls)))
        return [f"{len(self.arrays)}_{index}" for index in range(len(calls))]

    def ends(self, seconds: dict[str, float], cores: int) -> float:
        waiting = [
            (f"{number}_{index}", keys, waits, cap)
            for number, (jobs, waits, cap) in enumerate(self.arrays, 1)
            for index, keys in enumerate(jobs)
        ]
        running: dict[str, float] = {}
        ended: set[str] = set()
        now = 0.0
        while waiting or running:
            for job in list(waiting):
                name, keys, waits, cap = job
                names = {*running, *(other[0] for other in waiting)}
                blocked = any(other == wait or other.partition("_")[0] == wait for wait in waits for other in names)
                same = Counter(other.partition("_")[0] for other in running)[name.partition("_")[0]]
                if not blocked and len(running) < cores and same < cap:
                    waiting.remove(job)
                    running[name] = now + START_SECONDS + sum(seconds[key] for key in keys)
            now = min(running.values())
            ended |= {name for name, end in running.items() if end <= now}
            running = {name: end for name, end in running.items() if name not in ended}
        return now


@pytest.mark.parametrize("given", [{}, {"pack": 0}, {"pack": 2, "parallel": 3}, {"pack": 0, "parallel": 5}])
@pytest.mark.parametrize("cores", [2, 4, 100])
def test_jobs_of_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: tuple[list[Unit], dict[str, float]],
    given: dict[str, Any], cores: int,
) -> None:  # fmt: skip
    units, seconds = plan
    settings, cluster, limit = Cluster(launcher="slurm", **given), FakeCluster(), Limits(array=6)
    monkeypatch.setattr(dry_run, "limits", lambda wanted: limit)
    monkeypatch.setattr(dry_run, "at_once", lambda wanted: cores)
    monkeypatch.setattr(slurm, "submit_array", cluster.submit)
    run_dir = RunDir(tmp_path / "runs").create()
    launch = begin(run_dir, "slurm", units, Options(resources=ONE_CPU), [METHOD])
    packs = jobs_of(units, dry_run.running_times(units, run_dir), settings)
    orders = [Order(pack.keys, pack.after, pack.resources) for pack in packs]
    Jobs(launch, run_dir, settings, limit, Progress(), lambda keys, *_: lambda: " ".join(keys), orders).submit()
    assert told(units, settings)["seconds"] == pytest.approx(cluster.ends(seconds, cores))


class FakeExecutor:
    """Runs each job for as long as its cells take, by the clock."""

    def __init__(self, run_dir: RunDir, seconds: dict[str, float], clock: Clock) -> None:
        self.run_dir, self.seconds, self.clock = run_dir, seconds, clock

    def submit(self, keys: tuple[str, ...]) -> FakeJob:
        return FakeJob(self, keys, self.clock() + START_SECONDS + sum(self.seconds[key] for key in keys))

    def why(self, _job: object) -> str:
        return ""

    def end(self, jobs: Sequence[object]) -> None:
        assert not jobs


@dataclass
class FakeJob:
    executor: FakeExecutor
    keys: tuple[str, ...]
    end: float

    def done(self) -> bool:
        if self.executor.clock() < self.end:
            return False
        for key in self.keys:
            self.executor.run_dir.write_record(record(key=key))
        return True


def test_jobs_of_an_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: tuple[list[Unit], dict[str, float]]
) -> None:
    units, seconds = plan
    settings, clock = Cluster(launcher="submitit:fake", parallel=3, pack=3), Clock()
    run_dir = RunDir(tmp_path / "runs").create()
    launch = begin(run_dir, "submitit:fake", units, Options(resources=ONE_CPU), [METHOD])

    @contextlib.contextmanager
    def fake(*_: object) -> Iterator[Executor]:
        yield FakeExecutor(run_dir, seconds, clock)

    monkeypatch.setattr(executors, "executor_of", fake)
    monkeypatch.setattr(executors.time, "sleep", clock.sleep)
    monkeypatch.setattr(executors, "POLL_SECONDS", 5.0)
    packs = jobs_of(units, dry_run.running_times(units, run_dir), settings)
    run_by_executor(launch, packs, settings, run_dir, Progress(), lambda one: None)
    assert told(units, settings)["seconds"] == pytest.approx(clock(), abs=len(packs) * executors.POLL_SECONDS)
