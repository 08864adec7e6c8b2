"""Exact normal noise on a grid, from the operating system's random bits.

Karney, ACM TOMS 42(1), 2016 (arXiv:1303.6257), algorithm N: a normal deviate from comparisons of uniform deviates, so
no arithmetic rounds. Here a uniform deviate has 128 bits. Two that agree in all of them count as ordered, which happens
once in 2^128 comparisons.

The noise is ``floor(2^bits * Z)`` with Z standard normal. For whole numbers x, ``x + floor(2^bits * Z)`` is the floor
of ``x + 2^bits * Z``: it depends on the data only through a release of the Gaussian mechanism with continuous noise,
so it costs what that costs, on samples of the records too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal, localcontext
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
AT_ONCE = 2**16  # few enough for the processor's cache
BITS = 24
"""Noise of a release has a standard deviation of 2^BITS grid steps."""


def system_words(count: int) -> Words:
    """Return `count` uniform words (count,) from the operating system."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def _bounds() -> tuple[int, ...]:
    """Return 2^128 times the probability of a whole part of at most 0, 1, ..., which is in proportion to e^(-k^2/2)."""
    with localcontext(prec=60):
        sums = list(accumulate((Decimal(-k * k) / 2).exp() for k in range(14)))  # e^(-14^2 / 2) is below 2^-128
        return tuple(int(one / sums[-1] * 2**128) for one in sums)


BOUNDS = _bounds()
_HIGH = np.array([bound >> 64 for bound in BOUNDS[:-1]], dtype=np.uint64)


class _Uniform:
    """Uniform deviates (n,) of 128 bits in [0, 1)."""

    def __init__(self, high: Words, low: Words) -> None:
        self.high, self.low = high, low

    def __len__(self) -> int:
        return len(self.high)

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> _Uniform:
        return _Uniform(self.high[rows], self.low[rows])

    def below(self, other: _Uniform) -> NDArray[np.bool_]:
        """Return which are smaller than `other`'s."""
        found: NDArray[np.bool_] = (self.high < other.high) | ((self.high == other.high) & (self.low < other.low))
        return found


def floored_normals(count: int, bits: int, words: Callable[[int], Words] = system_words) -> NDArray[np.int64]:
    """Return `count` independent draws of ``floor(2^bits * Z)``, Z standard normal: (count,).

    `bits` is at most 48. `words` returns so many independent uniform words.
    """
    found = [_some(min(AT_ONCE, count - start), bits, words) for start in range(0, count, AT_ONCE)]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _some(count: int, bits: int, words: Callable[[int], Words]) -> NDArray[np.int64]:
    found = np.zeros(count, dtype=np.int64)
    missing = np.arange(count)
    while len(missing):
        whole, part = _whole(_uniform(len(missing), words)), _uniform(len(missing), words)
        kept = np.ones(len(missing), dtype=bool)
        for number in range(int(whole.max()) + 1):
            rows = np.flatnonzero(kept & (whole >= number))
            kept[rows] = _accepted(whole[rows], part[rows], words)
        whole, part, missing, places = whole[kept], part[kept], missing[~kept], missing[kept]
        size = (whole << bits) + (part.high >> np.uint64(64 - bits)).astype(np.int64)
        found[places] = np.where(words(len(size)) >> np.uint64(63), -size - 1, size)
    return found


def _uniform(count: int, words: Callable[[int], Words]) -> _Uniform:
    return _Uniform(words(count), words(count))


def _whole(drawn: _Uniform) -> NDArray[np.int64]:
    """Return whole numbers with probabilities in proportion to e^(-k^2/2)."""
    found = np.searchsorted(_HIGH, drawn.high, side="right")
    for row in np.flatnonzero(np.isin(drawn.high, _HIGH)):
        value = (int(drawn.high[row]) << 64) + int(drawn.low[row])
        found[row] = sum(value >= bound for bound in BOUNDS[:-1])
    return found.astype(np.int64)


def _accepted(whole: NDArray[np.int64], part: _Uniform, words: Callable[[int], Words]) -> NDArray[np.bool_]:
    """Return true with probability ``exp(-x (2k + x) / (2k + 2))`` for each whole number k and fraction x: (n,).

    Each run of falling deviates that starts below x goes on with probability (2k + x) / (2k + 2); its length is even
    with the probability asked for.
    """
    even = np.ones(len(whole), dtype=bool)
    rows, last = np.arange(len(whole)), part
    while len(rows):
        drawn = _uniform(len(rows), words)
        on = np.flatnonzero(drawn.below(last))
        rows, drawn = rows[on], drawn[on]
        if not len(rows):
            break
        twice = 2 * whole[rows]
        choice = _below(twice + 2, words)
        goes = choice < twice
        between = np.flatnonzero(choice == twice)
        goes[between] = _uniform(len(between), words).below(part[rows[between]])
        rows, last = rows[goes], drawn[goes]
        even[rows] ^= True
    return even


def _below(limits: NDArray[np.int64], words: Callable[[int], Words]) -> NDArray[np.int64]:
    """Return a uniform whole number below each of the positive `limits`: (n,)."""
    sizes = limits.astype(np.uint64)
    # Accept words below the largest multiple of the limit.
    last = np.uint64(2**64 - 1) - (np.uint64(2**64 - 1) % sizes + np.uint64(1)) % sizes
    drawn = words(len(sizes))
    while len(rows := np.flatnonzero(drawn > last)):
        drawn = drawn.copy()
        drawn[rows] = words(len(rows))
    return (drawn % sizes).astype(np.int64)
