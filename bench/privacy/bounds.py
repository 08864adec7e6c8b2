"""What counts of an audit prove of epsilon, and what epsilon allows an attack: numbers in, numbers out.

An audit plays many rounds of "was the record there?" and counts its errors. A lower bound on epsilon that follows from
them at some confidence is evidence against a smaller claim, never for one: an audit that finds nothing proves nothing,
and no count of rounds can certify more than its cap, which stands beside every bound.

Sources: Jagielski, Ullman and Oprea 2020 (arXiv:2006.07709) and Nasr et al. 2021 and 2023 for many runs;
Zanella-Beguelin et al. 2023 (arXiv:2206.05199) for credible intervals; Kairouz, Oh and Viswanath 2015 for what
(epsilon, delta) allows; Balle, Cherubin and Hayes 2022 (arXiv:2201.04845) for reconstruction. Audits from one run are
in :mod:`bench.privacy.one_run`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from bench.core.errors import BenchError
from bench.privacy.audit_checks import check_audit_delta, check_confidence, check_counts
from bench.privacy.conversions import exact_gaussian_epsilon
from bench.privacy.one_run import guesses_needed, one_run_cap, one_run_epsilon, one_run_p_value

__all__ = [
    "ManyRunBound",
    "allowed_accuracy",
    "allowed_gdp_tpr",
    "allowed_reconstruction",
    "allowed_tpr",
    "clopper_pearson",
    "credible_epsilon",
    "gdp_epsilon",
    "guesses_needed",
    "many_run_epsilon",
    "one_run_cap",
    "one_run_epsilon",
    "one_run_p_value",
    "refuted_epsilon",
    "refuted_epsilons",
]

Floats = NDArray[np.float64]
NODES = 400
"""Points at which the posterior of a rate is evaluated; 8,000 change no fourth digit."""


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the two-sided interval of Clopper and Pearson for a probability: each side errs in half of the rest.

    Raises :class:`BenchError` on counts that are not 0 <= successes <= trials, trials >= 1, or a confidence outside
    (0, 1).
    """
    check_counts("successes", successes, "trials", trials)
    low, high = _interval(np.float64(successes), np.float64(trials), check_confidence(confidence))
    return float(low), float(high)


def _interval(successes: ArrayLike, trials: ArrayLike, confidence: float) -> tuple[Floats, Floats]:
    """Return the Clopper-Pearson bounds of arrays of counts, which need not be whole."""
    hits, total, error = np.asarray(successes, float), np.asarray(trials, float), (1 - confidence) / 2
    misses = total - hits
    low = np.where(hits > 0, special.betaincinv(np.maximum(hits, 1e-300), misses + 1, error), 0.0)
    high = np.where(misses > 0, special.betaincinv(hits + 1, np.maximum(misses, 1e-300), 1 - error), 1.0)
    return low, high


def refuted_epsilons(
    first: ArrayLike, first_draws: float, second: ArrayLike, second_draws: float, delta: float, confidence: float
) -> Floats:
    """Return :func:`refuted_epsilon` of arrays of counts, unchecked; the counts need not be whole."""
    low, _ = _interval(first, first_draws, confidence)
    _, high = _interval(second, second_draws, confidence)
    gain = low - delta
    return np.where(gain > 0, np.log(np.maximum(gain, 1e-300) / high), -np.inf)


def refuted_epsilon(
    first: int, first_draws: int, second: int, second_draws: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Return the largest epsilon that the hits of one set of outputs refute, in the direction first over second.

    (epsilon, delta)-DP says ``P[first] <= e^epsilon P[second] + delta``. Both probabilities are bounded by
    :func:`clopper_pearson`, so that both bounds hold at `confidence` together. The set must have been fixed before the
    draws.

    Args:
        first: Draws on the first input that fell into the set.
        first_draws: Draws on the first input.
        second: Draws on the second, adjacent input that fell into the set.
        second_draws: Draws on the second input.
        delta: In [0, 1).
        confidence: In (0, 1).

    Returns:
        The bound; negative, or minus infinity, where nothing is refuted.

    Raises:
        BenchError: On counts that cannot be, or a delta or confidence out of range.

    """
    check_counts("hits of the first input", first, "its draws", first_draws)
    check_counts("hits of the second input", second, "its draws", second_draws)
    check_audit_delta(delta)
    return float(refuted_epsilons(first, first_draws, second, second_draws, delta, check_confidence(confidence)))


@dataclass(frozen=True, slots=True)
class ManyRunBound:
    """What the errors of a membership guess over many independent runs prove."""

    epsilon: float
    """The lower bound, at least 0."""
    fpr_upper: float
    fnr_upper: float
    mu: float
    """Lower bound on mu, at least 0. It holds for a mechanism that is no worse than a Gaussian one: not for randomised
    response or Laplace noise."""
    cap: float
    """The largest epsilon that so many runs could have certified: that of no error at all."""


def many_run_epsilon(
    false_positives: int,
    negatives: int,
    false_negatives: int,
    positives: int,
    delta: float,
    confidence: float = 0.95,
) -> ManyRunBound:
    """Return what the errors of a guess, whose threshold was fixed on other runs, prove of epsilon.

    Both error rates are bounded from above, each erring in half of the rest, so that both bounds hold together; then
    either direction of (epsilon, delta)-DP may be used.

    Args:
        false_positives: Runs without the record that were guessed to be with it.
        negatives: Runs without the record.
        false_negatives: Runs with the record that were guessed to be without it.
        positives: Runs with the record.
        delta: In [0, 1).
        confidence: In (0, 1).

    Raises:
        BenchError: On counts that cannot be, or a delta or confidence out of range.

    """
    check_counts("false positives", false_positives, "negatives", negatives)
    check_counts("false negatives", false_negatives, "positives", positives)
    check_audit_delta(delta)
    fpr_upper = clopper_pearson(false_positives, negatives, confidence)[1]
    fnr_upper = clopper_pearson(false_negatives, positives, confidence)[1]
    best = (clopper_pearson(0, negatives, confidence)[1], clopper_pearson(0, positives, confidence)[1])
    mu = float(special.ndtri(1 - fpr_upper) - special.ndtri(fnr_upper))
    return ManyRunBound(
        epsilon=_from_rates(fpr_upper, fnr_upper, delta),
        fpr_upper=fpr_upper,
        fnr_upper=fnr_upper,
        mu=max(mu, 0.0) if math.isfinite(mu) else 0.0,
        cap=_from_rates(*best, delta),
    )


def _from_rates(fpr: float, fnr: float, delta: float) -> float:
    found = [math.log((1 - a - delta) / b) for a, b in ((fnr, fpr), (fpr, fnr)) if 1 - a - delta > 0]
    return max([*found, 0.0])


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon at `delta` of a mechanism that is exactly mu-Gaussian-DP; infinite at delta 0.

    Raises :class:`BenchError` on a negative mu or a delta outside [0, 1).
    """
    if math.isnan(mu) or mu < 0:
        raise BenchError(f"mu must be a number of at least 0, not {mu}.")
    check_audit_delta(delta)
    if mu == 0:
        return 0.0
    return math.inf if delta == 0 or math.isinf(mu) else exact_gaussian_epsilon(mu, delta)


def credible_epsilon(
    false_positives: int,
    negatives: int,
    false_negatives: int,
    positives: int,
    delta: float,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Return the two-sided credible interval of epsilon of Zanella-Beguelin et al., to be shown beside a bound only.

    Each error rate has the posterior of Jeffreys' prior, Beta(errors + 1/2, rest + 1/2), independent of the other. The
    ends are the epsilons whose region of possible error rates holds half of the rest, and all but half of it. It is
    shorter than what :func:`many_run_epsilon` gives, and no proof: a claim is never called violated by it.

    Args and errors are those of :func:`many_run_epsilon`.
    """
    check_counts("false positives", false_positives, "negatives", negatives)
    check_counts("false negatives", false_negatives, "positives", positives)
    check_audit_delta(delta)
    error = (1 - check_confidence(confidence)) / 2
    points, weights = np.polynomial.legendre.leggauss(NODES)
    fpr = special.betaincinv(false_positives + 0.5, negatives - false_positives + 0.5, (points + 1) / 2)
    shape = false_negatives + 0.5, positives - false_negatives + 0.5

    def inside(epsilon: float) -> float:
        """The posterior mass of the pairs of error rates that (epsilon, delta)-DP allows."""
        # Divided through by e^epsilon where that is large, so that nothing overflows.
        small = math.exp(-epsilon)
        low = np.maximum((1 - delta - fpr) * small, 1 - delta - fpr / small if small > 0 else -np.inf)
        high = np.minimum(1 + (delta - fpr) * small, (1 - fpr) / small + delta if small > 0 else np.inf)
        low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
        mass = special.betainc(*shape, high) - special.betainc(*shape, low)
        return float((weights / 2 * np.maximum(mass, 0.0)).sum())

    def reaching(mass: float) -> float:
        low, high = 0.0, 1.0
        if inside(0.0) >= mass:
            return 0.0
        while inside(high) < mass and high < 600:
            high *= 2
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (low, middle) if inside(middle) >= mass else (middle, high)
        return high

    return reaching(error), reaching(1 - error)


def allowed_tpr(fpr: ArrayLike, epsilon: float, delta: float) -> Floats:
    """Return the largest true positive rate that (epsilon, delta)-DP allows at each false positive rate.

    Raises :class:`BenchError` on rates outside [0, 1], a negative epsilon or a delta outside [0, 1).
    """
    rates, small = _rates(fpr), math.exp(-_nonnegative_epsilon(epsilon))
    check_audit_delta(delta)
    # An epsilon of hundreds would overflow, and forbids nothing above a false positive rate of 0.
    steep = rates / small + delta if small > 1e-300 else np.where(rates > 0, 1.0, delta)
    return np.clip(np.minimum(steep, 1 - small * (1 - delta - rates)), 0.0, 1.0)


def allowed_gdp_tpr(fpr: ArrayLike, mu: float) -> Floats:
    """Return the true positive rate that mu-Gaussian-DP allows at each false positive rate.

    Raises :class:`BenchError` on rates outside [0, 1] or a mu that is negative or infinite.
    """
    if not (math.isfinite(mu) and mu >= 0):
        raise BenchError(f"mu must be a finite number of at least 0, not {mu}.")
    allowed: Floats = np.asarray(special.ndtr(special.ndtri(_rates(fpr)) + mu), dtype=np.float64)
    return allowed


def allowed_accuracy(epsilon: float, delta: float) -> float:
    """Return the largest accuracy of a membership guess, for a fair coin, that (epsilon, delta)-DP allows."""
    small = math.exp(-_nonnegative_epsilon(epsilon))
    check_audit_delta(delta)
    return min((1 + delta * small) / (1 + small), 1.0)


def allowed_reconstruction(kappa: float, epsilon: float, *, replacement: bool = False) -> float:
    """Return the largest chance of a reconstruction under pure epsilon-DP where the best blind guess has `kappa`.

    For add-remove neighbours ``e^epsilon kappa``, at most 1 (Balle, Cherubin and Hayes 2022). With `replacement`, the
    posterior odds are at most ``e^epsilon`` times the prior odds: ``e^epsilon kappa / (e^epsilon kappa + 1 - kappa)``.

    Raises :class:`BenchError` on a kappa outside [0, 1] or a negative epsilon.
    """
    if not 0 <= kappa <= 1:
        raise BenchError(f"kappa is the chance of a blind guess and lies in [0, 1], not {kappa}.")
    small = math.exp(-_nonnegative_epsilon(epsilon))
    if replacement:
        return kappa / (kappa + (1 - kappa) * small) if kappa > 0 else 0.0
    return min(kappa / small, 1.0) if small > 0 else float(kappa > 0)


def _rates(fpr: ArrayLike) -> Floats:
    rates = np.asarray(fpr, dtype=np.float64)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise BenchError("false positive rates lie in [0, 1].")
    return rates


def _nonnegative_epsilon(epsilon: float) -> float:
    if math.isnan(epsilon) or epsilon < 0:
        raise BenchError(f"epsilon must be a number of at least 0, not {epsilon}.")
    return epsilon
