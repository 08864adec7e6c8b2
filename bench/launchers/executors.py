"""Cells of a launch as jobs of an executor: one that submitit knows, or one from an installed package.

A package names its launcher by an entry point of the group ``bench.launchers``: a function that takes `parallel`, the
number of concurrent jobs, and the contents of the setting `extra`, and returns a context manager of a
:class:`concurrent.futures.Executor`. Each job starts a process of its own on the machine where it runs.

Executors share no way to state dependencies or to list jobs, so this process submits a job once its dependencies are
done, and ends the jobs when it ends. Slurm has its own module, with arrays, dependencies and limits.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.core.errors import BenchError, UnknownNameError
from bench.core.lazy_libraries import submitit
from bench.core.printable import counted
from bench.core.progress import Progress
from bench.launchers.attempts import attempts_of
from bench.launchers.local import Done, Watch, doing, end
from bench.launchers.manifest import CANCELLED, Launch
from bench.launchers.schedule import Pack
from bench.launchers.settings import SUBMITIT, Cluster, launcher_points
from bench.launchers.slurm_job import Job
from bench.launchers.slurm_run import give_up
from bench.launchers.worker import POLL_SECONDS, Outcome
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic
from bench.storage.interrupts import Stopped, stopping_signals
from bench.storage.scratch import VARIABLE


class _Submitit:
    """An executor of submitit: `submit` begins a job that runs the cells `keys` in turn, `end` ends jobs."""

    def __init__(self, settings: Cluster, launch: Launch) -> None:
        name = settings.launcher.removeprefix(SUBMITIT)
        known = submitit.core.plugins.get_executors().keys() - {"debug"}  # runs jobs here, like inline
        if name not in known:
            raise UnknownNameError("executor of submitit", name, known)
        prefixed = {f"{name}_{key}": value for key, value in settings.extra.items()}
        setup = {f"{name}_setup": list(settings.shell)} if settings.shell else {}
        python = {f"{name}_python": settings.python} if settings.python else {}
        self._folder, self._minutes = str(launch.folder.resolve()), settings.time
        self._executor = submitit.AutoExecutor(
            launch.folder / "jobs", name, **{f"{name}_max_num_timeout": launch.options.retries}, **python
        )
        self._executor.update_parameters(
            name=f"bench-{launch.id}", timeout_min=settings.time, cpus_per_task=settings.cpus, nodes=settings.nodes,
            gpus_per_node=settings.gpus, mem_gb=settings.memory, stderr_to_stdout=True, **setup, **prefixed,
        )  # fmt: skip

    def submit(self, keys: tuple[str, ...]) -> Any:
        return self._executor.submit(Job(self._folder, keys, self._minutes))

    def why(self, job: Any) -> str:
        return ""

    def end(self, jobs: Sequence[Any]) -> None:
        for job in jobs:
            job.cancel(check=False)


class _Installed:
    """An executor of a package."""

    def __init__(self, executor: Any, settings: Cluster, launch: Launch) -> None:
        self._executor, self._folder, self._scratch = executor, launch.folder.resolve(), settings.scratch

    def submit(self, keys: tuple[str, ...]) -> Any:
        return self._executor.submit(run_apart, str(self._folder), keys, self._scratch)

    def why(self, job: Future[str]) -> str:
        """Return why an ended job left a cell without a record, as far as is known."""
        if job.cancelled():
            return "cancelled"
        error = job.exception()
        return job.result() if error is None else f"{type(error).__name__}: {error}".splitlines()[0]

    def end(self, jobs: Sequence[Future[str]]) -> None:
        if jobs:  # a running future cannot be cancelled, but its process looks for this file
            write_atomic(self._folder / CANCELLED, b"", mode=0o600)
        deadline = time.monotonic() + 20
        for job in jobs:
            job.cancel()
        while not all(job.done() for job in jobs) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


Executor = _Submitit | _Installed


def run_apart(folder: str, keys: Sequence[str], scratch: str | None) -> str:
    """Run the cells `keys` of the launch in `folder` in a process of this machine; return how it failed, or "".

    It uses a process, like the local launcher, because the calling thread cannot take signals or be ended.
    """
    environment = {**os.environ, **({VARIABLE: os.path.expandvars(scratch)} if scratch else {})}
    words = [sys.executable, "-m", "bench.launchers.worker", folder, *keys]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, env=environment, process_group=0) as process:
        while (status := process.poll()) is None:
            if (Path(folder) / CANCELLED).exists():
                end([process])
            else:
                time.sleep(POLL_SECONDS)
    return f"its process ended with status {status}" if status else ""


@contextlib.contextmanager
def executor_of(settings: Cluster, launch: Launch, parallel: int) -> Iterator[Executor]:
    """Open the executor that `settings` name, with their resources, for `parallel` jobs at once.

    Raises UnknownNameError for another name, :class:`BenchError` for parameters that it does not take.
    """
    refused = (NameError, ValueError, TypeError, AssertionError, RuntimeError, OSError)
    with contextlib.ExitStack() as stack:
        try:
            if settings.launcher.startswith(SUBMITIT):
                executor: Executor = _Submitit(settings, launch)
            else:
                made: AbstractContextManager[Any] = _load(settings.launcher)(parallel=parallel, **settings.extra)
                executor = _Installed(stack.enter_context(made), settings, launch)
        except refused as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise BenchError(f"--launcher {settings.launcher} does not take these settings: {said}.") from error
        yield executor


def _load(name: str) -> Any:
    point = launcher_points()[name]
    try:
        return point.load()
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BenchError(f"--launcher {name}: {point.value} failed to import: {said}.") from error


def run_by_executor(
    launch: Launch, packs: Sequence[Pack], settings: Cluster, run_dir: RunDir, progress: Progress, done: Done
) -> Outcome:
    """Run `packs` with the executor of `settings`, and call `done` with each record.

    At most :meth:`Cluster.at_once` jobs run at once. A cell whose job ended without a record is submitted again at most
    min(`retries`, 3) times, apart from jobs that another cell ended before it began. Raises as :func:`executor_of`.
    """

    def tries_of(key: str) -> int:
        return len(attempts_of(launch.folder, key))

    watch = Watch(launch, [unit for pack in packs for unit in pack.units], run_dir, done)
    waiting, running, losses = list(packs), list[tuple[Pack, Any]](), Counter[str]()
    before = dict[str, int]()  # attempts at each key when its job was submitted
    most, tries = settings.at_once(), min(launch.options.retries, 3)
    with executor_of(settings, launch, min(most, len(packs))) as executor:
        try:
            with stopping_signals(), progress.stage("cells", len(watch.left)) as stage:
                while watch.left:
                    launch.check_cancelled()
                    stage.advance(watch.look())
                    ended = [(pack, job) for pack, job in running if job.done()]
                    running = [one for one in running if one not in ended]
                    stage.advance(watch.look())
                    for pack, job in ended:
                        if not any(key in watch.left for key in pack.keys):
                            continue
                        began = [key for key in pack.keys if tries_of(key) > before[key]]
                        losses.update(began or pack.keys)
                        left = tuple(unit for unit in pack.units if unit.key in watch.left)
                        units = [unit for unit in left if losses[unit.key] > tries]
                        why = executor.why(job)
                        what = f"{len(units)} of them given up" if units else "submitted again"
                        how = f" ({why})" if why else ""
                        lost = counted(len(left), "cell has", "cells have")
                        progress.say(f"{lost} lost the job{how}: {what}")
                        give_up(units, watch, run_dir, {})
                        stage.advance(len(units))
                        rest = tuple(unit for unit in left if unit not in units)
                        waiting += [replace(pack, units=rest)] if rest else []
                    under_way = {key for pack in (*waiting, *(pack for pack, _ in running)) for key in pack.keys}
                    for pack in [pack for pack in waiting if not under_way.intersection(pack.after)]:
                        if len(running) < most:
                            waiting.remove(pack)
                            before.update({key: tries_of(key) for key in pack.keys})
                            running.append((pack, executor.submit(pack.keys)))
                    progress.doing(doing(run_dir, launch.id))
                    if watch.left:
                        time.sleep(POLL_SECONDS)
        except Stopped as stopped:
            watch.outcome.stopped = stopped.number
        finally:
            executor.end([job for _, job in running if not job.done()])
    return watch.close()
