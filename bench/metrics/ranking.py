"""Ranks of methods by accuracy, in groups that no test tells apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from bench.metrics.intervals import SeedSpread


@dataclass(frozen=True, slots=True)
class Contender:
    """A method's mean accuracy (share) over `seeds`, on `test_records`; `spread` is of one seed."""

    mean: float
    seeds: int
    spread: SeedSpread
    test_records: int

    def gap(self, spread: SeedSpread, rivals: int, confidence: float = 0.95) -> float:
        """Return the smallest lead over another method that is significant, among `rivals` at once.

        One-sided, with Bonferroni's correction: Student's quantile for the seeds and the normal one for the test
        records (not paired), in quadrature. Both sides of the difference are taken to be as uncertain as this one. As
        the other row's deviation is not used, a row gains nothing from seeds that differ.
        """
        level = 1 - (1 - confidence) / max(rivals, 1)
        # Agresti and Coull's share, so that an accuracy of 1 is not certain.
        share = (self.mean * self.test_records + 2) / (self.test_records + 4)
        over_records = ndtri(level) ** 2 * share * (1 - share) / self.test_records
        over_seeds = stdtrit(spread.freedom, level) ** 2 * spread.variance / self.seeds
        return math.sqrt(2 * (over_records + over_seeds))


def difference(
    one: Contender, other: Contender, apart: NDArray[np.float64] | None = None, confidence: float = 0.95
) -> float:
    """Return half the two-sided interval of the difference of two mean accuracies, as a share.

    Each row adds its seeds (Student's t) and its test records (Agresti and Coull's share), in quadrature. With `apart`
    the test records are paired: (n,), for each record the share of seeds of `one` that are right less that of `other`.
    """
    level, squares = 0.5 + confidence / 2, 0.0
    for each in (one, other):
        squares += stdtrit(each.spread.freedom, level) ** 2 * each.spread.variance / each.seeds
        if apart is None:
            share = (each.mean * each.test_records + 2) / (each.test_records + 4)
            squares += ndtri(level) ** 2 * share * (1 - share) / each.test_records
    if apart is not None:
        # Agresti and Min (2005) add a half to each cell of the table of pairs, so that equal answers are not certain.
        n = len(apart) + 2
        squares += ndtri(level) ** 2 * ((np.square(apart).sum() + 1) / n - (apart.sum() / n) ** 2) / n
    return math.sqrt(squares)


def rank_groups(contenders: Sequence[Contender], confidence: float = 0.95) -> tuple[list[tuple[int, int]], list[float]]:
    """Return the first and last rank of each contender's group, and below which mean each group ends.

    `contenders` are in descending order of their means. A group ends before the first row that some row of the group
    leads significantly; the variance of a row's seeds is its own, or, where that is larger, the one pooled over the
    rows up to it. The method that is truly best misses the first group with a probability of at most 1 - `confidence`,
    if its seeds differ no more than those of the rows above it; a method whose seeds differ more must show its rank
    by more seeds.
    """
    rivals, starts, ends = len(contenders) - 1, [], list[float]()
    squares, freedom = 0.0, 0
    for number, one in enumerate(contenders):
        if not ends or one.mean < ends[-1]:
            starts.append(number)
            ends.append(-math.inf)
        spread = one.spread
        squares, freedom = squares + spread.variance * spread.freedom, freedom + spread.freedom
        pooled = SeedSpread(squares / freedom, freedom)
        ends[-1] = max(ends[-1], one.mean - one.gap(max(spread, pooled), rivals, confidence))
    bounds = [*starts, len(contenders)]
    ranks = [(start + 1, end) for start, end in pairwise(bounds) for _ in range(start, end)]
    return ranks, ends
