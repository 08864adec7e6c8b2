"""Makes the rows of a matrix product independent of their position on AMD processors.

By default, MKL's kernels for AMD sum a row in another order if its address is not a multiple of 16 bytes. Removing a
record moves all later ones, which changes the last bits of their values. MKL's setting for reproducible results avoids
this without a loss of speed, but has no effect once MKL has multiplied in the process:
:func:`bench.training.by_record.in_equal_batches` tests for that.
"""

from __future__ import annotations

import os
from contextlib import suppress

SETTING = "MKL_CBWR"
REPRODUCIBLE = "AVX2"


def fix_products() -> None:
    """Choose MKL's reproducible kernels for AMD, unless the user chose a mode."""
    if "AuthenticAMD" in _processor():
        os.environ.setdefault(SETTING, REPRODUCIBLE)


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        return file.read(200)  # the first processor's vendor; the file may describe hundreds
    return os.environ.get("PROCESSOR_IDENTIFIER", "")  # Windows
