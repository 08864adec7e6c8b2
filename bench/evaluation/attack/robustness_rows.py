"""Figures of a robustness sweep: accuracy by size, the median size, and the test for masked gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scipy import stats
from torch import Tensor

from bench.privacy.auditing.bounds import clopper_pearson

CONFIDENCE = 0.95
MASKED = 0.01  # p-value over all sizes jointly below which Square beats PGD


@dataclass(frozen=True, slots=True)
class RobustnessRow:
    """The accuracy that one attack leaves at one size, with Clopper-Pearson bounds (95%, two-sided) for new images.

    `beats_pgd`, for Square if PGD ran, is the one-sided p-value of the exact test on images that only one fooled.
    """

    attack: str
    perturbation: float
    accuracy: float
    n: int
    low: float
    high: float
    beats_pgd: float | None = None


def rows_of(withstood: Mapping[str, Mapping[float, Tensor]]) -> tuple[RobustnessRow, ...]:
    """Return a row for each attack and size of :meth:`bench.interface.RobustnessAttack.withstood`, in its order."""
    return tuple(
        _row(name, size, right, withstood["pgd"][size] if name == "square" and "pgd" in withstood else None)
        for name, sizes in withstood.items()
        for size, right in sizes.items()
    )


def median_perturbations(rows: Iterable[RobustnessRow]) -> dict[str, float]:
    """Return, by attack, the least size that fools the student on half of the images, infinite if none does."""
    medians: dict[str, float] = {}
    for row in sorted(rows, key=lambda row: row.perturbation):
        if row.accuracy <= 0.5:
            medians[row.attack] = min(row.perturbation, medians.get(row.attack, math.inf))
        else:
            medians.setdefault(row.attack, math.inf)
    return medians


def masked(rows: Iterable[RobustnessRow]) -> bool:
    """Return whether gradients are masked: gradient-free Square beats PGD by more than noise at some size."""
    values = [row.beats_pgd for row in rows if row.beats_pgd is not None and row.perturbation > 0]
    return bool(values) and min(values) * len(values) < MASKED


def _row(attack: str, size: float, right: Tensor, pgd: Tensor | None) -> RobustnessRow:
    hits, count = int(right.sum()), int(right.numel())
    low, high = clopper_pearson(hits, count, CONFIDENCE)
    better = None
    if pgd is not None:
        square_only, pgd_only = int((pgd & ~right).sum()), int((right & ~pgd).sum())
        # If both are equally strong, each image that only one of them fooled is a fair coin.
        better = float(stats.binom.sf(square_only - 1, square_only + pgd_only, 0.5)) if square_only else 1.0
    return RobustnessRow(attack, size, hits / count, count, low, high, better)
