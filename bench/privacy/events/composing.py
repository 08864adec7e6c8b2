"""Composition of many equal privacy losses on a grid, rounded pessimistically."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import fft

from bench.core.lazy_libraries import dp_accounting, pld_pmf

LARGEST_GRID = 2**24
"""The most points of a composed PLD; more would take gigabytes."""
MOST_HALVINGS = 12
"""How often an interval is halved at most: a grid of a single loss has to fit the memory."""
FINENESS = 50
"""The deviation of one of many losses spans at least about so many points of a finer grid."""
ENOUGH = 20
"""Points of the common grid in a loss's deviation from which on no finer one is needed."""


def self_composed(one: Any, count: int) -> Any | None:
    """Return the PLD of `count` losses distributed as `one`, None if it would be larger than :data:`LARGEST_GRID`.

    Like dp-accounting's ``self_compose``, which first raises a sparse PLD's size to the power `count`.
    """
    if count == 1:
        return one
    if count < 10:
        return one.self_compose(count)
    remove, add = one._pmf_remove.to_dense_pmf(), one._pmf_add.to_dense_pmf()
    if count > 10**5:
        for law in (remove, add):
            low, high = dp_accounting.pld.common.compute_self_convolve_bounds(law._probs, count, 1e-15)
            if high - low >= LARGEST_GRID:
                return None
    return type(one)(remove, None if one._symmetric else add).self_compose(count)


def halvings(count: int, interval: float, deviation: float) -> int:
    """Return how often `interval` is halved for the first of `count` losses of this `deviation`."""
    coarse = 0 < deviation < interval * ENOUGH
    wanted = math.ceil(math.log2(FINENESS * interval / deviation)) if coarse else 0
    return max(0, min(wanted, int(math.log(count, 4)), MOST_HALVINGS))


def many_composed(make: Callable[[float], Any], count: int, interval: float, deviation: float) -> Any | None:
    """Return the PLD of `count` losses on a grid of `interval`; `make` returns that of one. None if too large.

    Splitting a loss between points of a grid raises its variance. Where that matters, about 4^k losses are first
    composed on a grid 2^k times finer: their sum is 2^k times as wide as one of them.
    """
    k = halvings(count, interval, deviation)
    one = make(interval / 2**k)
    if not k:
        return self_composed(one, count)
    some, left = _share(count, k)

    def composed(pmf: Any) -> Any | None:
        many, rest = _coarser(_power(pmf, some), 2**k), _coarser(_power(pmf, left), 2**k) if left else None
        total = None if many is None else _power(many, count // some)
        if total is None or not left:
            return total
        return None if rest is None else total.compose(rest)

    remove = composed(one._pmf_remove)
    add = None if one._symmetric or remove is None else composed(one._pmf_add)
    return None if remove is None or (add is None and not one._symmetric) else type(one)(remove, add)


def _share(count: int, k: int) -> tuple[int, int]:
    """Return how many of `count` losses to compose on the finer grid at a time, and how many are left.

    Between 4^k / 2 and 4^k at a time, the number that leaves the fewest.
    """
    sizes = np.arange(4**k // 2, 4**k + 1)
    some = int(sizes[::-1][np.argmin(count % sizes[::-1])])
    return some, count % some


def many_blur(count: int, interval: float, deviation: float) -> float:
    """Return :attr:`Composed.blur` of :func:`many_composed`."""
    k = halvings(count, interval, deviation)
    if not k:
        return count * interval**2
    some, left = _share(count, k)
    return float(count * (interval / 2**k) ** 2 + (count // some + (left > 0)) * interval**2)


TAIL = 1e-15
"""The mass that is cut from a composed PLD, as by dp-accounting."""


def _power(pmf: Any, count: int) -> Any | None:
    """Return the pmf of the sum of `count` losses like `pmf`, on only as many points as its tails need.

    None if they need more than four times :data:`LARGEST_GRID`.
    """
    dense = pmf.to_dense_pmf()
    masses, place = dense._probs, np.arange(dense.size, dtype=np.float64)
    mean = float(masses @ place)
    deviation = math.sqrt(max(count * float(masses @ (place - mean) ** 2), 1.0))
    low, high = 0.0, float((dense.size - 1) * count)
    steepest = 12 / deviation
    for slope in np.geomspace(min(20 / dense.size, steepest), steepest, 16):  # Chernoff's bounds
        for sign in (1, -1):
            with np.errstate(over="ignore", invalid="ignore"):  # no mass times infinity: no bound
                grown = float(np.abs(masses) @ np.exp(sign * slope * (place - mean)))
            reach = (count * math.log(grown) + math.log(2 / TAIL)) / slope if 0 < grown < math.inf else math.inf
            if sign > 0:
                high = min(high, count * mean + reach)
            else:
                low = max(low, count * mean - reach)
    first = math.floor(low)
    if high - first > 4 * LARGEST_GRID:
        return None
    size = fft.next_fast_len(math.ceil(high) - first + 1, real=True)
    # Losses are counted modulo the size: only those beyond the bounds, which are infinite below, get a wrong place.
    folded = np.bincount(np.arange(dense.size) % size, masses, size)
    with np.errstate(over="ignore", invalid="ignore"):  # a sum of masses just above 1, to the power of 10^12
        total = np.roll(fft.irfft(fft.rfft(folded) ** count, size), -first)
    infinite = TAIL - math.expm1(count * math.log1p(-dense._infinity_mass))
    return pld_pmf.DensePLDPmf(dense._discretization, dense._lower_loss * count + first, total, infinite, True)


def _coarser(pmf: Any | None, factor: int) -> Any | None:
    """Return `pmf` on a grid `factor` times coarser; a loss is split so that the mean of its exponential stays."""
    if pmf is None:
        return None
    below, part = np.divmod(pmf._lower_loss + np.arange(pmf.size), factor)
    step, first = pmf._discretization, int(below[0])
    upper = pmf._probs * (np.expm1(-step * part) / math.expm1(-step * factor))
    masses = np.bincount(below - first, pmf._probs - upper, int(below[-1]) - first + 2)
    masses += np.bincount(below - first + 1, upper, len(masses))
    return pld_pmf.DensePLDPmf(step * factor, first, masses, pmf._infinity_mass, True)
