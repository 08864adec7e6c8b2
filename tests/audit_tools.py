"""A lower bound on epsilon from draws of a mechanism on two adjacent inputs, for a set of outputs fixed beforehand."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

CONFIDENCE = 0.999


def lower_bound(first: np.ndarray, second: np.ndarray, delta: float = 0.0, confidence: float = CONFIDENCE) -> float:
    """Return the largest epsilon that the draws refute at `confidence`, in the direction first over second.

    `first` and `second` tell of each draw whether its output fell into the set. Clopper-Pearson bounds on both
    probabilities share the error; (eps, delta)-DP says P[first] <= e^eps P[second] + delta.
    """
    error = (1 - confidence) / 2
    hits, draws = int(first.sum()), len(first)
    low = stats.beta.ppf(error, hits, draws - hits + 1) if hits else 0.0
    hits, draws = int(second.sum()), len(second)
    high = stats.beta.ppf(1 - error, hits + 1, draws - hits) if hits < draws else 1.0
    return math.log((low - delta) / high) if low > delta else -math.inf
