"""The body of a Slurm job, which submitit pickles, and what it does when its time limit approaches."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from bench.core.errors import BenchError
from bench.core.lazy_libraries import submitit
from bench.launchers.slurm_ends import OUT_OF_TIME_STATUS
from bench.launchers.worker import run_units
from bench.storage.interrupts import Stopped, stop

SAVES_PER_JOB = 20  # a minimum: training that is not saved before the time limit is repeated


@dataclass(frozen=True, slots=True)
class Job:
    """Body of a Slurm job of at most `minutes`, pickled by submitit; `folder` is the launch's folder.

    Near its time limit it goes back to the queue or, with `ends_itself`, ends for the launcher to submit a longer one.
    """

    folder: str
    keys: tuple[str, ...]
    minutes: int
    ends_itself: bool = False

    def __call__(self) -> str:
        """Run this job's unfinished units."""
        try:
            with _time_limit_stops(self.ends_itself):
                from bench.storage.checkpoint import saving_every  # imports torch, which may take long

                # Slurm repeats SIGTERM; only the first may interrupt, or it would disturb the cleanup.
                with saving_every(60 * self.minutes / SAVES_PER_JOB):
                    run_units(Path(self.folder), self.keys, wait=False, once=True)
        except Stopped as stopped:
            if self.ends_itself and stopped.number == signal.SIGUSR2:
                raise SystemExit(OUT_OF_TIME_STATUS) from stopped
            # Cancelled or requeued by Slurm. Records are in files; the remaining units stay unfinished.
            return f"stopped by signal {stopped.number}"
        return "done"

    def checkpoint(self) -> Any:
        """Return the same job to run after a requeue."""
        # Runs in the handler of the signal before a time limit. The requeue's SIGTERM must not interrupt the cleanup.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return submitit.helpers.DelayedSubmission(self)


@contextlib.contextmanager
def _time_limit_stops(ends_itself: bool) -> Iterator[None]:
    """Make submitit's handler of the signal before a time limit raise :class:`Stopped` instead of calling `sys.exit`.

    A `sys.exit` in the middle of a cell would count as a failure of the cell, and so does a limit reached too often,
    unless the job `ends_itself`.
    """
    theirs = signal.getsignal(signal.SIGUSR2)

    def handle(number: int, frame: FrameType | None) -> None:
        assert callable(theirs)
        try:
            theirs(number, frame)
        except submitit.core.utils.UncompletedJobError as error:
            if ends_itself:
                stop(number)
            raise BenchError(
                "its job reached its time limit too often. Give more --time, or more --retries."
            ) from error
        except (SystemExit, OSError, subprocess.SubprocessError):
            # Requeued; or Slurm did not answer, and the launcher submits the job again.
            stop(number)

    if callable(theirs):
        signal.signal(signal.SIGUSR2, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, theirs)
