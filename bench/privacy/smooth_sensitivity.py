"""Smooth sensitivity of the data-dependent cost of GNMax, and its sanitised release (ICLR 2018, arXiv:1802.08908).

The data-dependent Renyi divergence of a run depends on the votes and is private itself. It can be published with noise
scaled to its *smooth sensitivity*: the largest change that one vote makes, here or in any votes nearby, discounted by
``exp(-beta)`` for each vote of distance. Everything is for one Renyi order, which like `beta` and `sigma_ss` has to be
fixed before the votes are looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from bench.core.errors import BenchError
from bench.privacy.base_event import positive
from bench.privacy.conversions import check_delta, classic_epsilon
from bench.privacy.pate import answer_weights, confident_rdp, gaussian_rdp_from_log_q, gnmax_log_q, threshold_rdp

if TYPE_CHECKING:
    from bench.privacy.events import ConfidentGNMax, GNMax

Floats = NDArray[np.float64]


def _bound(log_q: Floats, sigma: float, order: float) -> Floats:
    """Return the divergence bound at each of `log_q`, of the same shape."""
    bound: Floats = gaussian_rdp_from_log_q(log_q.ravel(), sigma, [order])[:, 0].reshape(log_q.shape)
    return bound


def shifted_log_q(log_q: ArrayLike, sigma: float, classes: int, up: bool) -> Floats:
    """Return log of the largest (`up`) or smallest q that votes one move away can have.

    A vote that moves changes every gap by at most 2, so every term's normal quantile by ``sqrt(2) / sigma``; the sum of
    the terms moves most where all are alike.

    Args:
        log_q: Log of the present bound, any shape.
        sigma: Standard deviation of the noise on every count.
        classes: Number of classes, at least 2.
        up: Towards the larger q.

    """
    others = classes - 1
    quantile = -special.ndtri_exp(np.asarray(log_q, dtype=np.float64) - math.log(others))
    moved = quantile + math.sqrt(2.0) / sigma * (-1 if up else 1)
    shifted: Floats = np.minimum(math.log(others) + special.log_ndtr(-moved), 0.0)
    return shifted


@lru_cache(maxsize=256)
def plateau(sigma: float, order: float, classes: int) -> tuple[float, float]:
    """Return ``(log q1, log q0)``: between them the local sensitivity is held at its value in q1.

    From q0 upwards the bound that needs no votes is the smaller one; q1 is one vote below q0.
    """
    independent = order / sigma**2

    def helps(log_q: float) -> bool:
        return float(gaussian_rdp_from_log_q(log_q, sigma, [order])[0, 0]) < independent * (1 - 1e-12)

    low, high = -1.0, 0.0
    while not helps(low):
        low *= 2
        if low < -1e8:
            raise BenchError(f"no votes make GNMax of sigma {sigma:g} cheaper at order {order:g}: use a smaller order.")
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if helps(middle) else (low, middle)
    return float(shifted_log_q(low, sigma, classes, up=False)), low


def gnmax_local_sensitivity(log_q: ArrayLike, sigma: float, order: float, classes: int) -> Floats:
    """Return a bound on how much one moved vote changes the divergence of a query whose bound is `log_q`.

    Args:
        log_q: Any shape; the result has it too.
        sigma: Standard deviation of the noise on every count.
        order: The Renyi order.
        classes: Number of classes.

    """
    log_q1, log_q0 = plateau(sigma, order, classes)
    here = np.asarray(log_q, dtype=np.float64)
    here = np.where((here >= log_q1) & (here <= log_q0), log_q1, here)
    value = _bound(here, sigma, order)
    above = _bound(shifted_log_q(here, sigma, classes, up=True), sigma, order)
    below = _bound(shifted_log_q(here, sigma, classes, up=False), sigma, order)
    sensitivity: Floats = np.maximum(np.maximum(above - value, value - below), 0.0)
    return sensitivity


def gnmax_sensitivity_at_distance(votes: Floats, sigma: float, order: float) -> Floats:
    """Return ``(queries, teachers)``: the local sensitivity of each query at each distance in votes, from 0 up.

    Each step moves one vote between the two top classes, towards the q at which the sensitivity is largest; once
    there, or where no vote is left to move, it stays at its largest value.
    """
    queries, classes = votes.shape
    teachers = round(float(votes[0].sum()))
    log_q1, log_q0 = plateau(sigma, order, classes)
    top = float(gnmax_local_sensitivity(log_q1, sigma, order, classes))
    result = np.full((queries, teachers), top)
    counts = -np.sort(-votes, axis=1)
    log_q = gnmax_log_q(counts, sigma)
    rows = np.flatnonzero((log_q < log_q1) | (log_q > log_q0))
    counts, log_q = counts[rows], log_q[rows]
    widen = log_q > log_q0
    for distance in range(teachers):
        if rows.size == 0:
            break
        result[rows, distance] = gnmax_local_sensitivity(log_q, sigma, order, classes)
        # Who has arrived stays on the plateau; who cannot move is given the plateau's value too, which is no less.
        going = np.where(widen, counts[:, 1] > 0, counts[:, 0] > counts[:, 1])
        rows, counts, widen = rows[going], counts[going], widen[going]
        step = np.where(widen, 1.0, -1.0)
        counts[:, 0] += step
        counts[:, 1] -= step
        counts = -np.sort(-counts, axis=1)
        log_q = gnmax_log_q(counts, sigma) if rows.size else log_q[:0]
        outside = np.where(widen, log_q > log_q0, log_q < log_q1)
        rows, counts, widen, log_q = rows[outside], counts[outside], widen[outside], log_q[outside]
    return result


@lru_cache(maxsize=256)
def check_shape(sigma: float, order: float, classes: int) -> None:
    """Check on a fine grid what the walk over distances relies on.

    The divergence must rise with q, and the local sensitivity must rise up to the plateau and fall after it.

    Raises:
        BenchError: Where it is not so for this noise, order and number of classes; no release is sound then.

    """
    log_q1, log_q0 = plateau(sigma, order, classes)
    grid = np.unique(np.concatenate([-np.logspace(-3, math.log10(-40 * log_q1 + 40), 4000), [log_q1, log_q0]]))
    slack = 1e-12 * order / sigma**2
    local = gnmax_local_sensitivity(grid, sigma, order, classes)
    rises = (np.diff(_bound(grid, sigma, order)) >= -slack).all() and (np.diff(local[grid <= log_q1]) >= -slack).all()
    if not (rises and (np.diff(local[grid >= log_q0]) <= slack).all()):
        raise BenchError(
            f"the smooth sensitivity of GNMax is not known for sigma {sigma:g} at order {order:g} with {classes} "
            "classes: use more noise or another order."
        )


def threshold_sensitivity_at_distance(votes: Floats, threshold: float, sigma1: float, order: float) -> Floats:
    """Return ``(queries, teachers)``: how much one vote changes the threshold's divergence, by distance in votes.

    The divergence depends on the top count alone, so every count that so many moves can reach is looked at.
    """
    teachers = round(float(votes[0].sum()))
    tops = np.arange(teachers + 1.0)
    cost = threshold_rdp(tops[:, None], threshold, sigma1, [order])[:, 0]
    change = np.abs(np.diff(cost))
    local = np.maximum(np.append(change, 0.0), np.insert(change, 0, 0.0))
    # reach[c, d] is the largest local value within d of count c.
    reach = np.empty((teachers + 1, teachers))
    reach[:, 0] = local
    for distance in range(1, teachers):
        before = reach[:, distance - 1]
        reach[:, distance] = np.maximum(before, np.maximum(np.append(before[1:], 0.0), np.insert(before[:-1], 0, 0.0)))
    at_distance: Floats = reach[np.rint(votes.max(axis=1)).astype(int)]
    return at_distance


def smooth(sensitivity: Floats, beta: float) -> float:
    """Return the largest of ``exp(-beta * distance) * sensitivity[distance]``."""
    return float(np.max(np.exp(-beta * np.arange(sensitivity.size)) * sensitivity))


def smooth_sensitivity(
    votes: Floats,
    sigma2: float,
    order: float,
    beta: float,
    threshold: float | None = None,
    sigma1: float | None = None,
    answered: ArrayLike | None = None,
) -> float:
    """Return the smooth sensitivity of the data-dependent divergence of a whole run at one order.

    Args:
        votes: ``(queries, classes)``.
        sigma2: Noise on the counts.
        order: The Renyi order, above 1.
        beta: Discount per vote of distance.
        threshold: For Confident-GNMax, the count to reach; None for plain GNMax.
        sigma1: For Confident-GNMax, the noise on the top count.
        answered: Which queries were answered, as in :func:`bench.privacy.pate.confident_rdp`.

    Raises:
        BenchError: Where a parameter is out of its range, or no votes could help at this order.

    """
    positive("sigma2", sigma2)
    positive("beta", beta)
    check_shape(float(sigma2), float(_order(order)), votes.shape[1])
    local = gnmax_sensitivity_at_distance(votes, sigma2, order)
    if threshold is None or sigma1 is None:
        return smooth(local.sum(axis=0), beta)
    weight = answer_weights(votes, threshold, positive("sigma1", sigma1), answered)
    return smooth(weight @ local + threshold_sensitivity_at_distance(votes, threshold, sigma1, order).sum(axis=0), beta)


def _order(order: float) -> float:
    if not (math.isfinite(order) and order > 1):
        raise BenchError(f"the Renyi order must be finite and above 1, not {order}. Try 14.")
    return order


def release_rdp(order: float, beta: float, sigma_ss: float) -> float:
    """Return the Renyi divergence of a release with Gaussian noise of ``sigma_ss`` times the smooth sensitivity.

    The noise scales with a quantity that depends on the data itself, which costs the second term (ICLR 2018, appendix).

    Raises:
        BenchError: Where `order` is not between 1 and ``1 / (2 beta)``.

    """
    positive("beta", beta)
    positive("sigma_ss", sigma_ss)
    if not 1 < _order(order) < 1 / (2 * beta):
        raise BenchError(
            f"beta {beta:g} allows Renyi orders between 1 and {1 / (2 * beta):g}, not {order:g}: use a smaller beta."
        )
    spread = order * math.exp(2 * beta) / sigma_ss**2
    return spread + (beta * order - 0.5 * math.log1p(-2 * order * beta)) / (order - 1)


def default_release(order: float) -> tuple[float, float]:
    """Return ``(beta, sigma_ss)`` for a release at `order`, from the order alone and so without a look at the votes.

    The constants 0.46 and 0.385 are those of the paper's MNIST run (order 14: beta 0.0329, sigma_ss 6.23); a release
    then costs about half an epsilon.
    """
    beta = 0.46 / _order(order)
    return beta, math.sqrt(order * math.exp(2 * beta) / 0.385)


@dataclass(frozen=True, slots=True)
class Sanitised:
    """What publishing a data-dependent epsilon with noise gives, at one order.

    `mean` and `smooth_sensitivity` look at the votes and are private; only one draw of :meth:`release` may leave.
    """

    mean: float
    """The average published epsilon: data-dependent, and the cost of publishing it."""
    deviation: float
    """The standard deviation of the published epsilon."""
    smooth_sensitivity: float
    order: float
    beta: float
    sigma_ss: float

    def release(self, rng: np.random.Generator) -> float:
        """Return one noisy epsilon that may be published. A second draw would cost again."""
        return self.mean + self.deviation * float(rng.standard_normal())


def check_release(event: GNMax | ConfidentGNMax, delta: float, classes: int) -> float:
    """Return the order at which :func:`sanitise` publishes the cost of `event`, chosen without votes.

    Raises :class:`BenchError` where no sound release is known for this noise: before any vote is cast.
    """
    from bench.privacy.accountants import pate_2018
    from bench.privacy.events import ConfidentGNMax

    best = pate_2018([event], delta)
    assert best is not None
    assert best.order is not None
    check_shape(float(event.sigma2 if isinstance(event, ConfidentGNMax) else event.sigma), float(best.order), classes)
    return float(best.order)


def sanitise(
    votes: Floats,
    sigma2: float,
    delta: float,
    order: float,
    beta: float | None = None,
    sigma_ss: float | None = None,
    threshold: float | None = None,
    sigma1: float | None = None,
    answered: ArrayLike | None = None,
) -> Sanitised:
    """Return the sanitised epsilon of a GNMax run, or of Confident-GNMax where `threshold` and `sigma1` are given.

    Args:
        votes: ``(queries, classes)``.
        sigma2: Noise on the counts.
        delta: Strictly between 0 and 1.
        order: The Renyi order, chosen without the votes.
        beta: Discount of the smooth sensitivity, below ``1 / (2 order)``; by default :func:`default_release`.
        sigma_ss: Noise of the release in units of the smooth sensitivity; by default :func:`default_release`.
        threshold: The count to reach.
        sigma1: Noise on the top count.
        answered: Which queries were answered.

    Raises:
        BenchError: Where a parameter is out of its range.

    """
    check_delta(delta)
    default_beta, default_sigma = default_release(order)
    beta = default_beta if beta is None else beta
    sigma_ss = default_sigma if sigma_ss is None else sigma_ss
    extra = release_rdp(order, beta, sigma_ss)
    if threshold is None or sigma1 is None:
        rdp = _bound(gnmax_log_q(votes, positive("sigma2", sigma2)), sigma2, order).sum()
    else:
        rdp = confident_rdp(votes, threshold, sigma1, sigma2, [order], answered)[0]
    sensitivity = smooth_sensitivity(votes, sigma2, order, beta, threshold, sigma1, answered)
    mean, _ = classic_epsilon([order], [float(rdp) + extra], delta)
    return Sanitised(mean, sensitivity * sigma_ss, sensitivity, order, beta, sigma_ss)
