"""Ctrl-C, SIGTERM and a closed terminal as an exception, and blocks that delay it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bench.core.errors import BenchError


class Stopped(BaseException):
    """A signal `number` that ends this process. A BaseException, because it is not a failure of a cell."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Waiting:
    """Number of open blocks that delay signals, and the pending signal."""

    depth = 0
    number: int | None = None


def stop(number: int) -> None:
    """Raise :class:`Stopped` for the signal `number`, now or when the open :func:`unstopped` blocks end."""
    if _Waiting.depth == 0:
        raise Stopped(number)
    _Waiting.number = number


@contextmanager
def stopping_signals(once: bool = False) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into :class:`Stopped` inside the block, so that locks and displays close.

    Closing may take long, so a second signal kills the process; `once` ignores it instead, for senders that repeat.
    SIGHUP stays ignored if it already is, as under nohup.
    Outside the main thread, where Python cannot set handlers, the host program keeps handling signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)

    def handle(number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN if once else signal.SIG_DFL)
        stop(number)

    before = {number: signal.signal(number, handle) for number in numbers}
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


class _Pressed:
    """How often Ctrl-C was pressed inside :func:`no_interrupt`."""

    times = 0


@contextmanager
def no_interrupt(who: str) -> Iterator[None]:
    """Convert a KeyboardInterrupt that a plug-in inside the block raises without Ctrl-C to a :class:`BenchError`."""
    before = _Pressed.times
    counting = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    counting = counting and threading.current_thread() is threading.main_thread()
    if counting:
        signal.signal(signal.SIGINT, _count)
    try:
        yield
    except KeyboardInterrupt as error:
        if _Pressed.times > before:
            raise
        raise BenchError(f"{who} raises KeyboardInterrupt, as Ctrl-C does. Let it raise another exception.") from error
    finally:
        if counting:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _count(number: int, frame: FrameType | None) -> None:
    _Pressed.times += 1
    signal.default_int_handler(number, frame)
