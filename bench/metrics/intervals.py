"""Confidence intervals of an accuracy over training seeds and test records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import ndtri, stdtrit


def accuracy_interval(accuracies: Sequence[float], test_records: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval for a method's expected accuracy that covers new training seeds and new test records.

    `accuracies` are shares in [0, 1], one per seed, all measured on the same `test_records`. On each side of their mean
    it adds, in quadrature, Wilson's interval for the test records and Student's t interval for the seeds (Zou and
    Donner 2008); with one seed only the test records count.
    """
    count, mean = len(accuracies), math.fsum(accuracies) / len(accuracies)
    z = float(ndtri(0.5 + confidence / 2))
    shrunk = (mean + z * z / (2 * test_records)) / (1 + z * z / test_records)
    half = z / (1 + z * z / test_records) * math.sqrt(mean * (1 - mean) / test_records + (z / (2 * test_records)) ** 2)
    seeds = 0.0
    if count > 1:
        variance = math.fsum((accuracy - mean) ** 2 for accuracy in accuracies) / (count - 1)
        seeds = float(stdtrit(count - 1, 0.5 + confidence / 2)) * math.sqrt(variance / count)
    below, above = math.hypot(mean - shrunk + half, seeds), math.hypot(shrunk + half - mean, seeds)
    return max(0.0, mean - below), min(1.0, mean + above)
