"""Attempts at a cell or command: where each ran, how it ended, and its output.

    RUN_DIR/launches/ID/attempts/KEY.N.json   the attempt number N at KEY
    RUN_DIR/launches/ID/attempts/KEY.N.log    its output

The process that makes the attempt writes both files; the launcher completes them if that process dies. They lie in the
launch's folder, which only the owner may read, because exact memory use may reveal private data. Names of nodes are not
private.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.core.plain_files import read_plain
from bench.core.processes import peak_memory_mib
from bench.core.rows import Row, json_object
from bench.storage.files import write_atomic
from bench.storage.interrupts import Stopped

DIED = "its process died"


class Attempt(Row):
    """One attempt, numbered from 1; the last ones of a cell may still be running."""

    number: int
    job: str = ""
    """Slurm's job."""
    node: str = ""
    started: str = ""
    ended: str = ""
    reason: str = ""
    """How it ended: done, failed, or the reason why it left no record; empty while it runs."""
    peak_memory_mib: float | None = None
    """Peak memory of its process, including earlier cells in it; if it was killed, the last value seen."""

    @property
    def words(self) -> str:
        """Return a description of the attempt."""
        job = f"job {self.job}" if self.job else ""
        where = " ".join(filter(None, [job, f"on {self.node}" if self.node else ""]))
        peak = "" if self.peak_memory_mib is None else f"peak memory {self.peak_memory_mib:.0f} MiB"
        began = f"began {self.started}" if self.started else ""
        return ", ".join(filter(None, [where, began, self.reason or "runs", peak]))


def job_here() -> str:
    """Return the id of this process's Slurm job, or ""."""
    job = os.environ.get("SLURM_ARRAY_JOB_ID", os.environ.get("SLURM_JOB_ID", ""))
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{job}_{task}" if job and task else job


def log_of(launch: Path, key: str, number: int) -> Path:
    """Return the path of an attempt's output."""
    return launch / "attempts" / f"{key}.{number}.log"


def attempts_of(launch: Path, key: str) -> list[Attempt]:
    """Return the attempts at `key` in the folder of a launch, in order, up to the first damaged one."""
    found: list[Attempt] = []
    while True:
        try:
            path = launch / "attempts" / f"{key}.{len(found) + 1}.json"
            found.append(Attempt.model_validate(json_object(read_plain(path))))
        except (OSError, ValueError):
            return found


def _write(launch: Path, key: str, attempt: Attempt) -> None:
    path = launch / "attempts" / f"{key}.{attempt.number}.json"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomic(path, attempt.to_json().encode(), mode=0o600)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def ended(launch: Path, key: str, job: str, node: str, reason: str, memory: float | None) -> None:
    """Write how the last attempt at `key`, by `job`, ended without a record; a job that never began gets one too."""
    known = attempts_of(launch, key)
    last = known[-1] if known and known[-1].job == job else Attempt(number=len(known) + 1, job=job, node=node)
    memory = max(filter(None, (memory, last.peak_memory_mib)), default=None)
    told = {"reason": reason, "node": last.node or node, "ended": last.ended or _now(), "peak_memory_mib": memory}
    _write(launch, key, last.model_copy(update=told))


@dataclass(slots=True)
class Trial:
    """An attempt of this process: the file for its output, and how it ends."""

    log: Path
    reason: str = "failed"


@contextlib.contextmanager
def attempt(launch: Path, key: str, peak: Callable[[], float | None] = peak_memory_mib) -> Iterator[Trial]:
    """Write the next attempt at `key` to a launch's folder, before and after the block; the caller holds the claim.

    `peak` returns the peak memory at the end. Raises :class:`BenchError` if it cannot be written.
    """
    known = attempts_of(launch, key)
    if known and not known[-1].reason:
        _write(launch, key, known[-1].model_copy(update={"reason": DIED}))
    mine = Attempt(
        number=len(known) + 1, job=job_here(), node=os.environ.get("SLURMD_NODENAME", socket.gethostname()),
        started=_now(),
    )  # fmt: skip
    _write(launch, key, mine)
    trial = Trial(log_of(launch, key, mine.number))
    try:
        yield trial
    except Stopped as stopped:
        trial.reason = "out of time" if stopped.number == signal.SIGUSR2 else "stopped"
        raise
    finally:
        told = {"reason": trial.reason, "ended": _now(), "peak_memory_mib": peak()}
        _write(launch, key, mine.model_copy(update=told))


@contextlib.contextmanager
def output_into(log: Path) -> Iterator[None]:
    """Append standard output and error of this process and its children to `log` inside the block."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    before = [os.dup(number) for number in (1, 2)]
    try:
        _redirect([descriptor, descriptor])
        yield
    finally:
        _redirect(before)
        for each in (descriptor, *before):
            os.close(each)


def _redirect(descriptors: list[int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for number, descriptor in zip((1, 2), descriptors, strict=True):
        os.dup2(descriptor, number)
