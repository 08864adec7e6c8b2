"""Worker processes on a CPU."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import torch

from bench.core.processes import end_with_parent


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread inside the block, so that sums have the same order on any number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def worker_pool(workers: int, device: str = "cpu") -> Iterator[ProcessPoolExecutor | None]:
    """Yield `workers` spawned processes (torch's threads do not survive a fork); None for one worker or a GPU."""
    if workers < 2 or device != "cpu":
        yield None
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=start_worker)
    try:
        yield pool
    except BaseException as error:
        if isinstance(error, BrokenProcessPool):
            # Slurm signals a whole job: wait for the signal to end this process too, before the cell counts as failed.
            time.sleep(1.0)
        # Do not wait for work in progress.
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def start_worker() -> None:
    """Set up a worker: one thread, deterministic; see :func:`bench.core.processes.end_with_parent`."""
    end_with_parent()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
