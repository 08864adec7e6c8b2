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
    sampling = Sampling(sampling)
    while True:
        if sampling is Sampling.POISSON:
            yield np.flatnonzero(randomness.random(present) < size / places)
        elif sampling is Sampling.FIXED:
            chosen = np.sort(randomness.choice(places, size, replace=False, shuffle=False))
            yield chosen[chosen < present]
        else:
            steps = steps_of_epoch(size / places)
            if sampling is Sampling.RANDOM_ALLOCATION:
                step = randomness.integers(steps, size=present)
            else:  # shuffled: sizes differ by one record at most
                step = randomness.permutation(np.arange(places) % steps)[:present]
            order = np.argsort(step, kind="stable")
            yield from np.split(order, np.searchsorted(step[order], np.arange(1, steps)))
