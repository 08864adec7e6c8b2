"""What the counts, deltas and confidences of an audit may be; every mistake is a :class:`BenchError`."""

from __future__ import annotations

import math

import numpy as np

from bench.core.errors import BenchError


def check_counts(part: str, hits: int, whole: str, trials: int) -> None:
    """Raise :class:`BenchError` unless both are whole numbers with 0 <= `hits` <= `trials` and `trials` >= 1."""
    for what, value in ((part, hits), (whole, trials)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise BenchError(f"the number of {what} must be whole, not {value!r}.")
    if trials < 1 or not 0 <= hits <= trials:
        raise BenchError(f"there must be at least 1 of {whole} and from 0 to all {part}, not {hits} of {trials}.")


def check_audit_delta(delta: float) -> float:
    """Return `delta`; raise :class:`BenchError` where it does not lie in [0, 1). An audit may be of pure epsilon."""
    if math.isnan(delta) or not 0 <= delta < 1:
        raise BenchError(f"delta of an audit must lie in [0, 1), not {delta}. Try 0 or 1e-5.")
    return float(delta)


def check_confidence(confidence: float) -> float:
    """Return `confidence`; raise :class:`BenchError` where it does not lie strictly between 0 and 1."""
    if math.isnan(confidence) or not 0 < confidence < 1:
        raise BenchError(f"confidence must lie strictly between 0 and 1, not {confidence}. Try 0.95.")
    return float(confidence)
