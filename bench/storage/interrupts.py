"""Ctrl-C and SIGTERM as an exception that closes what is open, and moments in which it must wait."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """Ctrl-C or SIGTERM: not an error of a cell, so not an Exception. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Waiting:
    """How many moments are open in which a signal must wait, and the signal that waits."""

    depth = 0
    number: int | None = None


@contextmanager
def stopping_signals(once: bool = False) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into :class:`Stopped` while open, so that locks and displays are closed.

    Closing may wait for work of other processes. A second signal does not: it ends this process as if nobody listened.
    With `once` it is ignored: for senders that repeat themselves and have SIGKILL for the impatient.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN if once else signal.SIG_DFL)
        if _Waiting.depth:
            _Waiting.number = number
            return
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def unstopped() -> Iterator[None]:
    """Let :class:`Stopped` wait until the block is left: for what lies between doing a thing and its undoing."""
    _Waiting.depth += 1
    try:
        yield
    finally:
        _Waiting.depth -= 1
        if _Waiting.depth == 0 and _Waiting.number is not None:
            number, _Waiting.number = _Waiting.number, None
            raise Stopped(number)
