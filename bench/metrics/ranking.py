"""Ranks of methods by accuracy, in groups without significant differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from bench.metrics.intervals import CONFIDENCE, SeedSpread


@dataclass(frozen=True, slots=True)
class Contender:
    """A method's mean accuracy (share) over `seeds`, on `test_records`; `spread` is of one seed."""

    mean: float
    seeds: int
    spread: SeedSpread
    test_records: int
    right: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    """For each test record the share of seeds that are right, the records of `mean` first: (n,). None if not known."""
    test_set: str = ""
    """Names the order of the test records: rows of the same name are compared record by record."""

    def apart(self, other: Contender) -> NDArray[np.float64] | None:
        """Return :attr:`right` minus that of `other`, for each common test record; None where either is not known."""
        if self.right is None or other.right is None:
            return None
        if (self.test_set, self.test_records) != (other.test_set, other.test_records):
            return None
        common = len(self.right) if len(self.right) == len(other.right) else self.test_records
        return self.right[:common] - other.right[:common]

    def leads(self, other: Contender, spread: SeedSpread, rivals: int) -> bool:
        """Return whether the lead over `other` is significant, corrected for `rivals` comparisons.

        One-sided, with Bonferroni's correction: Student's quantile for the seeds and the normal one for the test
        records, in quadrature. One seed and one test record of either side are assumed to be as uncertain as this
        row's. Since the other row's standard deviation is not used, a row gains nothing from seeds that differ. On test
        records where both rows' answers are known, the lead is that of the pairs, and so is its variance where that is
        the smaller one.
        """
        lead, over_pairs, apart = self.mean - other.mean, math.inf, self.apart(other)
        if apart is not None:
            lead, over_pairs = float(apart.mean()), _over_pairs(apart)
        return lead > self.gap(other, spread, rivals, over_pairs)

    def gap(self, other: Contender, spread: SeedSpread, rivals: int, over_pairs: float = math.inf) -> float:
        """Return the smallest lead over `other` that is significant by :meth:`leads`.

        `over_pairs` is its variance over test records whose answers are known.
        """
        level = _level(rivals)
        over_seeds = _over_seeds(spread, level) * (1 / self.seeds + 1 / other.seeds)
        return math.sqrt(ndtri(level) ** 2 * min(self._over_records(other), over_pairs) + over_seeds)

    def _over_records(self, other: Contender | None = None) -> float:
        # Agresti and Coull's share, so that an accuracy of 1 is not certain.
        share = (self.mean * self.test_records + 2) / (self.test_records + 4)
        return share * (1 - share) * (1 / self.test_records + (0 if other is None else 1 / other.test_records))


def _level(rivals: int) -> float:
    return 1 - (1 - CONFIDENCE) / max(rivals, 1)


def _over_seeds(spread: SeedSpread, level: float) -> float:
    """Return the square of one seed's distance from the mean that is exceeded with a probability of 1 - `level`."""
    return float(stdtrit(spread.freedom, level) ** 2 * spread.variance)


def _over_pairs(apart: NDArray[np.float64]) -> float:
    # Agresti and Min (2005) add a half to each cell of the table of pairs, so that equal answers are not certain.
    n = len(apart) + 2
    return float(((np.square(apart).sum() + 1) / n - (apart.sum() / n) ** 2) / n)


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two mean accuracies, as a share; `half` is half of its two-sided interval."""

    mean: float
    half: float
    paired: int
    """Number of test records on which both rows' answers are compared; 0 where they are not known."""


def difference(one: Contender, other: Contender) -> Difference:
    """Return the difference of two rows, on the same test records where the answers of both are known.

    Each row adds its seeds (Student's t) and its test records (Agresti and Coull's share, or the pairs), in quadrature.
    """
    level, squares, apart = 0.5 + CONFIDENCE / 2, 0.0, one.apart(other)
    for each in (one, other):
        squares += _over_seeds(each.spread, level) / each.seeds
        squares += ndtri(level) ** 2 * each._over_records() * (apart is None)
    if apart is None:
        return Difference(one.mean - other.mean, math.sqrt(squares), 0)
    squares += ndtri(level) ** 2 * _over_pairs(apart)
    return Difference(float(apart.mean()), math.sqrt(squares), len(apart))


def rank_groups(contenders: Sequence[Contender], rows: int = 0) -> tuple[list[tuple[int, int]], float]:
    """Return the first and last rank of each contender's group, and the smallest significant lead of the first.

    `contenders` are in descending order of their means; `rows` is the number of rows from which they were chosen as the
    best of their methods (0: their own). A group is the smallest of which some row significantly leads each row below
    it; the spread of a row's seeds is its own or the one pooled over the rows at least as accurate, whichever makes
    leads less significant. The truly best method misses the first group with a probability of at most 5% if its seeds
    differ no more than those of the rows above it; a method whose seeds differ more needs more seeds to show its rank.
    For pairs of rows with known answers, smaller leads are significant.
    """
    rivals, spreads = max(rows, len(contenders)) - 1, list[SeedSpread]()
    level = _level(rivals)
    for one in contenders:
        above = [other.spread for other in contenders if other.mean >= one.mean]
        freedom = sum(spread.freedom for spread in above)
        pooled = SeedSpread(sum(spread.variance * spread.freedom for spread in above) / freedom, freedom)
        # Not the larger variance: a pooled one has more degrees of freedom, so that a wider row above could help.
        spreads.append(max(one.spread, pooled, key=lambda spread: _over_seeds(spread, level)))
    needed = min((contenders[0].gap(other, spreads[0], rivals) for other in contenders[1:]), default=0.0)
    leaders, start, ranks = [0] * len(contenders), 0, list[tuple[int, int]]()
    while start < len(contenders):
        for number in range(start + 1, len(contenders)):
            better = range(max(start, leaders[number]), number)  # its own number where no row of the group leads it
            found = (row for row in better if contenders[row].leads(contenders[number], spreads[row], rivals))
            leaders[number] = next(found, number)
        end = start + 1
        while any(leader >= end for leader in leaders[end:]):
            end += 1
        ranks += [(start + 1, end)] * (end - start)
        start = end
    return ranks, needed


HALVES = 50
"""Random halves of the test records on which :func:`steadiness` ranks again."""


def steadiness(contenders: Sequence[Contender]) -> tuple[int, int] | None:
    """Return on how many of :data:`HALVES` halves of the test records the first contender stays first, and of how many.

    Only contenders whose answers can be compared with those of the first take part; None if there is none.
    """
    known = [apart for other in contenders[1:] if (apart := contenders[0].apart(other)) is not None]
    if not known:
        return None
    common = min(map(len, known))
    leads, draws = np.stack([apart[:common] for apart in known]), np.random.default_rng(0)
    halves = (draws.permutation(common)[: (common + 1) // 2] for _ in range(HALVES))
    return sum(bool((leads[:, half].mean(1) >= 0).all()) for half in halves), 1 + len(known)
