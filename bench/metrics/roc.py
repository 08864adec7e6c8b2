"""ROC curves of membership scores, with bootstrap intervals over independent units.

The main metric is the true positive rate at a low false positive rate (Carlini et al. 2022, arXiv:2112.03570). It is
conservative: tied scores get the same guess, and the empirical false positive rate is at most the given one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.core.errors import BenchError
from bench.core.rows import Estimated

Floats = NDArray[np.float64]
DRAWS = 2000
CHUNK = 2_000_000
"""Scores per chunk of draws, to bound memory."""
CONFIDENCE = 0.95


def roc(scores: ArrayLike, members: ArrayLike) -> tuple[Floats, Floats]:
    """Return the false and true positive rates, ascending, one of each per distinct score.

    `scores` (n,) are larger for likelier members, `members` (n,) are booleans. Raises :class:`BenchError` for different
    shapes, a NaN score, or a missing class.
    """
    from sklearn.metrics import roc_curve

    values, truth = _checked(scores, members)
    false, true, _ = roc_curve(truth, values, drop_intermediate=False)
    return false, true


def membership_metrics(
    scores: ArrayLike,
    members: ArrayLike,
    groups: ArrayLike | None = None,
    fprs: Sequence[float] = (0.001, 0.01),
    seed: int = 0,
    draws: int = DRAWS,
) -> dict[str, Estimated]:
    """Return ``auc`` and ``tpr@`` each of `fprs` in [0, 1] with 95% bootstrap intervals.

    Scores of one target are dependent, so the bootstrap resamples whole `groups` (n,), the target of each score. With
    one group it resamples members and non-members separately, and the interval does not cover retraining. A zero-length
    interval does not mean certainty. Rates below one non-member are left out. Raises :class:`BenchError` as
    :func:`roc`, and for invalid rates, groups or draws.
    """
    values, truth = _checked(scores, members)
    if not all(0 <= fpr <= 1 for fpr in fprs) or draws < 1:
        raise BenchError(f"false positive rates lie in [0, 1] and draws are at least 1, not {fprs} and {draws}.")
    names, group = np.unique(np.zeros(len(values)) if groups is None else np.asarray(groups), return_inverse=True)
    if group.shape != values.shape:
        raise BenchError(f"groups must name a group for each of {len(values)} scores, not {group.shape}.")
    order = np.argsort(-values, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(values[order]) != 0), len(values) - 1)  # last place of each score
    truth, group = truth[order], group[order]
    point = _figures(np.ones((1, len(truth))), truth, ends, fprs)
    rng = np.random.default_rng(seed)
    rows, drawn = max(1, CHUNK // len(truth)), []
    for start in range(0, draws, rows):
        weights = _weights(rng, min(rows, draws - start), truth, group, len(names))
        drawn.append(_figures(weights, truth, ends, fprs))
    # A draw of groups without members or without non-members has no curve.
    found = np.concatenate(drawn)
    found = found[np.isfinite(found).all(axis=1)]
    if not len(found):
        raise BenchError("no draw of groups has members and non-members; give groups that hold both.")
    bounds = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    nonmembers = int((~truth).sum())
    return {
        name: Estimated(value=value, low=low, high=high, n=len(names))
        for name, fpr, value, low, high in zip(
            ["auc", *(f"tpr@{fpr:g}" for fpr in fprs)], [1.0, *fprs], point[0], *bounds, strict=True
        )
        if nonmembers * fpr >= 1 - 1e-9
    }


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
    true = np.cumsum(weights * truth, axis=1)[:, ends]
    false = np.cumsum(weights, axis=1)[:, ends] - true
    members, nonmembers = true[:, -1:], false[:, -1:]
    usable = (members > 0) & (nonmembers > 0)
    tpr, fpr = (
        np.pad(part, ((0, 0), (1, 0))) for part in (true / np.maximum(members, 1), false / np.maximum(nonmembers, 1))
    )
    columns = [(np.diff(fpr) * (tpr[:, 1:] + tpr[:, :-1]) / 2).sum(axis=1)]
    for rate in fprs:
        last = (fpr <= rate * (1 + 1e-12)).sum(axis=1) - 1
        columns.append(np.take_along_axis(tpr, last[:, None], axis=1)[:, 0])
    return np.where(usable, np.stack(columns, axis=1), np.nan)


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
