"""Receiver operating characteristics of membership scores, with bootstrap intervals over what is independent.

The figure that counts is the true positive rate at a false positive rate so low that an accusation would mean
something (Carlini et al. 2022, arXiv:2112.03570). Every rate here is conservative: the largest one whose empirical
false positive rate is at most the one asked for, with equal scores guessed together. Scores that are all equal give 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.core.errors import BenchError

Floats = NDArray[np.float64]
DRAWS = 2000
"""Bootstrap draws behind an interval."""
CHUNK = 2_000_000
"""Scores that are held at once, over all draws of a chunk."""
PRIORS = (0.01, 0.1)
"""Shares of members among the records for which a positive predictive value is given."""
PPV_FPR = 0.01
"""The false positive rate of the threshold whose positive predictive value is given."""


class Estimate(NamedTuple):
    """A figure with its interval: percentiles of a bootstrap."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RateAt:
    """The true positive rate at one false positive rate."""

    fpr: float
    tpr: Estimate
    resolved: bool
    """False where fewer than one non-member makes up `fpr`: the figure says nothing and is not to be printed."""


@dataclass(frozen=True, slots=True)
class MembershipMetrics:
    """How well scores tell members from non-members."""

    auc: Estimate
    tpr: tuple[RateAt, ...]
    """In the order in which the false positive rates were asked for."""
    balanced_accuracy: Estimate
    """Of guessing the upper half of the scores: a threshold that needs no look at the truth. 1/2 is chance."""
    ppv: tuple[tuple[float, Estimate], ...]
    """Prior and positive predictive value, at the threshold of 1% false positives, taken as the full 1%."""
    members: int
    nonmembers: int
    resolution: float
    """The smallest false positive rate above 0 that there can be: 1 / non-members."""
    groups: int
    """Independent groups over which the intervals were drawn; 1 means over records."""
    confidence: float

    def tpr_at(self, fpr: float) -> RateAt:
        """Return the rate at `fpr`; raise :class:`BenchError` where it was not asked for."""
        for rate in self.tpr:
            if rate.fpr == fpr:
                return rate
        raise BenchError(f"no true positive rate at {fpr} was computed; there are {[r.fpr for r in self.tpr]}.")

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values for JSON; an unresolved rate is null."""
        return {
            "auc": list(self.auc),
            "tpr": [{"fpr": r.fpr, "tpr": list(r.tpr) if r.resolved else None} for r in self.tpr],
            "balanced_accuracy": list(self.balanced_accuracy),
            "ppv": [{"prior": prior, "ppv": list(value)} for prior, value in self.ppv],
            "members": self.members,
            "nonmembers": self.nonmembers,
            "resolution": self.resolution,
            "groups": self.groups,
            "confidence": self.confidence,
        }


class Curve(NamedTuple):
    """A ROC: one point below all scores' thresholds and one for each distinct score, from the largest down."""

    fpr: Floats
    tpr: Floats
    thresholds: Floats
    """Guess a member where the score is at least this; infinity first."""


def roc(scores: ArrayLike, members: ArrayLike) -> Curve:
    """Return the curve of `scores` (n,), larger for likelier members, and the truth `members` (n,) of booleans.

    Raises :class:`BenchError` where the shapes differ, a score is no number, or one of the two classes is missing.
    """
    values, truth = _checked(scores, members)
    order, ends = _descending(values)
    true, false = np.cumsum(truth[order])[ends], np.cumsum(~truth[order])[ends]
    start = np.zeros(1)
    return Curve(
        np.concatenate([start, false / false[-1]]),
        np.concatenate([start, true / true[-1]]),
        np.concatenate([np.full(1, np.inf), values[order][ends]]),
    )


def tpr_at(fpr: float, scores: ArrayLike, members: ArrayLike) -> float:
    """Return the largest true positive rate of a threshold whose empirical false positive rate is at most `fpr`.

    Equal scores lie on one side of every threshold, and nothing is interpolated. Raises as :func:`roc`, and on an `fpr`
    outside [0, 1].
    """
    _check_fpr(fpr)
    curve = roc(scores, members)
    return float(curve.tpr[np.flatnonzero(curve.fpr <= fpr * (1 + 1e-12))[-1]])


def auc(scores: ArrayLike, members: ArrayLike) -> float:
    """Return the chance that a member scores above a non-member, a tie counting one half. Raises as :func:`roc`."""
    curve = roc(scores, members)
    return float(np.trapezoid(curve.tpr, curve.fpr))


def membership_metrics(
    scores: ArrayLike,
    members: ArrayLike,
    groups: ArrayLike | None = None,
    fprs: Sequence[float] = (0.001, 0.01),
    confidence: float = 0.95,
    seed: int = 0,
    draws: int = DRAWS,
) -> MembershipMetrics:
    """Return how well `scores` tell members, with bootstrap intervals.

    Scores of one target are not independent of each other. With several groups the intervals are over groups: whole
    groups are drawn with replacement. With one, members and non-members are drawn each among their own, and the
    interval says nothing of another training. An interval of length 0 means that there was nothing to draw from, for
    instance that no score exceeds the threshold, and is no certainty.

    Args:
        scores: (n,), larger for likelier members.
        members: (n,) of booleans, the truth.
        groups: (n,) which target each score is of; None for a single one.
        fprs: False positive rates, each in (0, 1].
        confidence: Of the intervals, in (0, 1).
        seed: Of the bootstrap.
        draws: Bootstrap draws.

    Raises:
        BenchError: As :func:`roc`, and on a rate, a confidence or a number of draws that cannot be.

    """
    values, truth = _checked(scores, members)
    for fpr in fprs:
        _check_fpr(fpr)
    if not 0 < confidence < 1 or draws < 1:
        raise BenchError(f"confidence lies in (0, 1) and draws are at least 1, not {confidence} and {draws}.")
    names, group = np.unique(np.zeros(len(values)) if groups is None else np.asarray(groups), return_inverse=True)
    if group.shape != values.shape:
        raise BenchError(f"groups must name a group for each of {len(values)} scores, not {group.shape}.")
    order, ends = _descending(values)
    truth, group = truth[order], group[order]
    asked = [*fprs, PPV_FPR]
    point = _figures(np.ones((1, len(truth))), truth, ends, asked)
    rng = np.random.default_rng(seed)
    rows, drawn = max(1, CHUNK // len(truth)), []
    for start in range(0, draws, rows):
        weights = _weights(rng, min(rows, draws - start), truth, group, len(names))
        drawn.append(_figures(weights, truth, ends, asked))
    # A draw of groups without a member or a non-member among them has no curve.
    found = np.concatenate(drawn)
    found = found[np.isfinite(found).all(axis=1)]
    if not len(found):
        raise BenchError("no draw of groups has members and non-members; give groups that hold both.")
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    estimates = [Estimate(float(a), float(b), float(c)) for a, b, c in zip(point[0], low, high, strict=True)]
    nonmembers = int((~truth).sum())
    return MembershipMetrics(
        auc=estimates[0],
        balanced_accuracy=estimates[1],
        tpr=tuple(
            RateAt(float(fpr), rate, nonmembers * fpr >= 1 - 1e-9)
            for fpr, rate in zip(fprs, estimates[2:-1], strict=True)
        ),
        ppv=tuple((prior, Estimate(*(_ppv(rate, prior) for rate in estimates[-1]))) for prior in PRIORS),
        members=int(truth.sum()),
        nonmembers=nonmembers,
        resolution=1 / nonmembers,
        groups=len(names),
        confidence=confidence,
    )


def _ppv(tpr: float, prior: float) -> float:
    # The threshold's own false positive rate may be 0 by luck; what it promises is at most PPV_FPR.
    return prior * tpr / (prior * tpr + (1 - prior) * PPV_FPR)


def _weights(
    rng: np.random.Generator, rows: int, truth: NDArray[np.bool_], group: NDArray[np.intp], groups: int
) -> Floats:
    """Return how often each record was drawn, (rows, n)."""
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
    """Return (rows, 2 + rates): AUC, balanced accuracy and the rate at each of `fprs`, NaN where there is no curve.

    `weights` is (rows, n) in descending order of the scores, `ends` the last place of each distinct score.
    """
    true = np.cumsum(weights * truth, axis=1)[:, ends]
    total = np.cumsum(weights, axis=1)[:, ends]
    false = total - true
    members, nonmembers = true[:, -1:], false[:, -1:]
    usable = (members[:, 0] > 0) & (nonmembers[:, 0] > 0)
    tpr, fpr = true / np.maximum(members, 1), false / np.maximum(nonmembers, 1)
    before_t, before_f = np.pad(tpr[:, :-1], ((0, 0), (1, 0))), np.pad(fpr[:, :-1], ((0, 0), (1, 0)))
    columns = [((fpr - before_f) * (tpr + before_t) / 2).sum(axis=1)]
    half = _last_at_most(total, total[:, -1] / 2)
    columns.append((_at(tpr, half) + 1 - _at(fpr, half)) / 2)
    columns += [_at(tpr, _last_at_most(fpr, np.full(len(fpr), rate * (1 + 1e-12)))) for rate in fprs]
    return np.where(usable[:, None], np.stack(columns, axis=1), np.nan)


def _last_at_most(rising: Floats, limit: Floats) -> NDArray[np.intp]:
    """Return for each row how many of its values, which rise, are at most the row's limit."""
    return np.asarray((rising <= limit[:, None]).sum(axis=1))


def _at(values: Floats, count: NDArray[np.intp]) -> Floats:
    """Return each row's value at place `count` - 1, 0 for none."""
    found: Floats = np.take_along_axis(values, np.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
    return np.where(count > 0, found, 0.0)


def _descending(values: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the order from the largest score down, and the last place of each distinct score in it."""
    order = np.argsort(-values, kind="stable")
    return order, np.append(np.flatnonzero(np.diff(values[order]) != 0), len(values) - 1)


def _checked(scores: ArrayLike, members: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    values, given = np.asarray(scores, dtype=np.float64), np.asarray(members)
    if values.ndim != 1 or values.shape != given.shape:
        raise BenchError(f"scores and members must be of one shape (n,), not {values.shape} and {given.shape}.")
    if not np.isin(given, (0, 1)).all():
        raise BenchError("members must be booleans.")
    truth = given.astype(np.bool_)
    if np.isnan(values).any():
        raise BenchError(f"{int(np.isnan(values).sum())} of {len(values)} scores are no numbers.")
    if truth.all() or not truth.any():
        raise BenchError(f"a ROC needs members and non-members, not {int(truth.sum())} of {len(truth)} members.")
    # Infinite scores keep their rank; differences of equal infinities would be no numbers.
    return np.nan_to_num(values, posinf=np.finfo(np.float64).max, neginf=np.finfo(np.float64).min), truth


def _check_fpr(fpr: float) -> None:
    if not 0 <= fpr <= 1:
        raise BenchError(f"false positive rates lie in [0, 1], not {fpr}.")
