"""Run many commands of this program at once, as local processes or as an array of Slurm jobs.

Each command keeps its work in the run directory, so it resumes when it is given again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.core.progress import Progress, Stage
from bench.launchers import slurm, slurm_cli
from bench.launchers.local import doing, end
from bench.launchers.manifest import Launch, Options, Task, begin
from bench.launchers.settings import Cluster
from bench.launchers.worker import POLL_SECONDS, die_with_parent
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic
from bench.storage.interrupts import Stopped, stopping_signals, unstopped

Commands = Mapping[str, Sequence[str]]


def run_commands(
    commands: Commands, tasks: Sequence[Task], run_dir: RunDir, settings: Cluster, jobs: int, progress: Progress
) -> tuple[Path, dict[str, int | None]]:
    """Run `commands` (arguments of Python by name), at most `jobs` local processes at once; they claim the `tasks`.

    Return a folder with the output of each as NAME.log, and the exit statuses (None if a Slurm job ended without one).
    Commands and jobs end with this process; Ctrl-C, SIGTERM and `bench cancel` raise :class:`Stopped`. Raises
    :class:`BenchError` if Slurm refuses the jobs.
    """
    if settings.launcher == "slurm":
        slurm_cli.check([settings.of("")], run_dir.path, len(commands))
    launch = begin(
        run_dir, settings.launcher, (), Options(retries=10 if settings.retries is None else settings.retries),
        tasks=tasks,
    )  # fmt: skip
    with stopping_signals(), progress.stage("commands", len(commands)) as stage:
        if settings.launcher == "slurm":
            return launch.folder, _by_slurm(launch, commands, run_dir, settings, progress, stage)
        return launch.folder, _locally(launch, commands, run_dir, jobs, progress, stage)


def _check_cancelled(launch: Launch) -> None:
    if launch.cancelled:
        raise Stopped(signal.SIGTERM)


def _begin(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, *words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            process_group=0,  # only the launcher gets Ctrl-C, and ends its commands in order
        )  # fmt: skip


def _locally(
    launch: Launch, commands: Commands, run_dir: RunDir, jobs: int, progress: Progress, stage: Stage
) -> dict[str, int | None]:
    waiting, found = list(commands), dict[str, int | None]()
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            _check_cancelled(launch)
            while waiting and len(running) < jobs:
                with unstopped():  # a signal in between would leave a process without an owner
                    key = waiting.pop(0)
                    running[key] = _begin(commands[key], launch.folder / f"{key}.log")
            for key in [key for key, process in running.items() if process.poll() is not None]:
                found[key] = running.pop(key).returncode
                stage.advance()
            progress.doing(doing(run_dir, keys={task.key for task in launch.tasks}))
            time.sleep(POLL_SECONDS)
    finally:
        end(list(running.values()))
    return found


@dataclass(frozen=True, slots=True)
class Command:
    """Body of a Slurm job, pickled by submitit: it runs `words` and writes the exit status to the file `status`."""

    words: tuple[str, ...]
    log: str
    status: str

    def __call__(self) -> str:
        """Run the command."""
        process = _begin(self.words, Path(self.log))
        try:
            status = process.wait()
        finally:
            end([process])
        if status in (128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGUSR2):  # cancelled, requeued, or out of time
            return "stopped"
        write_atomic(Path(self.status), str(status).encode(), mode=0o600)
        return "done"

    def checkpoint(self) -> Any:
        """Return the same job to run after a requeue."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _by_slurm(
    launch: Launch, commands: Commands, run_dir: RunDir, settings: Cluster, progress: Progress, stage: Stage
) -> dict[str, int | None]:
    folder = launch.folder.resolve()
    files = {key: folder / f"{key}.status" for key in commands}
    left, jobs, pause = list(commands), slurm.Jobs(launch, progress), slurm.POLL_SECONDS

    def submit(keys: Sequence[str]) -> None:
        most = slurm_cli.largest_array()
        for some in (keys[i : i + most] for i in range(0, len(keys), most)):
            calls = [Command(tuple(commands[key]), str(folder / f"{key}.log"), str(files[key])) for key in some]
            made = slurm.submit_array(launch, calls, settings, settings.of(""))
            jobs.job_of.update(zip(some, made, strict=True))

    try:
        submit(left)
        while left:
            _check_cancelled(launch)
            time.sleep(pause)
            pause = min(slurm.LONGEST_PAUSE, 1.5 * pause)
            lost = jobs.lost(left)
            if there := [key for key in left if files[key].exists()]:
                left = [key for key in left if key not in there]
                stage.advance(len(there))
            if there or jobs.some_gone:
                pause = slurm.POLL_SECONDS
            if lost := [key for key in lost if key in left]:
                again, given_up = jobs.resubmitted(lost, "command")
                left = [key for key in left if key not in given_up]
                submit(again)
            progress.doing(doing(run_dir, keys={task.key for task in launch.tasks}))
    except BaseException:
        slurm.cancel(launch.id)
        raise
    return {key: int(file.read_text()) if file.exists() else None for key, file in files.items()}


if __name__ == "__main__":
    die_with_parent()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
