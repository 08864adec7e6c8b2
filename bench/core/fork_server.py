"""Processes from a fork server: they inherit nothing from this process, and what they import is imported once."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.util
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

LONGEST_FOLDER = 70  # the longest TMPDIR that leaves room for a socket's name, whose path has at most 104 characters
ENDING = (signal.SIGTERM, signal.SIGHUP)  # a terminal or Slurm sends them to the server too, which would leave orphans
_choosing = threading.Lock()


def fresh_processes(preload: Sequence[str]) -> Any:
    """Return multiprocessing's context for such processes; a new server imports the modules `preload`.

    A process then starts in a fraction of a second. A server that is already running keeps its own modules.
    """
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    with _choosing:
        before = tempfile.gettempdir()
        if len(before) > LONGEST_FOLDER:  # a socket's path would be too long; Python 3.14 uses /tmp by itself
            try:
                tempfile.tempdir = "/tmp"
                multiprocessing.util.get_temp_dir()  # chosen once per process
            finally:
                tempfile.tempdir = before
        if "forkserver" in methods:
            context.set_forkserver_preload(list(preload))
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
            try:
                multiprocessing.forkserver.ensure_running()  # the server and its processes inherit what is blocked
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return context


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Keep processes that start inside the block from first running the user's script, as multiprocessing would."""
    with _choosing:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def begin_process() -> None:
    """Begin a process of :func:`fresh_processes`: it takes signals, and ends when the one that asked for it does.

    Otherwise it would wait for work forever, and its parent, the fork server, would wait for it.
    """
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def watch(sentinel: int) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    if (main := multiprocessing.parent_process()) is not None:
        threading.Thread(target=watch, args=(main.sentinel,), daemon=True).start()
