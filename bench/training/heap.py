"""Tune glibc's heap to keep freed memory in the process, unless there is a lot of it."""

from __future__ import annotations

import ctypes


class _Totals(ctypes.Structure):
    """``struct mallinfo2``: bytes and counts, over all arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def tune_malloc() -> bool:
    """Keep freed memory in the process, which saves page faults at every step; return whether glibc accepted this."""
    try:
        mallopt = ctypes.CDLL(None).mallopt  # the environment variables only work if set before Python starts
    except AttributeError:
        return False
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    wanted = ((trim_threshold, 2**31 - 1), (top_pad, 2**28), (mmap_max, 0))
    return all([mallopt(option, value) == 1 for option, value in wanted])


def release_freed(above: int = 2**29) -> bool:
    """Return freed pages to the system if they exceed `above` bytes; return whether that was done.

    Call it between large pieces of work. After :func:`tune_malloc`, freed blocks rarely fit the next request, so a
    process that trains large nets one after another would grow its heap to several times what they hold.
    """
    try:
        libc = ctypes.CDLL(None)
        totals, trim = libc.mallinfo2, libc.malloc_trim
    except AttributeError:  # another libc, or glibc before 2.33
        return False
    totals.restype = _Totals
    return bool(totals().fordblks > above) and trim(0) == 1
