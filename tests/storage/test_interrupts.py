"""Ctrl-C and SIGTERM raise one exception, and never between acquiring a resource and registering its release."""

from __future__ import annotations

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.storage import locks
from bench.storage.interrupts import Stopped, no_interrupt, stopping_signals, unstopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_exception_that_knows_its_number(number: signal.Signals) -> None:
    outside = signal.signal(number, signal.SIG_DFL)  # nohup, for example, ignores SIGHUP
    try:
        with pytest.raises(Stopped) as stopped, stopping_signals():
            os.kill(os.getpid(), number)
        assert stopped.value.number == number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, outside)


def test_a_closed_terminal_is_ignored_where_it_was_before() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stopping_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_that_a_plug_in_raises_is_its_error_and_ctrl_c_is_none(request: pytest.FixtureRequest) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(BenchError, match="mine raises KeyboardInterrupt"), no_interrupt("outer"), no_interrupt("mine"):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), no_interrupt("outer"), no_interrupt("mine"):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outside_the_main_thread_signals_stay_with_the_program() -> None:
    def handler() -> object:
        with stopping_signals():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handler).result() is signal.getsignal(signal.SIGINT)


def test_a_signal_waits_until_the_moment_is_over() -> None:
    done = []

    def moments() -> None:
        with unstopped():
            with unstopped():
                os.kill(os.getpid(), signal.SIGTERM)
                done.append("inner")
            done.append("outer")
        done.append("after")

    with pytest.raises(Stopped), stopping_signals():
        moments()
    assert done == ["inner", "outer"]


def test_a_moment_without_a_signal_is_nothing() -> None:
    with stopping_signals(), unstopped():
        pass
    with pytest.raises(ValueError, match="its own"), unstopped():
        raise ValueError("its own error passes")


@pytest.mark.parametrize("when", ["taking", "taken", "giving up"])
def test_a_signal_at_a_bad_moment_leaves_no_lock_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    path, take, release = tmp_path / "lock", locks.take, locks.Held.release

    def giving_up(self: locks.Held) -> None:
        if when == "giving up":
            os.kill(os.getpid(), signal.SIGTERM)
        release(self)

    monkeypatch.setattr(locks.Held, "release", giving_up)

    def work() -> None:
        with stopping_signals(), contextlib.ExitStack() as claimed:
            with unstopped():
                held = take(path)
                os.kill(os.getpid(), signal.SIGTERM if when == "taking" else 0)
                assert held is not None
                claimed.enter_context(held)
            os.kill(os.getpid(), signal.SIGTERM if when == "taken" else 0)

    with pytest.raises(Stopped):
        work()
    assert not path.exists()
    held = take(path)
    assert held is not None
    release(held)
