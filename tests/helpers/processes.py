"""Processes and ports of this machine, for tests that start daemons."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path


def wait(what: str, ready: Callable[[], bool], seconds: float) -> None:
    """Poll until the condition holds; raise when the time is over."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} seconds")
        time.sleep(0.1)


def state(pid: int) -> str:
    """The state letter of a process, or ""."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return ""


def name(pid: int) -> str:
    """The name of a process, or ""."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def parent(pid: int) -> int:
    """The parent of a process, or 0."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return 0


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return state(pid) not in ("", "Z", "X")


def kill(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to the processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def free_ports(count: int) -> list[int]:
    """Distinct unused ports of this machine."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
