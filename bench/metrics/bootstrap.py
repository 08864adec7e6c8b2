"""Means with 95% intervals for results whose trials come in clusters. Imports no torch.

Reconstructions of one class share class and student, so intervals resample clusters. Over 6 to 10 clusters a BCa
bootstrap interval covers 81 to 94% of the time: fewer than :data:`FEWEST` clusters get Student's t over their means,
equal means an exact interval.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.core.errors import BenchError
from bench.core.lazy_libraries import scipy
from bench.core.rows import Estimated

Floats = NDArray[np.float64]
Bounds = tuple[float, float] | None

CONFIDENCE = 0.95
FEWEST = 20
"""Fewest clusters for a bootstrap interval."""
RESAMPLES = 9_999
_SEED = 20_240_917
_CHUNK = 2_000_000


def clustered(values: ArrayLike, clusters: ArrayLike, *, bounds: Bounds = None) -> Estimated:
    """Return the mean of the cluster means with Student's t or a BCa bootstrap interval over clusters (Efron 1987).

    `values` (n,) are numbers or booleans, `clusters` (n,) integers or names; all clusters weigh the same. The interval
    is clipped to `bounds`, the range of possible values (None: [0, 1] if all values lie in it). Raises
    :class:`BenchError` for no values, a non-finite one, or unequal lengths.
    """
    means, bounds = _means(values, clusters, bounds)
    return _over_clusters(np.array([*means.values()]), bounds)


def difference(
    a: ArrayLike, b: ArrayLike, clusters: ArrayLike, *, clusters_b: ArrayLike | None = None, bounds: Bounds = None
) -> Estimated:
    """Return the mean of `a` (n,) minus the mean of `b` (m,), paired by cluster, with the interval of `clustered`.

    `clusters_b` (m,) are the clusters of `b` (None: `clusters`). `bounds` limit the values of `a` and `b`, not their
    difference. Raises :class:`BenchError` as :func:`clustered`, and if `a` and `b` have different clusters.
    """
    first, bounds_a = _means(a, clusters, bounds)
    second, bounds_b = _means(b, clusters if clusters_b is None else clusters_b, bounds)
    if set(first) != set(second):
        raise BenchError("a paired difference needs the same clusters on both sides.")
    span = None
    if bounds_a is not None and bounds_b is not None:
        span = (bounds_a[0] - bounds_b[1], bounds_a[1] - bounds_b[0])
    return _over_clusters(np.array([first[name] - second[name] for name in first]), span)


def _means(values: ArrayLike, clusters: ArrayLike, bounds: Bounds) -> tuple[dict[Any, float], Bounds]:
    data, names = np.asarray(values, dtype=np.float64).reshape(-1), np.asarray(clusters).reshape(-1)
    if len(data) == 0 or len(names) != len(data):
        raise BenchError(f"{len(data)} values need as many clusters, at least 1, not {len(names)}.")
    if not np.isfinite(data).all():
        raise BenchError("a value is not finite: leave it out, or count it as a failure, before estimating.")
    if bounds is None and data.min() >= 0 and data.max() <= 1:
        bounds = (0.0, 1.0)
    return {name.item(): float(data[names == name].mean()) for name in np.unique(names)}, bounds


def _over_clusters(means: Floats, bounds: Bounds) -> Estimated:
    means = np.sort(means)  # which clusters a draw picks must not depend on their order
    count, value = len(means), float(means.mean())
    if np.ptp(means) <= 1e-12 * max(1.0, abs(value)):
        low, high = _all_agree(value, count, bounds)
        return Estimated(value=value, low=low, high=high, n=count)
    low = high = math.nan
    if count >= FEWEST:
        result = scipy.stats.bootstrap(
            (means,), np.mean, n_resamples=RESAMPLES, batch=max(1, _CHUNK // count), confidence_level=CONFIDENCE,
            method="BCa", rng=np.random.default_rng(_SEED),
        )  # fmt: skip
        low, high = map(float, result.confidence_interval)
    if not (math.isfinite(low) and math.isfinite(high)):
        half = float(scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, count - 1) * means.std(ddof=1)) / math.sqrt(count)
        low, high = value - half, value + half
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Estimated(value=value, low=min(low, value), high=max(high, value), n=count)


def _all_agree(value: float, count: int, bounds: Bounds) -> tuple[float, float]:
    # At most `share` of the clusters (Clopper-Pearson limit for 0 of `count`) have another mean, at worst at a bound.
    if bounds is None:
        return -math.inf, math.inf
    share = float(scipy.stats.beta.ppf(0.5 + CONFIDENCE / 2, 1, count))
    return value - share * (value - bounds[0]), value + share * (bounds[1] - value)
