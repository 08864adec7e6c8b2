"""A share of a labelled source, selected by a hash."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bench.data.index_hash import ranks
from bench.interface import BenchError

Ints = NDArray[np.int64]


def source_part(labels: Ints, fraction: float, name: str) -> Ints:
    """Return the sorted positions of a `fraction` of each class's records, chosen by a hash of index and `name`.

    Drawn as TrPATE's ImageNet0.1x (section V.A.2). Raises :class:`BenchError` unless `fraction` is in (0, 1].
    """
    if not 0 < fraction <= 1:
        raise BenchError(f"the fraction of the source must lie in (0, 1], not {fraction}. Use 1 for all of it.")
    order = ranks(name, len(labels), "source fraction")
    kept = []
    for label in np.unique(labels):
        own = order[labels[order] == label]
        kept.append(own[: max(1, round(fraction * len(own)))])
    return np.sort(np.concatenate(kept)) if kept else order
