"""State and cancellation of the launches on a run directory, from records, claims and Slurm's queue."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.core.errors import BenchError
from bench.core.plain_files import check_run_dir
from bench.core.printable import counted
from bench.experiments.noise_salt import sweep_salts
from bench.launchers import slurm
from bench.launchers.manifest import CANCELLED, SIGNALLED, Launch, Task, launches
from bench.launchers.runtime_estimate import Progressed, duration, remaining
from bench.launchers.worker import settled
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.record import Provenance, Record, Status
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic
from bench.storage.locks import Owner, alive

WAIT_SECONDS = 60.0  # `cancel` kills processes after this time


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One launch: number of results (`what`: cells, attacks or audits) and of queued Slurm jobs by state."""

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
    what: str = ""
    remaining_seconds: float | None = None
    """Forecast while it is at work; None before its first result."""


@dataclass(frozen=True, slots=True)
class RunningRow:
    """One running cell, attack or audit."""

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
    """State of a run directory; `waiting` holds the titles of results that have not begun."""

    launches: list[LaunchRow]
    running: list[RunningRow]
    failures: list[tuple[str, str]]
    waiting: list[str]
    notes: list[str]

    def tables(self) -> Iterable[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        """Yield title, columns and rows of each non-empty table; launches always."""
        yield (
            "launches",
            ("launch", "launcher", "state", "results", "done", "failed", "running", "left", "ends in", "Slurm's jobs"),
            [
                (r.id, f"{r.kind} ({r.where})", r.state, r.what, str(r.done), str(r.failed), str(r.running),
                 str(r.left), "" if r.remaining_seconds is None else duration(r.remaining_seconds),
                 ", ".join(f"{n} {state.lower()}" for state, n in sorted(r.jobs.items())))
                for r in self.launches
            ],
        )  # fmt: skip
        shown = [(title,) for title in self.waiting[:20]]
        if len(self.waiting) > len(shown):
            shown.append((f"... and {len(self.waiting) - len(shown)} more",))
        running = [
            (r.title, r.stage, f"{r.done}/{r.total}", r.where, duration(r.seconds), str(r.attempt))
            for r in self.running
        ]
        others: list[tuple[str, tuple[str, ...], list[Any]]] = [
            ("running now", ("what", "stage", "steps", "where", "for", "attempt"), running),
            ("not begun", ("what",), shown),
            ("failed", ("what", "why"), self.failures),
        ]
        yield from (table for table in others if table[2])


def overview(path: Path) -> Overview:
    """Return the state of all launches on the run directory `path`. Raises :class:`BenchError` if it is absent."""
    run_dir = RunDir(path)
    read = run_dir.read_records(set_aside=False)
    with suppress(BenchError):  # another user's directory
        sweep_salts(run_dir)
    records = {record.key: record for record in read.found}
    rows, notes = [], list(read.damaged)
    waiting: dict[str, str] = {}
    claims: dict[str, Owner] = {}
    found: list[Launch] = []
    try:
        claims = {key: owner for key, owner in sorted(run_dir.claims().items()) if owner.held}
        found = list(launches(run_dir))
    except BenchError as error:  # another user's launch: only its owner may know what it runs
        notes.append(str(error))
    for launch in found:
        row, note = _launch_row(launch, records, claims, run_dir)
        rows.append(row)
        notes += [note] if note else []
        for one in launch.results:  # a result's last launch counts
            waiting.pop(one.key, None)
            if one.key not in claims and not settled(one, run_dir, records):
                waiting[one.key] = one.title
    failures = [(record.key, record.failure.words(path)) for record in records.values() if record.failure is not None]
    for task in {task.key: task for launch in found for task in launch.tasks}.values():
        if (result := _result(task, run_dir)) is not None and result.failure is not None:
            failures.append((task.title, result.failure.words(path)))
    if waiting and not any(row.state == "at work" for row in rows):
        notes.append(
            "Nothing is running, but results are missing: give the `run`, `attack` or `audit` command again to resume."
        )
    running = [_running_row(key, owner) for key, owner in claims.items()]
    return Overview(rows, running, failures, list(waiting.values()), notes)


def _launch_row(
    launch: Launch, records: Mapping[str, Record], claims: Mapping[str, Owner], run_dir: RunDir
) -> tuple[LaunchRow, str]:
    count = Counter(records[entry.key].status for entry in launch.records if settled(entry, run_dir, records))
    made = [task for task in launch.tasks if settled(task, run_dir)]
    for result in (_result(task, run_dir) for task in made):
        count[Status.FAILED if result is not None and result.failure is not None else Status.DONE] += 1
    mine = {task.key for task in launch.tasks} - {task.key for task in made}
    at_work = launch.launcher_lives
    running = sum(owner.about.get("launch") == launch.id or (at_work and key in mine) for key, owner in claims.items())
    total = len(launch.results)
    kinds = Counter(["cell"] * len(launch.records) + [task.kind for task in launch.tasks])
    what = ", ".join(counted(number, kind) for kind, number in sorted(kinds.items()))
    left = total - count.total()
    jobs, note = _jobs(launch) if launch.kind == "slurm" and left else ({}, "")
    state = "finished" if left == 0 else "at work" if at_work or jobs or running else "stopped"
    return LaunchRow(
        launch.id, launch.kind, launch.machine.partition("/")[0], state, total, count[Status.DONE],
        count[Status.FAILED], running, left, jobs, what,
        remaining(list(_progress(launch, records, claims, run_dir))) if at_work else None,
    ), note  # fmt: skip


def _progress(
    launch: Launch, records: Mapping[str, Record], claims: Mapping[str, Owner], run_dir: RunDir
) -> Iterator[Progressed]:
    def one(kind: tuple[str, ...], key: str, made: Provenance | None) -> Progressed:
        if made is not None:
            began = datetime.fromisoformat(made.started)
            # Results on private data state the date alone.
            age = (datetime.now(UTC) - began).total_seconds() if began.tzinfo else None
            return Progressed(kind, made.wall_seconds, age, done=True)
        return Progressed(kind, claims[key].seconds, claims[key].seconds) if key in claims else Progressed(kind)

    for entry in launch.records:
        done = settled(entry, run_dir, records)
        kind = (entry.cell.spec.method, entry.cell.dataset)
        yield one(kind, entry.key, records[entry.key].provenance if done else None)
    for task in launch.tasks:
        result = _result(task, run_dir) if settled(task, run_dir) else None
        if result is not None or not settled(task, run_dir):
            yield one((task.kind,), task.key, result.provenance if result is not None else None)


def _result(task: Task, run_dir: RunDir) -> AttackRecord | AuditRecord | None:
    """Return the result of `task`; None for a picture."""
    if task.kind == "attack":
        return run_dir.read_attack(task.key)
    return run_dir.read_audit(task.key) if task.kind == "audit" else None


def _jobs(launch: Launch) -> tuple[dict[str, int], str]:
    if shutil.which("squeue") is None:
        return {}, "no Slurm on this machine (squeue is not found): the states of its jobs are unknown here"
    try:
        queue = slurm.queue(launch.id).values()
    except BenchError as error:
        return {}, str(error)
    stuck = Counter(reason for state, reason in queue if state == "PENDING")
    reasons = ", ".join(
        f"{counted(count, 'job waits', 'jobs wait')} for {reason}" for reason, count in sorted(stuck.items())
    )
    return dict(Counter(state for state, _ in queue)), f"{slurm.job_name(launch.id)}: {reasons}" if stuck else ""


def _running_row(key: str, owner: Owner) -> RunningRow:
    about = owner.about
    title, stage = str(about.get("title", key)), str(about.get("stage", ""))
    where = f"{owner.where}, job {about['job']}" if "job" in about else owner.where
    return RunningRow(
        key, title, "" if stage == title else stage, int(about.get("done", 0)), int(about.get("total", 1)), where,
        owner.seconds, owner.attempt,
    )  # fmt: skip


def cancel_all(path: Path) -> list[str]:
    """End all launchers, workers and jobs on the run directory `path`; return a line per action.

    Local processes get SIGTERM, so that they release their claims, and SIGKILL after a timeout. Processes on other
    machines outside Slurm are only listed. Raises :class:`BenchError` if the directory is absent.
    """
    run_dir = RunDir(path)
    check_run_dir(path)
    run_dir.check_layout()
    lines: list[str] = []
    found = list(launches(run_dir))
    living = [launch for launch in found if launch.launcher_lives and launch.pid != os.getpid()]
    for launch in found:  # for workers, and for launchers on other machines, which cannot be signalled
        if not all(settled(one, run_dir) for one in launch.results):
            write_atomic(launch.folder / CANCELLED, SIGNALLED if launch in living else b"", mode=0o600)
    # End Slurm launchers before their jobs, which they would resubmit.
    lines += _end({(x.pid, x.start): f"launcher of {x.id}" for x in living if x.kind == "slurm"})
    for launch in [one for one in found if one.kind == "slurm"]:
        if shutil.which("squeue") is None:
            lines.append(f"{launch.id} has jobs of Slurm, which is not on this machine: cancel it on the cluster")
        elif count := slurm.cancel(launch.id):
            lines.append(f"cancelled {counted(count, 'job')} of {slurm.job_name(launch.id)}")
    # End launchers before workers, because launchers end their workers in order.
    lines += _end({(x.pid, x.start): f"launcher of {x.id}" for x in living if x.kind != "slurm"})
    workers = {}
    for key, owner in run_dir.claims().items():
        if owner.held and owner.here:
            workers[owner.pid, owner.start] = f"worker at {key}"
        elif owner.held:
            lines.append(f"{key} runs on {owner.where}, which cannot be reached from here: cancel it there")
    lines += _end(workers)
    return lines or ["nothing runs here"]


def _end(processes: dict[tuple[int, str | None], str]) -> list[str]:
    """End `processes`, descriptions by (pid, start), and return a line per action."""
    lines, ended = [], []
    for (pid, start), what in processes.items():
        if not alive(pid, start):
            continue
        if _signal(pid, signal.SIGTERM):
            ended.append((pid, start))
            lines.append(f"ended the {what} (process {pid})")
        else:
            lines.append(f"the {what} (process {pid}) belongs to another user, who must end it")
    deadline = time.monotonic() + WAIT_SECONDS
    while left := [pid for pid, start in ended if alive(pid, start)]:
        if time.monotonic() >= deadline:
            for pid in left:
                _signal(pid, signal.SIGKILL)
                lines.append(f"process {pid} did not end in {WAIT_SECONDS:.0f} s and was killed")
            break
        time.sleep(0.2)
    return lines


def _signal(pid: int, number: signal.Signals) -> bool:
    """Send a signal; return False if this user is not permitted to."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # already ended
        pass
    except PermissionError:
        return False
    return True
