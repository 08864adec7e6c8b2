"""ROC curves of membership scores, with bootstrap intervals over independent units.

The main metric is the true positive rate at a low false positive rate (Carlini et al. 2022, arXiv:2112.03570). With n
non-members, guessing "member" above the j-th largest of them has the expected false positive rate j / (n + 1). The
estimate interpolates between the two j next to the given rate, so that the rule's expected rate is the given one. By
Jensen's inequality its expectation never exceeds a concave curve that bounds the attack, such as a proven one. The
largest true positive rate whose empirical false positive rate is allowed is biased upwards: .085 for .066 with 200
non-members at 1%. Members that tie with the threshold do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.core.errors import BenchError
from bench.core.lazy_libraries import scipy, sklearn
from bench.core.rows import Estimated

Floats = NDArray[np.float64]
DRAWS = 2000
CHUNK = 2_000_000
"""Scores per chunk of draws, to bound memory."""
CONFIDENCE = 0.95
FEW = 10
"""Expected errors below which a bootstrap's lower limit exceeds the truth too often."""


def roc(scores: ArrayLike, members: ArrayLike) -> tuple[Floats, Floats]:
    """Return the false and true positive rates, ascending, one of each per distinct score.

    `scores` (n,) are larger for likelier members, `members` (n,) are booleans. Raises :class:`BenchError` for different
    shapes, a NaN score, or a missing class.
    """
    values, truth = _checked(scores, members)
    false, true, _ = sklearn.metrics.roc_curve(truth, values, drop_intermediate=False)
    return false, true


def membership_metrics(
    scores: ArrayLike, members: ArrayLike, groups: ArrayLike | None = None, fprs: Sequence[float] = (0.001, 0.01),
    seed: int = 0, draws: int = DRAWS, confidence: float = CONFIDENCE,
) -> dict[str, Estimated]:  # fmt: skip
    """Return ``auc`` and ``tpr@`` each of `fprs` in [0, 1] with bootstrap intervals.

    Scores of one canary or target are dependent, so the bootstrap resamples whole `groups` (n,). Of several groupings
    (k, n), the first gives `n`, and all are resampled at once, independently (Owen 2007, "The pigeonhole bootstrap"):
    where every canary meets every target, their variances add. With one group the bootstrap resamples members and
    non-members separately, and the interval does not cover retraining. A rate with fewer than :data:`FEW`
    expected false positives also covers the exact interval for independent scores, and an AUC with fewer than that many
    errors Wilson's. Rates below one non-member are left out. Raises :class:`BenchError` as :func:`roc`, and for
    invalid rates, groups or draws.
    """
    values, truth = _checked(scores, members)
    if not all(0 <= fpr <= 1 for fpr in fprs) or draws < 1:
        raise BenchError(f"false positive rates lie in [0, 1] and draws are at least 1, not {fprs} and {draws}.")
    groupings = np.atleast_2d(np.zeros(len(values)) if groups is None else np.asarray(groups))
    if groupings.shape[1:] != values.shape:
        raise BenchError(f"groups must name a group for each of {len(values)} scores, not {groupings.shape}.")
    order = np.argsort(-values, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(values[order]) != 0), len(values) - 1)  # last place of each score
    truth = truth[order]
    counts = np.ones((1, len(truth)))
    point = _figures(counts, truth, ends, fprs)
    numbered = [np.unique(grouping[order], return_inverse=True)[1] for grouping in groupings]
    low, high = _bootstrap(truth, numbered, ends, fprs, seed, draws, confidence)
    true, false = _counted(counts, truth, ends)
    for column, fpr in enumerate(fprs, 1):
        if false[0, -1] * fpr < FEW:
            exact = _exact(true[0], false[0], fpr, confidence)
            low[column], high[column] = min(low[column], exact[0]), max(high[column], exact[1])
    nonmembers = int((~truth).sum())
    fewest, auc = min(nonmembers, len(truth) - nonmembers), float(point[0, 0])
    if fewest * min(auc, 1 - auc) < FEW:
        wide = _wilson(auc, fewest, confidence)
        low[0], high[0] = min(low[0], wide[0]), max(high[0], wide[1])
    return {
        name: Estimated(value=value, low=lower, high=upper, n=int(numbered[0].max()) + 1, confidence=confidence)
        for name, fpr, value, lower, upper in zip(
            ["auc", *(f"tpr@{fpr:g}" for fpr in fprs)], [1.0, *fprs], point[0], low, high, strict=True
        )
        if nonmembers * fpr >= 1 - 1e-9
    }


def _bootstrap(
    truth: NDArray[np.bool_], groupings: Sequence[NDArray[np.intp]], ends: NDArray[np.intp], fprs: Sequence[float],
    seed: int, draws: int, confidence: float,
) -> Floats:  # fmt: skip
    """Return the limits (2, 1 + rates) over draws of whole groups of each grouping (n,)."""
    rng = np.random.default_rng(seed)
    rows, drawn = max(1, CHUNK // len(truth)), []
    for start in range(0, draws, rows):
        weights = np.ones((min(rows, draws - start), len(truth)))
        for group in groupings:
            weights *= _weights(rng, len(weights), truth, group, int(group.max()) + 1)
        drawn.append(_figures(weights, truth, ends, fprs))
    # A draw of groups without members or without non-members has no curve.
    found = np.concatenate(drawn)
    found = found[np.isfinite(found).all(axis=1)]
    if not len(found):
        raise BenchError("no draw of groups has members and non-members; use groups that hold both.")
    return np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)


def _exact(true: Floats, false: Floats, fpr: float, confidence: float) -> tuple[float, float]:
    """Return an interval for the rate of members, from counts above each score (m,), for independent scores.

    The rate of false positives above the j-th largest of n non-members is at most `fpr` with the probability that a
    binomial(n, fpr) number is at least j. A quarter of the error goes to it and to the members' share on each side.
    """
    risk, members, nonmembers = (1 - confidence) / 4, int(true[-1]), int(false[-1])
    ranks = scipy.stats.binom.ppf(risk, nonmembers, fpr), scipy.stats.binom.ppf(1 - risk, nonmembers, fpr) + 1
    above = np.pad(true, (1, 0))[[int((false < rank).sum()) for rank in ranks]]
    low = scipy.stats.beta.ppf(risk, above[0], members - above[0] + 1) if above[0] else 0.0
    high = scipy.stats.beta.ppf(1 - risk, above[1] + 1, members - above[1]) if above[1] < members else 1.0
    return float(low), float(high)


def _wilson(auc: float, fewest: int, confidence: float) -> tuple[float, float]:
    """Return Wilson's interval for an AUC with `fewest` members or non-members.

    The AUC's variance is at most ``auc * (1 - auc) / fewest``, that of a share. Draws from few scores vary too little,
    and not at all if all members lie above all others.
    """
    square = float(scipy.special.ndtri(0.5 + confidence / 2)) ** 2 / fewest
    middle = (auc + square / 2) / (1 + square)
    half = math.sqrt(square * auc * (1 - auc) + square**2 / 4) / (1 + square)
    return middle - half, middle + half


def _weights(
    rng: np.random.Generator, rows: int, truth: NDArray[np.bool_], group: NDArray[np.intp], groups: int
) -> Floats:
    """Return how often each record is drawn, (rows, n)."""
    if groups > 1:
        counts = rng.multinomial(groups, np.full(groups, 1 / groups), size=rows).astype(np.float64)
        return counts[:, group]
    weights = np.empty((rows, len(truth)))
    for part in (truth, ~truth):
        size = int(part.sum())
        picks = rng.integers(0, size, (rows, size)) + np.arange(rows)[:, None] * size
        weights[:, part] = np.bincount(picks.ravel(), minlength=rows * size).reshape(rows, size)
    return weights


def _figures(weights: Floats, truth: NDArray[np.bool_], ends: NDArray[np.intp], fprs: Sequence[float]) -> Floats:
    """Return AUC and rates, (rows, 1 + rates), for `weights` (rows, n) by descending score; NaN if undefined."""
    true, false = _counted(weights, truth, ends)
    members, nonmembers = true[:, -1:], false[:, -1:]
    usable = (members > 0) & (nonmembers > 0)
    tpr, fpr = (
        np.pad(part, ((0, 0), (1, 0))) for part in (true / np.maximum(members, 1), false / np.maximum(nonmembers, 1))
    )
    columns = [(np.diff(fpr) * (tpr[:, 1:] + tpr[:, :-1]) / 2).sum(axis=1)]
    for rate in fprs:
        place = rate * (nonmembers + 1)
        rank = np.floor(place + 1e-9)
        below, above = (np.take_along_axis(tpr, (false < r).sum(1, keepdims=True), 1) for r in (rank, rank + 1))
        columns.append((below + np.maximum(place - rank, 0) * (above - below))[:, 0])
    return np.where(usable, np.stack(columns, axis=1), np.nan)


def _counted(weights: Floats, truth: NDArray[np.bool_], ends: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Return the numbers of members and non-members, (rows, distinct scores), with at least each score."""
    true = np.cumsum(weights * truth, axis=1)[:, ends]
    return true, np.cumsum(weights, axis=1)[:, ends] - true


def _checked(scores: ArrayLike, members: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    values, given = np.asarray(scores, dtype=np.float64), np.asarray(members)
    if values.ndim != 1 or values.shape != given.shape:
        raise BenchError(f"scores and members must be of one shape (n,), not {values.shape} and {given.shape}.")
    if not np.isin(given, (0, 1)).all():
        raise BenchError("members must be booleans.")
    truth = given.astype(np.bool_)
    if np.isnan(values).any():
        raise BenchError(f"{int(np.isnan(values).sum())} of {len(values)} scores are NaN.")
    if truth.all() or not truth.any():
        raise BenchError(f"a ROC needs members and non-members, not {int(truth.sum())} of {len(truth)} members.")
    # Make infinite scores finite, keeping their rank: differences of equal infinities would be NaN.
    return np.nan_to_num(values, posinf=np.finfo(np.float64).max, neginf=np.finfo(np.float64).min), truth
