"""Privacy analysis of noisy voting by teachers (PATE), in NumPy and SciPy alone.

Two mechanisms are covered. *LNMax* adds Laplace noise of scale ``1 / gamma`` to every class count and releases the arg
max (Papernot et al., ICLR 2017, arXiv:1610.05755). *GNMax* adds Gaussian noise of standard deviation ``sigma``, and
*Confident-GNMax* first asks, with noise, whether enough teachers agree (Papernot et al., ICLR 2018, arXiv:1802.08908).

One changed record moves one vote: one count falls by 1 and another rises by 1.

Bounds that look at the votes are *data-dependent*: they are themselves private and must not be published as they are.
Smooth sensitivity and its sanitised release are in :mod:`bench.privacy.smooth_sensitivity`.

Shapes: votes are ``(queries, classes)``; everything per query has the queries on its first axis. Everything that may
be very small is kept as a natural logarithm, so that unanimous and tied rows cost no accuracy and raise no warning.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from bench.core.errors import BenchError
from bench.privacy.base_event import positive
from bench.privacy.conversions import classic_epsilon

Floats = NDArray[np.float64]

LARGEST_MOMENT = 64
"""How far the moments accountant looks where nobody says otherwise."""
PUBLISHED_LARGEST_MOMENT = 8
"""How far the analysis behind the figures printed in the 2017 paper looked."""
ORDERS: Floats = np.concatenate([np.arange(2.0, 100.0, 0.5), np.logspace(2.0, math.log10(500.0), 100)])
"""Renyi orders on which the 2018 figures are minimised."""
ORDERS.flags.writeable = False


def check_votes(votes: ArrayLike, teachers: int | None = None) -> Floats:
    """Return `votes` as a float array ``(queries, classes)`` once it can be the counts of one ensemble.

    Args:
        votes: Whole counts per query and class.
        teachers: How many teachers voted; without it, the sum of the first row.

    Raises:
        BenchError: Where the array is not two-dimensional, is empty, is not numeric, or has a row that is not finite,
            is negative, has broken votes or does not sum to the number of teachers. The first such row is named.

    """
    raw = np.asarray(votes)
    if raw.dtype.kind not in "biuf":
        raise BenchError(f"votes must be numbers, not {raw.dtype}. Give counts per query and class.")
    if raw.ndim != 2 or raw.shape[0] == 0 or raw.shape[1] < 2:
        raise BenchError(
            f"votes must have the shape (queries, classes) with at least 1 query and 2 classes, not {raw.shape}."
        )
    counts: Floats = raw.astype(np.float64)
    _refuse(~np.isfinite(counts), counts, "has a count that is not finite")
    _refuse(counts < 0, counts, "has a negative count")
    _refuse(counts != np.rint(counts), counts, "has a count that is not whole")
    sums = counts.sum(axis=1)
    expected = float(sums[0]) if teachers is None else float(teachers)
    if expected <= 0:
        raise BenchError("votes row 0 sums to 0: no teacher voted. Every row must sum to the number of teachers.")
    said = "as row 0 does" if teachers is None else "the number of teachers"
    _refuse((sums != expected)[:, None], counts, f"does not sum to {expected:g}, {said}")
    return counts


def _refuse(bad: NDArray[np.bool_], counts: Floats, what: str) -> None:
    """Raise for the first row of `counts` of which anything is marked in `bad`."""
    rows = np.asarray(bad.any(axis=1))
    if rows.any():
        row = int(np.argmax(rows))
        shown = np.array2string(counts[row], threshold=16)
        raise BenchError(
            f"votes row {row} {what} (it is {shown}, sum {counts[row].sum():g}; {int(rows.sum())} such rows). "
            "Every row holds whole counts >= 0 that sum to the number of teachers."
        )


def _gaps(votes: Floats) -> Floats:
    """Return how far the winner leads each other class: ``(queries, classes - 1)``, never negative."""
    ordered = np.sort(votes, axis=1)
    gaps: Floats = ordered[:, -1:] - ordered[:, :-1]
    return gaps


# --------------------------------------------------------------------------------------------------------------- LNMax


def lnmax_log_q(votes: Floats, gamma: float) -> Floats:
    """Return ``(queries,)``: log of the bound on the chance that noise changes the winner.

    The bound is the sum over the other classes of ``(2 + gamma * gap) / (4 * exp(gamma * gap))``, at most
    ``1 - 1 / classes`` (ICLR 2017, lemma 4).
    """
    scaled = gamma * _gaps(votes)
    log_q = special.logsumexp(np.log(2.0 + scaled) - math.log(4.0) - scaled, axis=1)
    capped: Floats = np.minimum(log_q, math.log1p(-1.0 / votes.shape[1]))
    return capped


def lnmax_moments(log_q: Floats, gamma: float, moments: ArrayLike) -> Floats:
    """Return ``(queries, moments)``: the log moments of the privacy loss of each query.

    The least of three bounds: the two that hold for any mechanism of pure epsilon ``2 gamma``, and, where `log_q` is
    small enough for it, the one of theorem 3 (ICLR 2017).
    """
    order = np.asarray(moments, dtype=np.float64)[None, :]
    bound = np.broadcast_to(_moments_of_pure(2 * gamma, order), (log_q.size, order.size)).copy()
    usable = log_q < -np.logaddexp(0.0, 2 * gamma)
    if usable.any():
        small = log_q[usable][:, None]
        # Both logarithms are of numbers in (0, 1), as usable says that q * exp(2 gamma) < 1 - q.
        stay = (order + 1) * np.log1p(-np.exp(small)) - order * np.log1p(-np.exp(small + 2 * gamma))
        move = small + 2 * gamma * order
        bound[usable] = np.minimum(bound[usable], np.maximum(np.logaddexp(stay, move), 0.0))
    return bound


def _moments_of_pure(epsilon: float, order: Floats) -> Floats:
    """Return the log moments that any mechanism of pure `epsilon` keeps to."""
    bound: Floats = np.minimum(epsilon**2 * order * (order + 1) / 2, epsilon * order)
    return bound


def _least_over_moments(total: Floats, moments: Floats, delta: float) -> tuple[float, int]:
    epsilons = (total - math.log(delta)) / moments
    best = int(np.argmin(epsilons))
    return float(epsilons[best]), int(moments[best])


def lnmax_epsilon(votes: Floats, gamma: float, delta: float, largest_moment: int = LARGEST_MOMENT) -> tuple[float, int]:
    """Return the data-dependent epsilon of answering every row of `votes` by LNMax, and the moment that gives it.

    Moments accountant of ICLR 2017 over the whole moments up to `largest_moment`. The figure is private.
    """
    moments = np.arange(1.0, _moment(largest_moment) + 1)
    total = lnmax_moments(lnmax_log_q(votes, positive("gamma", gamma)), gamma, moments).sum(axis=0)
    return _least_over_moments(total, moments, delta)


def lnmax_epsilon_published(
    votes: Floats, gamma: float, delta: float, largest_moment: int = PUBLISHED_LARGEST_MOMENT
) -> tuple[float, int]:
    """Return what the 2017 paper prints for LNMax of `gamma`, and its moment.

    The analysis behind the printed figures counts twice that one record moves two counts: it is the cost of LNMax with
    ``2 gamma``, half the noise. It bounds nothing for the noise that was really drawn, as with half the noise the
    winner is less often changed.
    """
    return lnmax_epsilon(votes, 2 * gamma, delta, largest_moment)


def pure_moments_epsilon(
    epsilon: float, count: int, delta: float, largest_moment: int = LARGEST_MOMENT
) -> tuple[float, int]:
    """Return the data-independent moments accountant of `count` mechanisms of pure `epsilon` each, and its moment.

    For LNMax, `epsilon` is ``2 gamma`` (ICLR 2017, theorem 2).
    """
    moments = np.arange(1.0, _moment(largest_moment) + 1)
    return _least_over_moments(count * _moments_of_pure(epsilon, moments), moments, delta)


def _moment(largest: int) -> int:
    if largest < 1:
        raise BenchError(f"the largest moment must be at least 1, not {largest}. The default is {LARGEST_MOMENT}.")
    return int(largest)


# --------------------------------------------------------------------------------------------------------------- GNMax


def gnmax_log_q(votes: Floats, sigma: float) -> Floats:
    """Return ``(queries,)``: log of the bound on the chance that Gaussian noise changes the winner.

    The bound is half the sum over the other classes of ``erfc(gap / (2 sigma))``, at most ``1 - 1 / classes``
    (ICLR 2018, proposition 7).
    """
    log_q = special.logsumexp(special.log_ndtr(-_gaps(votes) / (math.sqrt(2.0) * sigma)), axis=1)
    capped: Floats = np.minimum(log_q, math.log1p(-1.0 / votes.shape[1]))
    return capped


def gaussian_rdp_from_log_q(log_q: ArrayLike, sigma: float, orders: ArrayLike) -> Floats:
    """Return ``(queries, orders)``: the Renyi divergence of GNMax where a surprise has probability at most `q`.

    Theorem 6 of ICLR 2018 at the orders that it allows best for Gaussian noise; where it does not apply, and where it
    is less, the bound ``order / sigma**2`` that needs no votes.

    Args:
        log_q: ``(queries,)``, or one number.
        sigma: Standard deviation of the noise on every count.
        orders: ``(orders,)``, all above 1.

    """
    log_q = np.atleast_1d(np.asarray(log_q, dtype=np.float64))
    order = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    variance = sigma**2
    bound = np.broadcast_to(order / variance, (log_q.size, order.size)).copy()
    certain = np.isneginf(log_q)
    bound[certain] = 0.0
    # The chosen orders mu2 and mu1 = mu2 + 1, and the divergences e2 and e1 there.
    mu2 = sigma * np.sqrt(np.maximum(-log_q, 0.0))
    usable = (mu2 > 1.0) & ~certain
    if not usable.any():
        return bound
    small, mu2 = log_q[usable], mu2[usable]
    mu1, e2 = mu2 + 1.0, mu2 / variance
    e1 = mu1 / variance
    allowed = (-small > e2) & (small <= (mu2 - 1) * e2 - mu2 * (np.log(mu1 / (mu1 - 1)) + np.log(mu2 / (mu2 - 1))))
    rows = np.flatnonzero(usable)[allowed]
    if rows.size == 0:
        return bound
    small, mu1, mu2, e1, e2 = (x[allowed][:, None] for x in (small, mu1, mu2, e1, e2))
    log_keep = np.log1p(-np.exp(small))
    log_a = log_keep - np.log1p(-np.exp((small + e2) * (mu2 - 1) / mu2))
    log_b = e1 - small / (mu1 - 1)
    power = order[None, :] - 1
    dependent = np.logaddexp(log_keep + power * log_a, small + power * log_b) / power
    dependent = np.where(order[None, :] <= mu1, np.maximum(dependent, 0.0), np.inf)
    bound[rows] = np.minimum(bound[rows], dependent)
    return bound


def gnmax_rdp(votes: Floats, sigma: float, orders: ArrayLike = ORDERS) -> Floats:
    """Return ``(queries, orders)``: the data-dependent Renyi divergence of answering each row by GNMax."""
    return gaussian_rdp_from_log_q(gnmax_log_q(votes, positive("sigma", sigma)), sigma, orders)


def gnmax_epsilon(votes: Floats, sigma: float, delta: float, orders: ArrayLike = ORDERS) -> tuple[float, float]:
    """Return the data-dependent epsilon of answering every row by GNMax, and its order. The figure is private."""
    return classic_epsilon(orders, gnmax_rdp(votes, sigma, orders).sum(axis=0), delta)


# ----------------------------------------------------------------------------------------------------- Confident-GNMax


def log_answered(votes: Floats, threshold: float, sigma1: float) -> Floats:
    """Return ``(queries,)``: log of the probability that the noisy top count reaches `threshold`."""
    log_p: Floats = special.log_ndtr((votes.max(axis=1) - threshold) / sigma1)
    return log_p


def threshold_rdp(votes: Floats, threshold: float, sigma1: float, orders: ArrayLike = ORDERS) -> Floats:
    """Return ``(queries, orders)``: the data-dependent Renyi divergence of asking whether enough teachers agree.

    The rarer of the two answers is the surprise, and the top count has sensitivity 1, as if the noise were ``sqrt(2)
    sigma1`` on a vote that moves two counts. It is paid on every query, answered or not.
    """
    shift = (votes.max(axis=1) - threshold) / sigma1
    return gaussian_rdp_from_log_q(special.log_ndtr(-np.abs(shift)), math.sqrt(2.0) * sigma1, orders)


def confident_rdp(
    votes: Floats,
    threshold: float,
    sigma1: float,
    sigma2: float,
    orders: ArrayLike = ORDERS,
    answered: ArrayLike | None = None,
) -> Floats:
    """Return ``(orders,)``: the data-dependent Renyi divergence of a whole Confident-GNMax run.

    Args:
        votes: ``(queries, classes)``.
        threshold: The count that the noisy top count must reach.
        sigma1: Noise on the top count.
        sigma2: Noise on the counts of an answered query.
        orders: ``(orders,)``.
        answered: ``(queries,)``, which queries were answered in a run that took place (True or 1). Without it each
            query counts by its probability of being answered: what a run costs on average, before it takes place.

    """
    positive("sigma1", sigma1)
    weight = answer_weights(votes, threshold, sigma1, answered)
    spent: Floats = threshold_rdp(votes, threshold, sigma1, orders).sum(axis=0)
    return spent + weight @ gnmax_rdp(votes, sigma2, orders)


def confident_epsilon(
    votes: Floats,
    threshold: float,
    sigma1: float,
    sigma2: float,
    delta: float,
    orders: ArrayLike = ORDERS,
    answered: ArrayLike | None = None,
) -> tuple[float, float]:
    """Return the data-dependent epsilon of a Confident-GNMax run and its order: see :func:`confident_rdp`."""
    return classic_epsilon(orders, confident_rdp(votes, threshold, sigma1, sigma2, orders, answered), delta)


def confident_independent_rdp(
    queries: float, answers: float, sigma1: float, sigma2: float, orders: ArrayLike = ORDERS
) -> Floats:
    """Return ``(orders,)``: the Renyi divergence of `queries` thresholds and `answers` answers, whatever the votes.

    `answers` may be an expected number; the sum then is an average and no guarantee.
    """
    order = np.asarray(orders, dtype=np.float64)
    total: Floats = order * (queries / (2 * sigma1**2) + answers / sigma2**2)
    return total


def answer_weights(votes: Floats, threshold: float, sigma1: float, answered: ArrayLike | None) -> Floats:
    """Return ``(queries,)``: how much each query's answer counts."""
    if not math.isfinite(threshold):
        raise BenchError(f"the threshold must be a finite number of votes, not {threshold}.")
    if answered is None:
        return np.exp(log_answered(votes, threshold, sigma1))
    given: Any = np.asarray(answered)
    weight: Floats = given.astype(np.float64)
    if weight.shape != (votes.shape[0],) or not np.isin(weight, (0.0, 1.0)).all():
        raise BenchError(f"answered must hold one yes or no for each of the {votes.shape[0]} queries.")
    return weight
