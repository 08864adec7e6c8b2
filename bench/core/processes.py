"""Setup that every worker process needs, without importing torch."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.core.lazy_libraries import torch


def available_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not available on all systems
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Return the size of this machine's memory, or 2**62 if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


def end_with_parent() -> None:
    """Make a worker ignore Ctrl-C, which its parent handles; see also :func:`die_with_parent`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, on Linux; the setting survives an exec."""
    if sys.platform.startswith("linux"):
        set_parent_death_signal = 1
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def peak_memory_mib(*, children: bool = False) -> float:
    """Return the peak memory of this process in MiB; with `children`, of its largest ended child if that is more."""
    kinds = [resource.RUSAGE_SELF, *([resource.RUSAGE_CHILDREN] if children else [])]
    peak = max(resource.getrusage(kind).ru_maxrss for kind in kinds)
    # Kibibytes on Linux, bytes on macOS.
    return round(peak / (1024 * 1024 if sys.platform == "darwin" else 1024), 1)


@functools.cache
def processor() -> str:
    """Return the processor's name, model and vector instructions that torch uses; they decide how sums round."""
    named = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):  # only Linux has this file
        lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines())
        told: dict[str, str] = {}
        for name, _, value in lines:
            told.setdefault(name.strip(), value.strip())
        model = ", ".join(f"{name} {told[name]}" for name in ("cpu family", "model", "stepping") if name in told)
        named = told.get("model name", named) + f" ({model})" * bool(model)
    return f"{named}, {torch.backends.cpu.get_cpu_capability()}"


@contextlib.contextmanager
def owner_only(private: bool) -> Iterator[None]:
    """If `private`, make files written inside the block readable only by the owner. Changes the process-wide umask."""
    before = os.umask(0o077) if private else None
    try:
        yield
    finally:
        if before is not None:
            os.umask(before)


SAFE_PATH = "PYTHONSAFEPATH"


def keep_path() -> None:
    """Let child processes import from the working directory only if this one does.

    pip's script does not; otherwise a file bench.py there would hide this program from its workers and jobs.
    """
    with contextlib.suppress(FileNotFoundError):  # the working directory is gone
        if "" not in sys.path and os.getcwd() not in map(os.path.abspath, sys.path):
            os.environ[SAFE_PATH] = "1"
