"""Means with intervals for attacks' results, whose trials come in clusters.

A hundred reconstructions of one class are not a hundred trials: they share the class, the student and its faults. So
intervals resample clusters (classes, or whatever shares its luck), and seeds where there are several.

A bootstrap interval never leaves the range of what was seen, which few clusters seldom span: two cluster means have the
truth between them half of the time. Below the number of clusters from which the level can be held at all, Student's
interval over the cluster means is given instead, and where all clusters agree, so that there is nothing to resample,
the exact one. This module imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.core.errors import BenchError

Floats = NDArray[np.float64]

RESAMPLES = 9_999
_SEED = 20_240_917
"""Of the resampling: equal values give equal intervals."""
_CHUNK = 2_000_000
"""Numbers that one step of the nested resampling holds at once."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its interval at the level `confidence`. `n` counts the independent units: clusters, not images."""

    value: float
    low: float
    high: float
    n: int
    confidence: float = 0.95

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def clustered(
    values: ArrayLike,
    clusters: ArrayLike,
    *,
    seeds: ArrayLike | None = None,
    confidence: float = 0.95,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """Return the mean over clusters of the mean within each, with a BCa bootstrap interval over the clusters.

    Args:
        values: (n,) numbers or truth values; every cluster counts alike, however many values it has.
        clusters: (n,) the cluster of each value: integers or names.
        seeds: (n,) the training seed that each value comes from. With two or more, seeds, clusters and the values
            within are all resampled: the same draw of clusters for all seeds, since they are the same classes in each.
        confidence: the level of the interval, in (0, 1).
        bounds: between which numbers values can lie; left out, 0 and 1 where all do. Intervals are cut off there.

    Raises:
        BenchError: where there are no values, one is no number, lengths differ, or a seed lacks a cluster.

    Source: bias-corrected and accelerated intervals, Efron 1987.

    """
    data, cells, bounds = _prepared(values, clusters, seeds, confidence, bounds)
    return _estimate(data, cells, confidence, bounds)


def difference(
    a: ArrayLike,
    b: ArrayLike,
    clusters: ArrayLike,
    *,
    clusters_b: ArrayLike | None = None,
    confidence: float = 0.95,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """Return the mean of `a` minus that of `b`, paired by cluster, as :func:`clustered` does.

    Args:
        a: (n,) numbers or truth values.
        b: (m,) likewise; the same number as `a` unless `clusters_b` is given.
        clusters: (n,) the cluster of each value of `a`, and of `b` where `clusters_b` is left out.
        clusters_b: (m,) the clusters of `b`, the same ones as those of `a`.
        confidence: the level of the interval, in (0, 1).
        bounds: between which numbers a single value of `a` or `b` can lie; left out, 0 and 1 where all do.

    Raises:
        BenchError: as :func:`clustered`, and where `a` and `b` have not the same clusters.

    """
    first, cells_a, bounds_a = _prepared(a, clusters, None, confidence, bounds)
    second, cells_b, bounds_b = _prepared(b, clusters if clusters_b is None else clusters_b, None, confidence, bounds)
    if set(cells_a) != set(cells_b):
        raise BenchError("a paired difference needs the same clusters on both sides.")
    means = np.array([first[cells_a[key]].mean() - second[cells_b[key]].mean() for key in cells_a])
    span = None
    if bounds_a is not None and bounds_b is not None:
        span = (bounds_a[0] - bounds_b[1], bounds_a[1] - bounds_b[0])
    return _over_clusters(means, confidence, span)


def _prepared(
    values: ArrayLike,
    clusters: ArrayLike,
    seeds: ArrayLike | None,
    confidence: float,
    bounds: tuple[float, float] | None,
) -> tuple[Floats, dict[tuple[Any, Any], NDArray[np.int64]], tuple[float, float] | None]:
    """Return the values, the positions of each (seed, cluster), sorted, and the bounds."""
    data = np.asarray(values, dtype=np.float64).reshape(-1)
    names = np.asarray(clusters).reshape(-1)
    runs = np.zeros(len(data), dtype=np.int64) if seeds is None else np.asarray(seeds).reshape(-1)
    if not 0 < confidence < 1:
        raise BenchError(f"a confidence level lies in (0, 1), not {confidence}.")
    if len(data) == 0 or len(names) != len(data) or len(runs) != len(data):
        raise BenchError(f"{len(data)} values need as many clusters and seeds, not {len(names)} and {len(runs)}.")
    if not np.isfinite(data).all():
        raise BenchError("a value is no finite number: leave it out, or count it as a failure, before estimating.")
    if bounds is None and data.min() >= 0 and data.max() <= 1:
        bounds = (0.0, 1.0)
    cells: dict[tuple[Any, Any], NDArray[np.int64]] = {}
    for run in np.unique(runs):
        for name in np.unique(names):
            where = np.flatnonzero((runs == run) & (names == name))
            if len(where) == 0:
                raise BenchError(f"seed {run} has no value of cluster {name}: every seed needs every cluster.")
            cells[run.item(), name.item()] = where
    return data, cells, bounds


def _estimate(
    data: Floats,
    cells: dict[tuple[Any, Any], NDArray[np.int64]],
    confidence: float,
    bounds: tuple[float, float] | None,
) -> Estimate:
    runs = list(dict.fromkeys(run for run, _ in cells))
    means = np.array([data[where].mean() for where in cells.values()]).reshape(len(runs), -1)
    over_seeds = means.mean(axis=0)
    if len(runs) == 1 or means.shape[1] < _fewest(confidence) or np.ptp(over_seeds) == 0:
        return _over_clusters(over_seeds, confidence, bounds)
    draws = _nested(data, list(cells.values()), means.shape)
    low, high = _bca(over_seeds, draws, confidence)
    return _cut(float(means.mean()), low, high, means.shape[1], confidence, bounds)


def _over_clusters(means: Floats, confidence: float, bounds: tuple[float, float] | None) -> Estimate:
    """Return the interval of the mean of independent cluster `means` (k,)."""
    from scipy import stats

    count, value = len(means), float(means.mean())
    if np.ptp(means) <= 1e-12 * max(1.0, abs(value)):
        low, high = _all_agree(value, count, confidence, bounds)
        return Estimate(value, low, high, count, confidence)
    if count >= _fewest(confidence):
        result = stats.bootstrap(
            (means,), np.mean, n_resamples=RESAMPLES, batch=max(1, _CHUNK // count), confidence_level=confidence,
            method="BCa", rng=np.random.default_rng(_SEED),
        )  # fmt: skip
        low, high = map(float, result.confidence_interval)
        if math.isfinite(low) and math.isfinite(high):
            return _cut(value, low, high, count, confidence, bounds)
    half = float(stats.t.ppf(0.5 + confidence / 2, count - 1)) * float(means.std(ddof=1)) / math.sqrt(count)
    return _cut(value, value - half, value + half, count, confidence, bounds)


def _fewest(confidence: float) -> int:
    """Return how many clusters there must be for the range of their means to hold a median at the level.

    All of k means lie on one side of their common median with probability 2 ** (1 - k); a bootstrap interval lies
    inside their range.
    """
    return math.ceil(1 - math.log2(1 - confidence))


def _all_agree(value: float, count: int, confidence: float, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """Return the interval where `count` clusters all have the mean `value`.

    At most the share u of clusters has another one, where u is the Clopper-Pearson limit of 0 in `count`, and these
    could lie at either bound. For 0 and 1 this is the Clopper-Pearson interval itself. Without bounds nothing limits
    it.
    """
    from scipy.stats import beta

    if bounds is None:
        return -math.inf, math.inf
    share = float(beta.ppf(0.5 + confidence / 2, 1, count))
    return value - share * (value - bounds[0]), value + share * (bounds[1] - value)


def _nested(data: Floats, cells: list[NDArray[np.int64]], shape: tuple[int, ...]) -> Floats:
    """Return means (resamples,) of draws of seeds, of clusters (one draw for all seeds) and of the values within."""
    runs, count = shape
    most = max(map(len, cells))
    sizes = np.array([len(where) for where in cells]).reshape(runs, count)
    padded = np.zeros((runs, count, most))
    for place, where in enumerate(cells):
        padded[place // count, place % count, : len(where)] = data[where]
    rng = np.random.default_rng(_SEED)
    weights = np.arange(most) < sizes[..., None]
    step, draws = max(1, _CHUNK // (runs * count * most)), []
    for start in range(0, RESAMPLES, step):
        some = min(step, RESAMPLES - start)
        run = rng.integers(runs, size=(some, runs, 1))
        name = rng.integers(count, size=(some, 1, count))
        chosen = np.broadcast_to(sizes[run, name][..., None], (some, runs, count, most))
        inside = (rng.random((some, runs, count, most)) * chosen).astype(np.int64)
        used = weights[run, name]
        total = (padded[run[..., None], name[..., None], inside] * used).sum(-1)
        draws.append((total / sizes[run, name]).mean(axis=(1, 2)))
    return np.concatenate(draws)


def _bca(means: Floats, draws: Floats, confidence: float) -> tuple[float, float]:
    """Return the BCa limits of `draws` about the mean of `means` (k,), whose leave-one-out means give the skewness."""
    from scipy.stats import norm

    value, count = means.mean(), len(means)
    below = ((draws < value).mean() + (draws <= value).mean()) / 2
    bias = norm.ppf(np.clip(below, 1 / len(draws), 1 - 1 / len(draws)))
    away = (value - means) / (count - 1)  # leave-one-out mean minus the mean of all
    skewness = -(away**3).sum() / (6 * (away**2).sum() ** 1.5)
    points = norm.ppf([0.5 - confidence / 2, 0.5 + confidence / 2])
    shares = norm.cdf(bias + (bias + points) / (1 - skewness * (bias + points)))
    low, high = np.quantile(draws, shares)
    return float(low), float(high)


def _cut(
    value: float, low: float, high: float, count: int, confidence: float, bounds: tuple[float, float] | None
) -> Estimate:
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Estimate(value, min(low, value), max(high, value), count, confidence)
