"""The batches of DP-SGD by each :class:`bench.core.types.Sampling`.

There is one place for each record of the public count. If fewer records are present, the last places are empty: they
are drawn like records but add nothing, so that the batches do not depend on how many records there are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bench.core.types import Sampling
from bench.privacy.events.batch_events import steps_of_epoch

Rows = NDArray[np.intp]


def batches(
    sampling: Sampling, places: int, size: int, present: int, randomness: np.random.Generator
) -> Iterator[Rows]:
    """Yield the rows, among the `present` records, of each step's batch, without end; `size` is expected or exact."""
    draw = {
        Sampling.POISSON: _poisson, Sampling.FIXED: _fixed,
        Sampling.RANDOM_ALLOCATION: _allocated, Sampling.SHUFFLED: _shuffled,
    }[sampling]  # fmt: skip
    return draw(places, size, present, randomness)


def _poisson(places: int, size: int, present: int, randomness: np.random.Generator) -> Iterator[Rows]:
    while True:
        yield np.flatnonzero(randomness.random(present) < size / places)


def _fixed(places: int, size: int, present: int, randomness: np.random.Generator) -> Iterator[Rows]:
    while True:
        chosen = np.sort(randomness.choice(places, size, replace=False, shuffle=False))
        yield chosen[chosen < present]


def _allocated(places: int, size: int, present: int, randomness: np.random.Generator) -> Iterator[Rows]:
    steps = steps_of_epoch(size / places)
    while True:
        yield from _cut(randomness.integers(steps, size=present), steps)


def _shuffled(places: int, size: int, present: int, randomness: np.random.Generator) -> Iterator[Rows]:
    steps = steps_of_epoch(size / places)
    while True:
        step = np.arange(places) % steps  # sizes differ by one record at most
        yield from _cut(randomness.permutation(step)[:present], steps)


def _cut(step: NDArray[np.int64], steps: int) -> Iterator[Rows]:
    """Yield the records of each of `steps` steps, given each record's (present,)."""
    order = np.argsort(step, kind="stable")
    yield from np.split(order, np.searchsorted(step[order], np.arange(1, steps)))
