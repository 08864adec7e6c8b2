"""Privacy analysis of noisy voting by teachers (PATE), using only NumPy and SciPy.

*LNMax* adds Laplace noise of scale ``1 / gamma`` to every class count and releases the arg max (Papernot et al., ICLR
2017, arXiv:1610.05755). *GNMax* adds Gaussian noise of deviation ``sigma``; *Confident-GNMax* first checks, with noise,
that enough teachers agree (Papernot et al., ICLR 2018, arXiv:1802.08908). One changed record moves one vote: one count
falls by 1 and another rises by 1. *Data-dependent* bounds use the votes, are themselves private and must not be
published: :mod:`bench.privacy.accounting.smooth_sensitivity` sanitises them. Votes are ``(queries, classes)``;
per-query figures have queries on the first axis. Tiny values are kept as natural logarithms, so unanimous and tied rows
lose no accuracy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from bench.core.errors import BenchError
from bench.privacy.events.base_event import Floats, positive

LARGEST_MOMENT = 64
PUBLISHED_LARGEST_MOMENT = 8
"""The largest moment behind the figures printed in the 2017 paper."""
ORDERS: Floats = np.concatenate([np.arange(2.0, 100.0, 0.5), np.logspace(2.0, math.log10(500.0), 100)])
"""Renyi orders over which the 2018 figures are minimised."""
ORDERS.flags.writeable = False


def check_votes(votes: ArrayLike, teachers: int | None = None) -> Floats:
    """Return `votes` as float64 ``(queries, classes)``; without `teachers`, the first row's sum is their number.

    Raises :class:`BenchError` on another shape or type; the error names the first row with a negative, fractional or
    non-finite count or a sum other than `teachers`.
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
    rows = np.asarray(bad.any(axis=1))
    if rows.any():
        row = int(np.argmax(rows))
        shown = np.array2string(counts[row], threshold=16)
        raise BenchError(
            f"votes row {row} {what} (it is {shown}, sum {counts[row].sum():g}; {int(rows.sum())} such rows). "
            "Every row holds whole counts >= 0 that sum to the number of teachers."
        )


def _gaps(votes: Floats) -> Floats:
    """Return the winner's lead over each other class: ``(queries, classes - 1)``, never negative."""
    ordered = np.sort(votes, axis=1)
    return ordered[:, -1:] - ordered[:, :-1]


def lnmax_log_q(votes: Floats, gamma: float) -> Floats:
    """Return ``(queries,)``: log of the bound on the probability that noise changes the winner (ICLR 2017, lemma 4)."""
    scaled = gamma * _gaps(votes)
    log_q = special.logsumexp(np.log(2.0 + scaled) - math.log(4.0) - scaled, axis=1)
    capped: Floats = np.minimum(log_q, math.log1p(-1.0 / votes.shape[1]))
    return capped


def lnmax_moments(log_q: Floats, gamma: float, moments: ArrayLike) -> Floats:
    """Return ``(queries, moments)``: least bound on log moments by pure ``2 gamma``-DP and theorem 3 (ICLR 2017)."""
    order = np.asarray(moments, dtype=np.float64)[None, :]
    bound = np.broadcast_to(_moments_of_pure(2 * gamma, order), (log_q.size, order.size)).copy()
    usable = log_q < -np.logaddexp(0.0, 2 * gamma)
    if usable.any():
        small = log_q[usable][:, None]
        # Both arguments lie in (0, 1): usable implies that q * exp(2 gamma) < 1 - q.
        stay = (order + 1) * np.log1p(-np.exp(small)) - order * np.log1p(-np.exp(small + 2 * gamma))
        move = small + 2 * gamma * order
        bound[usable] = np.minimum(bound[usable], np.maximum(np.logaddexp(stay, move), 0.0))
    return bound


def _moments_of_pure(epsilon: float, order: Floats) -> Floats:
    return np.minimum(epsilon**2 * order * (order + 1) / 2, epsilon * order)


def _least_over_moments(total: Floats, moments: Floats, delta: float) -> tuple[float, int]:
    epsilons = (total - math.log(delta)) / moments
    best = int(np.argmin(epsilons))
    return float(epsilons[best]), int(moments[best])


def lnmax_epsilon(votes: Floats, gamma: float, delta: float, largest_moment: int = LARGEST_MOMENT) -> tuple[float, int]:
    """Return the private, data-dependent epsilon of LNMax on `votes` and its moment (ICLR 2017, moments accountant)."""
    moments = np.arange(1.0, _moment(largest_moment) + 1)
    total = lnmax_moments(lnmax_log_q(votes, positive("gamma", gamma)), gamma, moments).sum(axis=0)
    return _least_over_moments(total, moments, delta)


def lnmax_epsilon_published(
    votes: Floats, gamma: float, delta: float, largest_moment: int = PUBLISHED_LARGEST_MOMENT
) -> tuple[float, int]:
    """Return the 2017 paper's figure for LNMax of `gamma`, and its moment.

    The printed analysis counts twice that one record moves two counts: it gives the cost at ``2 gamma``, i.e. half the
    noise. It does not bound the actual noise's cost, as with half the noise the winner changes less often.
    """
    return lnmax_epsilon(votes, 2 * gamma, delta, largest_moment)


def pure_moments_epsilon(
    epsilon: float, count: int, delta: float, largest_moment: int = LARGEST_MOMENT
) -> tuple[float, int]:
    """Return epsilon and its moment for `count` runs of pure `epsilon` (LNMax: ``2 gamma``); ICLR 2017, theorem 2."""
    moments = np.arange(1.0, _moment(largest_moment) + 1)
    return _least_over_moments(count * _moments_of_pure(epsilon, moments), moments, delta)


def _moment(largest: int) -> int:
    if largest < 1:
        raise BenchError(f"the largest moment must be at least 1, not {largest}. The default is {LARGEST_MOMENT}.")
    if largest > 10**6:
        raise BenchError("the largest moment must be at most 1,000,000. The best moments are small.")
    return int(largest)


def gnmax_log_q(votes: Floats, sigma: float) -> Floats:
    """Return ``(queries,)``: log of the bound on the probability that noise changes the winner (ICLR 2018, prop. 7)."""
    log_q = special.logsumexp(special.log_ndtr(-_gaps(votes) / (math.sqrt(2.0) * sigma)), axis=1)
    capped: Floats = np.minimum(log_q, math.log1p(-1.0 / votes.shape[1]))
    return capped


def gaussian_rdp_from_log_q(log_q: ArrayLike, sigma: float, orders: ArrayLike) -> Floats:
    """Return ``(queries, orders)``: GNMax's Renyi divergence if the unlikely outcome has probability ``exp(log_q)``.

    The lesser of the data-independent ``order / sigma**2`` and, if applicable, theorem 6 of ICLR 2018 at its best
    orders for Gaussian noise. `log_q` is ``(queries,)`` or one number, `orders` ``(orders,)``, all above 1.
    """
    log_q = np.atleast_1d(np.asarray(log_q, dtype=np.float64))
    order = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    variance = sigma**2
    bound = np.broadcast_to(order / variance, (log_q.size, order.size)).copy()
    certain = np.isneginf(log_q)
    bound[certain] = 0.0
    # The chosen orders mu2 and mu1 = mu2 + 1, and the divergences e2 and e1 at them.
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


def log_answered(votes: Floats, threshold: float, sigma1: float) -> Floats:
    """Return ``(queries,)``: log of the probability that the noisy top count reaches `threshold`."""
    log_p: Floats = special.log_ndtr((votes.max(axis=1) - threshold) / sigma1)
    return log_p


def threshold_rdp(votes: Floats, threshold: float, sigma1: float, orders: ArrayLike = ORDERS) -> Floats:
    """Return ``(queries, orders)``: the data-dependent Renyi divergence of the threshold check, paid on every query.

    q is the rarer outcome's. The top count has sensitivity 1, as if ``sqrt(2) sigma1`` hid two moved counts.
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

    `sigma1` is the noise on the top count, `sigma2` that on an answered query's counts. `answered` ``(queries,)`` marks
    the queries answered in a run; without it each is weighted by its answer probability, which gives an average.
    """
    positive("sigma1", sigma1)
    weight = answer_weights(votes, threshold, sigma1, answered)
    spent: Floats = threshold_rdp(votes, threshold, sigma1, orders).sum(axis=0)
    return spent + weight @ gnmax_rdp(votes, sigma2, orders)


def answer_weights(votes: Floats, threshold: float, sigma1: float, answered: ArrayLike | None) -> Floats:
    """Return ``(queries,)``: the weight of each query's answer, in [0, 1]; see :func:`confident_rdp`."""
    if not math.isfinite(threshold):
        raise BenchError(f"the threshold must be a finite number of votes, not {threshold}.")
    if answered is None:
        return np.exp(log_answered(votes, threshold, sigma1))
    given: Any = np.asarray(answered)
    weight: Floats = given.astype(np.float64)
    if weight.shape != (votes.shape[0],) or not np.isin(weight, (0.0, 1.0)).all():
        raise BenchError(f"answered must hold one yes or no for each of the {votes.shape[0]} queries.")
    return weight
