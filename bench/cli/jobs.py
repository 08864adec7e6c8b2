"""``--launcher local`` and ``slurm`` of attacks, audits, checks and tunings: commands that make the results."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import typer

from bench.core.config import Reuse
from bench.core.errors import BenchError
from bench.core.options import Resources, Students, words_of
from bench.core.processes import available_cores
from bench.core.progress import Progress, echo
from bench.launchers.commands import run_commands
from bench.launchers.manifest import Task
from bench.launchers.settings import Cluster
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.run_dir import RunDir
from bench.storage.interrupts import Stopped

Result = AttackRecord | AuditRecord
State = Callable[[str], bool | None]
"""Returns whether the result under a task's key makes its command end with status 1; None without a result."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command of this program, and the results that it makes; `out`: its run directory, by default the launch's.

    `resources`: whether the command takes ``--device``, ``--workers`` and ``--threads``.
    """

    words: Sequence[str]
    tasks: Sequence[Task]
    out: Path | None = None
    resources: bool = True


@dataclass(slots=True)
class Launched:
    """Outcome of jobs: the signal that stopped them, keys being made by other processes, a line per failed command."""

    stopped: int | None = None
    elsewhere: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def bad(result: Result | None) -> bool:
    """Return whether `result` is a failure or a violation, so that its command exits with status 1."""
    from bench.reports.attacks import exceeded

    return result is not None and (
        result.failure is not None or bool(result.violated if isinstance(result, AuditRecord) else exceeded(result))
    )


def kept(result: Result | None, reuse: Reuse) -> bool:
    """Return whether `result` counts as done."""
    return result is not None and (reuse is Reuse.ALL or (reuse is Reuse.DONE and result.failure is None))


def choice_words(students: Students, reuse: Reuse) -> list[str]:
    """Return the options by which a job chooses the same methods and results as the launcher's own command."""
    data = ["--data", students.data] if students.data else []
    return ["--methods", students.methods, "--reuse", reuse.value, *data]


def check_time(settings: Cluster, minutes: float) -> None:
    """Raise :class:`BenchError` if Slurm's time limit would stop an audit, which would start over after a requeue."""
    least = math.ceil(1.5 * minutes + 5)
    if settings.launcher == "slurm" and settings.time < least:
        raise BenchError(
            f"--time {settings.time} is too short for audits of --minutes {minutes:g}: at least {least} are needed. "
            "Increase --time or reduce --minutes."
        )


def state_of(read: Callable[[str], Result | None]) -> State:
    """Return the :data:`State` of tasks whose results `read` returns by key."""
    return lambda key: None if (result := read(key)) is None else bad(result)


def launch_jobs(
    jobs: Mapping[str, Job], state: State, run_dir: RunDir, settings: Cluster, resources: Resources,
    progress: Progress,
) -> Launched:  # fmt: skip
    """Run `jobs`, by name, with the launcher of `settings`."""
    if not jobs:
        return Launched()
    count = min(settings.jobs or max(1, available_cores() // resources.threads), len(jobs))
    crew = resources.workers or (settings.cpus if settings.launcher == "slurm" else max(1, available_cores() // count))
    shared = words_of(replace(resources, workers=crew))
    commands = {
        name: [
            "-m", "bench", *job.words, "--out", str((job.out or run_dir.path).resolve()),
            *(shared if job.resources else []), "--launcher", "inline", "--quiet",
        ]
        for name, job in jobs.items()
    }  # fmt: skip
    tasks = [task.model_copy(update={"command": name}) for name, job in jobs.items() for task in job.tasks]
    with run_dir.joined():
        try:
            folder, statuses = run_commands(commands, tasks, run_dir, settings, count, progress)
        except Stopped as stop:
            return Launched(stop.number)
    ended = Launched()
    for name, status in statuses.items():
        found = {task.key: state(task.key) for task in jobs[name].tasks}
        if status == 0 or (status == 1 and any(found.values())):
            ended.elsewhere += [key for key, result in found.items() if result is None]
        else:
            how = "its jobs ended without a status" if status is None else f"its process ended with status {status}"
            log = max(folder.glob(f"attempts/{glob.escape(name)}.*.log"), default=folder / "jobs", key=os.path.getmtime)
            ended.lost.append(f"failed: {name}: {how} (log: {log})")
    return ended


def leave(ended: Launched, failed: bool) -> None:
    """Print what is left, and end the command with a status other than 0 if it was stopped, lost jobs or `failed`."""
    for key in ended.elsewhere:
        echo(f"skipped: {key}, which another process is making", err=True)
    for line in ended.lost:
        echo(line, err=True)
    if ended.stopped is not None:
        echo("stopped. Give the same command again to resume.", err=True)
        raise typer.Exit(128 + ended.stopped)
    if failed or ended.lost:
        raise typer.Exit(1)
