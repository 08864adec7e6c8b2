"""New processes for the runs of checks and audits, and a limit on the time of one."""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from bench.core import fork_server
from bench.models.registration import OWN_NETS

T = TypeVar("T")


class TooLong(BaseException):
    """A run exceeded its time. Not an `Exception`, which a method could catch."""


def fresh_processes() -> Any:
    """Return :func:`bench.core.fork_server.fresh_processes` with what runs of a method import."""
    ours = ["evaluation.check.check_runs", "experiments.device", "models.build", "training.features"]
    return fork_server.fresh_processes(
        [*(f"bench.{name}" for name in ours), "opacus", "timm", "sklearn", "scipy.stats", *OWN_NETS]
    )


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
    """Return a call for :func:`answered`, as bytes.

    Left to itself, multiprocessing would pass tensors in shared memory, which a confined process cannot open.
    """
    return pickle.dumps((work, parts))


def answered(patience: float | None, call: bytes) -> bytes:
    """Return the pickled result, or error, of a pickled `call`, :func:`limited` to `patience` seconds."""
    work, parts = pickle.loads(call)  # noqa: S301 (from our own process)
    try:
        return pickle.dumps((limited(patience, work, *parts), None))
    except (Exception, TooLong) as error:  # noqa: BLE001 (for the caller)
        error.add_note("".join(traceback.format_exception(error)))  # pickling loses the traceback
        return pickle.dumps((None, error))


def unpickled(answer: bytes) -> Any:
    """Return the result in an `answer`, or raise its error."""
    found, error = pickle.loads(answer)  # noqa: S301 (multiprocessing unpickles what its processes send, too)
    if error is not None:
        raise error
    return found
