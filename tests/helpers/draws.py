"""Bounds from draws of a mechanism on adjacent inputs."""

from __future__ import annotations

import numpy as np

from helpers.audits import CONFIDENCE, lower_bound

DRAWS = 1_000_000


DELTA = 0.01


def best(bounds: list[tuple[np.ndarray, np.ndarray]], delta: float) -> float:
    """Return the largest lower bound of several sets, each at its share of the error (Bonferroni)."""
    confidence = 1 - (1 - CONFIDENCE) / len(bounds)
    return max(lower_bound(first, second, delta, confidence) for first, second in bounds)
