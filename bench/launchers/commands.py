"""Run many commands of this program in parallel, as local processes or as an array of Slurm jobs.

Each command keeps its work in the run directory, so it resumes when it is given again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.core.errors import BenchError
from bench.core.lazy_libraries import submitit
from bench.core.processes import die_with_parent, peak_memory_mib
from bench.core.progress import Progress, Stage
from bench.launchers import slurm, slurm_cli
from bench.launchers.attempts import attempt
from bench.launchers.local import doing, end, spawn
from bench.launchers.manifest import Launch, Options, Task, begin
from bench.launchers.schedule import Order
from bench.launchers.settings import LAUNCHERS, Cluster, JobResources
from bench.launchers.slurm_ends import OUT_OF_TIME_STATUS
from bench.launchers.slurm_jobs import POLL_SECONDS as SLURM_POLL_SECONDS
from bench.launchers.slurm_jobs import Jobs
from bench.launchers.worker import POLL_SECONDS
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic
from bench.storage.interrupts import stopping_signals, unstopped

Commands = Mapping[str, Sequence[str]]


def run_commands(
    commands: Commands, tasks: Sequence[Task], run_dir: RunDir, settings: Cluster, jobs: int, progress: Progress
) -> tuple[Path, dict[str, int | None]]:
    """Run `commands` (arguments of Python by name), at most `jobs` local processes at once; they claim the `tasks`.

    Return the launch's folder, and the exit statuses (None if a Slurm job ended without one).
    Commands and jobs end with this process. Raises :class:`bench.storage.interrupts.Stopped` on Ctrl-C, SIGTERM and
    `bench cancel`, :class:`BenchError` if Slurm refuses the jobs.
    """
    if settings.launcher not in LAUNCHERS:
        raise BenchError(
            f"attacks, audits, checks and tunings run by --launcher inline, local or slurm, not {settings.launcher}."
        )
    if settings.launcher == "slurm":
        slurm_cli.check([settings.of("")], run_dir.path)
    options = Options(retries=10 if settings.retries is None else settings.retries)
    launch = begin(run_dir, settings.launcher, (), options, tasks=tasks)
    with stopping_signals(), progress.stage("commands", len(commands)) as stage:
        if settings.launcher == "slurm":
            return launch.folder, _by_slurm(launch, commands, run_dir, settings, progress, stage)
        return launch.folder, _locally(launch, commands, run_dir, jobs, progress, stage)


def _locally(
    launch: Launch, commands: Commands, run_dir: RunDir, jobs: int, progress: Progress, stage: Stage
) -> dict[str, int | None]:
    waiting, found, trials = list(commands), dict[str, int | None](), dict[str, ExitStack]()
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            launch.check_cancelled()
            while waiting and len(running) < jobs:
                with unstopped():  # a signal in between would orphan the process
                    key = waiting.pop(0)
                    trial = trials.setdefault(key, ExitStack()).enter_context(attempt(launch.folder, key, lambda: None))
                    running[key] = spawn(__name__, commands[key], trial.log)
                    trial.reason = "ended"
            for key in [key for key, process in running.items() if process.poll() is not None]:
                found[key] = running.pop(key).returncode
                trials[key].close()
                stage.advance()
            progress.doing(doing(run_dir, keys={task.key for task in launch.tasks}))
            time.sleep(POLL_SECONDS)
    finally:
        end(list(running.values()))
        for key in running:
            trials[key].close()
    return found


@dataclass(frozen=True, slots=True)
class Command:
    """Body of a Slurm job, pickled by submitit: it runs `words` and writes the exit status to the file `status`."""

    words: tuple[str, ...]
    launch: str
    name: str
    status: str
    ends_itself: bool = False

    def __call__(self) -> str:
        """Run the command."""
        with attempt(Path(self.launch), self.name, partial(peak_memory_mib, children=True)) as trial:
            process = spawn(__name__, self.words, trial.log)
            try:
                status = process.wait()
            except submitit.core.utils.UncompletedJobError:
                trial.reason = "out of time"
                if self.ends_itself:
                    raise SystemExit(OUT_OF_TIME_STATUS) from None
                raise
            finally:
                end([process])
            if status in (128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGUSR2):  # cancelled, requeued, out of time
                trial.reason = "stopped"
                return "stopped"
            trial.reason = "done" if status == 0 else f"ended with status {status}"
        write_atomic(Path(self.status), str(status).encode(), mode=0o600)
        return "done"

    def checkpoint(self) -> Any:
        """Return the same job to run after a requeue."""
        return submitit.helpers.DelayedSubmission(self)


def _by_slurm(
    launch: Launch, commands: Commands, run_dir: RunDir, settings: Cluster, progress: Progress, stage: Stage
) -> dict[str, int | None]:
    folder = launch.folder.resolve()
    files = {key: folder / f"{key}.status" for key in commands}

    def body(keys: tuple[str, ...], own: JobResources, ends_itself: bool) -> Command:
        (key,) = keys
        return Command(tuple(commands[key]), str(folder), key, str(files[key]), ends_itself)

    left, pause = list(commands), SLURM_POLL_SECONDS
    limits = slurm_cli.limits([settings.of("")])
    jobs = Jobs(launch, run_dir, settings, limits, progress, body, [Order((key,)) for key in commands])
    try:
        jobs.submit()
        while left:
            launch.check_cancelled()
            time.sleep(pause)
            pause = min(jobs.pause, 1.5 * pause)
            lost = jobs.lost(left)
            if there := [key for key in left if files[key].exists()]:
                left = [key for key in left if key not in there]
                stage.advance(len(there))
            if there or jobs.some_gone:
                pause = SLURM_POLL_SECONDS
            if lost := [key for key in lost if key in left]:
                given_up = jobs.again(lost, "command")
                left = [key for key in left if key not in given_up]
            jobs.submit()
            progress.doing(doing(run_dir, keys={task.key for task in launch.tasks}))
    except BaseException:
        slurm.cancel(launch.id)
        raise
    return {key: int(file.read_text()) if file.exists() else None for key, file in files.items()}


if __name__ == "__main__":
    die_with_parent()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
