"""Ctrl-C and SIGTERM as an exception, and blocks that delay it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """A signal that ends this process; a BaseException, because it is no failure of a cell; `number` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Waiting:
    """Number of open delaying blocks, and the pending signal."""

    depth = 0
    number: int | None = None


def stop(number: int) -> None:
    """Raise :class:`Stopped` for the signal `number`, now or when the open :func:`unstopped` blocks end."""
    if _Waiting.depth == 0:
        raise Stopped(number)
    _Waiting.number = number


@contextmanager
def stopping_signals(once: bool = False) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into :class:`Stopped` inside the block, so that locks and displays close.

    Closing may take long, so a second signal ends the process. `once` ignores it instead, for senders that repeat.
    Outside the main thread, where Python sets no handlers, signals stay with the program that runs it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN if once else signal.SIG_DFL)
        stop(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def unstopped() -> Iterator[None]:
    """Delay :class:`Stopped` until the block ends, for steps that must not be separated from their cleanup."""
    _Waiting.depth += 1
    try:
        yield
    finally:
        _Waiting.depth -= 1
        if _Waiting.depth == 0 and _Waiting.number is not None:
            number, _Waiting.number = _Waiting.number, None
            raise Stopped(number)
