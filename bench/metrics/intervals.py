"""Confidence intervals of an accuracy over training seeds and test records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scipy.special import ndtri, stdtrit

CONFIDENCE = 0.95
ENOUGH = 5
"""Seeds from which a row's own deviation is used alone."""


class SeedSpread(NamedTuple):
    """Variance of one seed's accuracy, with the degrees of freedom of its estimate."""

    variance: float
    freedom: int
    borrowed: bool = False
    """Whether other rows of the method contributed."""


def seed_spread(own: Sequence[float], others: Iterable[Sequence[float]] = ()) -> SeedSpread | None:
    """Return the variance over seeds of a row with accuracies `own`, None if no row has two seeds.

    A row with fewer than :data:`ENOUGH` seeds borrows: its variance is pooled with that of the `others`, unless its own
    is larger, so that a row whose seeds differ never looks precise because the others' do not.
    """
    squares, freedom = _squares(own)
    parts = [_squares(other) for other in others]
    all_squares, all_freedom = squares + math.fsum(s for s, _ in parts), freedom + sum(f for _, f in parts)
    if all_freedom == 0:
        return None
    keeps = freedom > 0 and squares / freedom >= all_squares / all_freedom
    if keeps or freedom == all_freedom or len(own) >= ENOUGH:
        return SeedSpread(squares / freedom, freedom)
    return SeedSpread(all_squares / all_freedom, all_freedom, borrowed=True)


def _squares(values: Sequence[float]) -> tuple[float, int]:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values), len(values) - 1


def accuracy_interval(
    accuracies: Sequence[float], test_records: int, spread: SeedSpread | None = None
) -> tuple[float, float]:
    """Return an interval for a method's expected accuracy that covers new training seeds and new test records.

    `accuracies` are shares in [0, 1], one per seed, all measured on the same `test_records`. On each side of their mean
    it adds, in quadrature, Wilson's interval for the test records and Student's t interval for the seeds (Zou and
    Donner 2008). The seeds' variance is `spread`, by default that of `accuracies`; with one seed and no `spread`, only
    the test records count.
    """
    count, mean = len(accuracies), math.fsum(accuracies) / len(accuracies)
    spread = seed_spread(accuracies) if spread is None else spread
    z = float(ndtri(0.5 + CONFIDENCE / 2))
    shrunk = (mean + z * z / (2 * test_records)) / (1 + z * z / test_records)
    half = z / (1 + z * z / test_records) * math.sqrt(mean * (1 - mean) / test_records + (z / (2 * test_records)) ** 2)
    seeds = 0.0
    if spread is not None:
        seeds = float(stdtrit(spread.freedom, 0.5 + CONFIDENCE / 2)) * math.sqrt(spread.variance / count)
    below, above = math.hypot(mean - shrunk + half, seeds), math.hypot(shrunk + half - mean, seeds)
    return max(0.0, mean - below), min(1.0, mean + above)
