"""What became of the launches on a run directory, seen from any terminal, and how to end them.

States follow from records, claims and Slurm's queue; nothing is asked of a process, so that a dead one cannot lie.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.core.errors import BenchError
from bench.launchers.manifest import CANCELLED, Outline, outlines
from bench.launchers.runtime_estimate import words
from bench.results.record import Record, Status
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic
from bench.storage.locks import Owner, alive

WAIT_SECONDS = 60.0
"""How long `cancel` waits for processes to end in order; then they are killed."""


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One launch: how many of its cells are in which state, and what Slurm still has of it."""

    id: str
    kind: str
    where: str
    state: str
    cells: int
    done: int
    failed: int
    running: int
    left: int
    jobs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunningRow:
    """One cell that runs now."""

    key: str
    title: str
    stage: str
    done: int
    total: int
    where: str
    seconds: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Overview:
    """All of it, for a table or for a program."""

    launches: list[LaunchRow]
    running: list[RunningRow]
    failures: list[tuple[str, str]]
    waiting: list[str]
    """Titles of cells that nobody has begun."""
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return dataclasses.asdict(self)

    def tables(self) -> Iterable[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        """Yield title, columns and rows of each table that has something to say."""
        yield (
            "launches",
            ("launch", "launcher", "state", "cells", "done", "failed", "running", "left", "Slurm's jobs"),
            [
                (r.id, f"{r.kind} ({r.where})", r.state, str(r.cells), str(r.done), str(r.failed), str(r.running),
                 str(r.left), ", ".join(f"{n} {state.lower()}" for state, n in sorted(r.jobs.items())))
                for r in self.launches
            ],
        )  # fmt: skip
        if self.running:
            yield (
                "running now",
                ("cell", "stage", "steps", "where", "for", "attempt"),
                [
                    (r.title, r.stage, f"{r.done}/{r.total}", r.where, words(r.seconds), str(r.attempt))
                    for r in self.running
                ],
            )
        if self.waiting:
            shown = self.waiting[:20]
            more = [(f"... and {len(self.waiting) - len(shown)} more",)] if len(self.waiting) > len(shown) else []
            yield "not begun", ("cell",), [*((title,) for title in shown), *more]
        if self.failures:
            yield "failed", ("cell", "why"), list(self.failures)


def overview(path: Path) -> Overview:
    """Return the state of everything that was launched on the run directory `path`.

    Raises :class:`BenchError` where there is no such directory.
    """
    run_dir = RunDir(path)
    read = run_dir.read_records(set_aside=False)
    records = {record.key: record for record in read.found}
    claims = run_dir.claims()
    launches, last = [], {}
    known: dict[str, Outline] = {}
    for outline in outlines(run_dir):
        row, jobs_note = _row(outline, records, claims, run_dir)
        launches.append(row)
        known.update(dict.fromkeys((key for key in outline.titles if key not in outline.shards), outline))
        if jobs_note:
            last[outline.id] = jobs_note
    running = [_running(key, owner) for key, owner in sorted(claims.items()) if owner.held]
    busy = {row.key for row in running}
    waiting = [
        outline.titles[key]
        for key, outline in known.items()
        if key not in busy and not _settled(key, outline, records, run_dir)
    ]
    failures = [
        (record.key, record.failure.reason + (f" (log: {record.failure.log})" if record.failure.log else ""))
        for record in records.values()
        if record.failure is not None
    ]
    notes = [*read.damaged, *last.values()]
    if waiting and not any(row.state == "at work" for row in launches):
        notes.append("Nobody is at work on what is left: give the `run` command again to go on.")
    return Overview(launches, running, failures, waiting, notes)


def _settled(key: str, outline: Outline, records: dict[str, Record], run_dir: RunDir) -> bool:
    return key in records and run_dir.signature(key) != outline.before[key]


def _row(
    outline: Outline, records: dict[str, Record], claims: dict[str, Owner], run_dir: RunDir
) -> tuple[LaunchRow, str]:
    keys = [key for key in outline.titles if key not in outline.shards]
    settled = [records[key].status for key in keys if _settled(key, outline, records, run_dir)]
    running = sum(owner.held and owner.told.get("launch") == outline.id for owner in claims.values())
    jobs: dict[str, int] = {}
    note = ""
    if outline.kind == "slurm" and len(settled) < len(keys):
        jobs, note = _jobs(outline)
    left = len(keys) - len(settled)
    if left == 0:
        state = "finished"
    elif outline.launcher_lives or jobs or running:
        state = "at work"
    else:
        state = "stopped"
    count = Counter(settled)
    return LaunchRow(
        outline.id, outline.kind, outline.machine.partition("/")[0], state, len(keys), count[Status.DONE],
        count[Status.FAILED], running, left, jobs,
    ), note  # fmt: skip


def _jobs(outline: Outline) -> tuple[dict[str, int], str]:
    from bench.launchers import slurm

    if shutil.which("squeue") is None:
        return {}, "no Slurm on this machine (squeue is not found): the states of its jobs are not known here"
    try:
        queue = slurm.queue(outline.id)
    except BenchError as error:
        return {}, str(error)
    stuck = Counter(reason for state, reason in queue.values() if state == "PENDING")
    reasons = ", ".join(f"{count} wait for {reason}" for reason, count in sorted(stuck.items()))
    return dict(
        Counter(state for state, _ in queue.values())
    ), f"{slurm.job_name(outline.id)}: {reasons}" if stuck else ""


def _running(key: str, owner: Owner) -> RunningRow:
    told = owner.told
    title, stage = str(told.get("title", key)), str(told.get("stage", ""))
    where = f"{owner.where}, job {told['job']}" if "job" in told else owner.where
    return RunningRow(
        key, title, "" if stage == title else stage, int(told.get("done", 0)), int(told.get("total", 1)), where,
        owner.seconds, owner.attempt,
    )  # fmt: skip


def cancel_all(path: Path) -> list[str]:
    """End every launcher, worker and job that works on the run directory `path`; return what was done, in lines.

    Processes of this machine get SIGTERM, which lets them close what they hold, and SIGKILL if they take too long. What
    runs on other machines outside Slurm is named. Raises :class:`BenchError` where there is no such directory.
    """
    run_dir = RunDir(path)
    if not run_dir.path.is_dir():
        raise BenchError(f"no such run directory: {path}.")
    run_dir.check_layout()
    lines: list[str] = []
    launches = list(outlines(run_dir))
    processes = {(o.pid, o.start): f"launcher of {o.id}" for o in launches if o.launcher_lives and o.pid != os.getpid()}
    slurm_ = [outline for outline in launches if outline.kind == "slurm"]
    for outline in launches:  # for a launcher on another machine, which no signal reaches
        if not _finished(outline, run_dir):
            write_atomic(outline.folder / CANCELLED, b"", mode=0o600)
    # Before their jobs: a launcher that lives submits again what it finds without a job.
    launchers = {(o.pid, o.start) for o in slurm_}
    lines += _end({process: what for process, what in processes.items() if process in launchers})
    for outline in slurm_:
        lines += _cancel_jobs(outline)
    living = {outline.id for outline in launches if outline.kind == "local" and outline.launcher_lives}
    for key, owner in run_dir.claims().items():
        if owner.held and owner.here and owner.told.get("launch") in living:
            continue  # its launcher ends it
        if owner.held and owner.here:
            processes.setdefault((owner.pid, owner.start), f"worker at {key}")
        elif owner.held:
            lines.append(f"{key} runs on {owner.where}, which cannot be reached from here: cancel it there")
    lines += _end(processes)
    return lines or ["nothing runs here"]


def _finished(outline: Outline, run_dir: RunDir) -> bool:
    keys = outline.titles.keys() - outline.shards
    return all((now := run_dir.signature(key)) is not None and now != outline.before[key] for key in keys)


def _cancel_jobs(outline: Outline) -> list[str]:
    from bench.launchers import slurm

    if shutil.which("squeue") is None:
        return [f"{outline.id} has jobs of Slurm, which is not on this machine: cancel it on the cluster"]
    count = slurm.cancel(outline.id)
    return [f"cancelled {count} jobs of {slurm.job_name(outline.id)}"] if count else []


def _end(processes: dict[tuple[int, str | None], str]) -> list[str]:
    lines = []
    # Launchers first: they end their workers in order.
    for (pid, start), what in sorted(processes.items(), key=lambda item: not item[1].startswith("launcher")):
        if alive(pid, start):
            _signal(pid, signal.SIGTERM)
            lines.append(f"ended the {what} (process {pid})")
    deadline = time.monotonic() + WAIT_SECONDS
    left = [(pid, start) for pid, start in processes if alive(pid, start)]
    while left and time.monotonic() < deadline:
        time.sleep(0.2)
        left = [(pid, start) for pid, start in left if alive(pid, start)]
    for pid, _ in left:
        _signal(pid, signal.SIGKILL)
        lines.append(f"process {pid} did not end in {WAIT_SECONDS:.0f} s and was killed")
    return lines


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended by itself in between
        os.kill(pid, number)
