"""Worker processes on a CPU: how many, and how they start."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import torch


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not known on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operations on one thread inside: sums then have one order, whatever the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def worker_pool(workers: int, device: str = "cpu") -> Iterator[ProcessPoolExecutor | None]:
    """Open `workers` fresh processes (never forked: torch's threads do not survive that) that end with this one.

    None for one worker, or where the work is for a GPU, which one process fills.
    """
    if workers < 2 or device != "cpu":
        yield None
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=start_worker)
    try:
        yield pool
    except BaseException as error:
        if isinstance(error, BrokenProcessPool):
            # Who ended the workers by a signal (Slurm signals all processes of a job) may have sent it to this one as
            # well: then it is to end by that signal, and not with an error that counts as the cell's.
            time.sleep(1.0)
        # Stopped or failed: the work in progress is not waited for. What was finished is kept.
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def start_worker() -> None:
    """Ask Linux to end this worker when the process that started it is killed, and leave Ctrl-C to that process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    if sys.platform.startswith("linux"):
        set_parent_death_signal = 1
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
