"""Lower bounds on epsilon from the error counts of an audit, and the ROC that an epsilon allows.

A bound at some confidence refutes smaller claims and supports none: an audit without findings proves nothing, and a
number of rounds certifies at most its cap. Sources: Jagielski, Ullman and Oprea 2020 (arXiv:2006.07709) and Nasr et al.
2021 and 2023 for many runs; Kairouz, Oh and Viswanath 2015 for the ROC. One run: :mod:`bench.privacy.auditing.one_run`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from bench.core.errors import BenchError
from bench.privacy.auditing.one_run import check_audit_delta, check_confidence, check_counts

Floats = NDArray[np.float64]


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the two-sided Clopper-Pearson interval; raise :class:`BenchError` on impossible counts or confidence."""
    check_counts("successes", successes, "trials", trials)
    low, high = _interval(np.float64(successes), np.float64(trials), check_confidence(confidence))
    return float(low), float(high)


def _interval(successes: ArrayLike, trials: ArrayLike, confidence: float) -> tuple[Floats, Floats]:
    """Return Clopper-Pearson bounds for arrays of counts, possibly fractional; SciPy's binomtest takes one count."""
    hits, total, error = np.asarray(successes, float), np.asarray(trials, float), (1 - confidence) / 2
    misses = total - hits
    low = np.where(hits > 0, special.betaincinv(np.maximum(hits, 1e-300), misses + 1, error), 0.0)
    high = np.where(misses > 0, special.betaincinv(hits + 1, np.maximum(misses, 1e-300), 1 - error), 1.0)
    return low, high


def refuted_epsilons(
    first: ArrayLike, first_draws: float, second: ArrayLike, second_draws: float, delta: float, confidence: float
) -> Floats:
    """Return :func:`refuted_epsilon` for arrays of counts, unchecked; the counts may be fractional."""
    low, _ = _interval(first, first_draws, confidence)
    _, high = _interval(second, second_draws, confidence)
    gain = low - delta
    return np.where(gain > 0, np.log(np.maximum(gain, 1e-300) / high), -np.inf)


def refuted_epsilon(
    first: int, first_draws: int, second: int, second_draws: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Return the largest epsilon refuted by how often outputs hit a set, in the direction first over second.

    (epsilon, delta)-DP means ``P[first] <= e^epsilon P[second] + delta`` for two adjacent inputs; the
    :func:`clopper_pearson` bounds on both hold together at `confidence`. The set must be fixed before the draws. The
    result is negative or minus infinity if nothing is refuted. Raises :class:`BenchError` on impossible counts, a
    `delta` outside [0, 1) or a `confidence` outside (0, 1).
    """
    check_counts("hits of the first input", first, "its draws", first_draws)
    check_counts("hits of the second input", second, "its draws", second_draws)
    check_audit_delta(delta)
    return float(refuted_epsilons(first, first_draws, second, second_draws, delta, check_confidence(confidence)))


@dataclass(frozen=True, slots=True)
class ManyRunBound:
    """Bounds from the errors of a membership guess over many independent runs."""

    epsilon: float
    """The lower bound, at least 0."""
    fpr_upper: float
    fnr_upper: float
    cap: float
    """The largest epsilon that this number of runs can certify, without any error."""


def many_run_epsilon(
    false_positives: int, negatives: int, false_negatives: int, positives: int, delta: float, confidence: float = 0.95
) -> ManyRunBound:
    """Return the lower bound on epsilon from the errors of a membership guess whose threshold was fixed on other runs.

    Positives are runs with the record. The upper bounds on both error rates hold together at `confidence`, so either
    direction of (epsilon, delta)-DP may be used. Raises :class:`BenchError` as :func:`refuted_epsilon`.
    """
    check_counts("false positives", false_positives, "negatives", negatives)
    check_counts("false negatives", false_negatives, "positives", positives)
    check_audit_delta(delta)
    fpr_upper = clopper_pearson(false_positives, negatives, confidence)[1]
    fnr_upper = clopper_pearson(false_negatives, positives, confidence)[1]
    best = (clopper_pearson(0, negatives, confidence)[1], clopper_pearson(0, positives, confidence)[1])
    epsilon, cap = _from_rates(fpr_upper, fnr_upper, delta), _from_rates(*best, delta)
    return ManyRunBound(epsilon, fpr_upper, fnr_upper, cap)


def _from_rates(fpr: float, fnr: float, delta: float) -> float:
    found = [math.log((1 - a - delta) / b) for a, b in ((fnr, fpr), (fpr, fnr)) if 1 - a - delta > 0]
    return max([*found, 0.0])


def allowed_tpr(fpr: ArrayLike, epsilon: float, delta: float) -> Floats:
    """Return the largest true positive rate that (epsilon, delta)-DP allows at each false positive rate.

    Raises :class:`BenchError` on rates outside [0, 1], a negative epsilon or a delta outside [0, 1).
    """
    rates = np.asarray(fpr, dtype=np.float64)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise BenchError("false positive rates lie in [0, 1].")
    if math.isnan(epsilon) or epsilon < 0:
        raise BenchError(f"epsilon must be a number of at least 0, not {epsilon}.")
    check_audit_delta(delta)
    small = math.exp(-epsilon)
    # An epsilon of hundreds would overflow; it forbids nothing above a false positive rate of 0.
    steep = rates / small + delta if small > 1e-300 else np.where(rates > 0, 1.0, delta)
    return np.clip(np.minimum(steep, 1 - small * (1 - delta - rates)), 0.0, 1.0)
