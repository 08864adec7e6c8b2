"""Worker processes on a CPU: how many, and how they start."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not known on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
