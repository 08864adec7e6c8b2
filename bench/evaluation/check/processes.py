"""New processes for the runs of checks and audits, and a limit on the time of one."""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import pickle
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from bench.models.registration import OWN_NETS

LONGEST_FOLDER = 70  # the longest TMPDIR that leaves room for a socket's name, whose path has at most 104 characters
_choosing = threading.Lock()

T = TypeVar("T")


class TooLong(BaseException):
    """A run exceeded its time. Not an `Exception`, which a method could catch."""


def fresh_processes() -> Any:
    """Return the context whose processes inherit nothing from this one."""
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
    if "forkserver" in methods:  # imports happen once, so that processes start in a fraction of a second
        ours = ["evaluation.check.check_runs", "experiments.device", "models.build", "training.features"]
        others = ["opacus", "timm", "sklearn", "scipy.stats"]
        context.set_forkserver_preload([*(f"bench.{name}" for name in ours), *others, *OWN_NETS])
    return context


def limited(patience: float | None, work: Callable[..., T], *parts: Any) -> T:
    """Return the result of `work` within `patience` seconds; call it in this process's main thread."""

    def end(number: int, frame: object) -> None:
        raise TooLong

    if patience is not None and hasattr(signal, "setitimer"):  # not on Windows
        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, patience)
    try:
        return work(*parts)
    finally:
        if patience is not None and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def pickled(work: Callable[..., object], *parts: object) -> bytes:
    """Return a call for :func:`answered`, as bytes: multiprocessing would pass tensors in shared memory.

    A confined process cannot open that.
    """
    return pickle.dumps((work, parts))


def answered(patience: float | None, call: bytes) -> bytes:
    """Return the pickled result, or error, of a pickled `call`, :func:`limited` to `patience` seconds."""
    work, parts = pickle.loads(call)  # noqa: S301 (from our own process)
    try:
        return pickle.dumps((limited(patience, work, *parts), None))
    except (Exception, TooLong) as error:  # noqa: BLE001 (for the caller)
        error.add_note("".join(traceback.format_exception(error)))  # pickles lose it
        return pickle.dumps((None, error))


def unpickled(answer: bytes) -> Any:
    """Return the result in an `answer`, or raise its error."""
    found, error = pickle.loads(answer)  # noqa: S301 (multiprocessing unpickles what its processes send, too)
    if error is not None:
        raise error
    return found
