"""``bench run --launcher dask``: cells on Dask's workers, on this machine or on a running cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager

import dask
from distributed import Client, LocalCluster


@contextmanager
def executor(parallel: int, address: str = "") -> Iterator[Executor]:
    """Yield an executor on the cluster at `address` (tcp://HOST:PORT), by default on `parallel` workers of its own.

    All workers must see the run directory and import `bench`. Dask replaces a worker that dies; the launcher reports
    its cell and submits it again.
    """
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": 0}))
        cluster = address or stack.enter_context(
            LocalCluster(
                n_workers=parallel, threads_per_worker=1, memory_limit=0, dashboard_address=None,
                silence_logs=logging.CRITICAL,
            )
        )  # fmt: skip
        yield stack.enter_context(Client(cluster)).get_executor(pure=False)
