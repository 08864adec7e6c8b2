"""Smooth sensitivity of the data-dependent cost of GNMax, and its sanitised release (ICLR 2018, arXiv:1802.08908).

The data-dependent Renyi divergence of a run is itself private. It may be published with noise scaled to its *smooth
sensitivity*: the largest change from one vote, here or at any votes nearby, discounted by ``exp(-beta)`` per vote of
distance. Everything is for one Renyi order; order, `beta` and `sigma_ss` must be chosen without the votes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from bench.core.errors import BenchError
from bench.privacy.accounting import pate
from bench.privacy.accounting.accountants import pate_2018
from bench.privacy.events.base_event import Floats, positive
from bench.privacy.events.conversions import check_delta, classic_epsilon
from bench.privacy.events.events import ConfidentGNMax, GNMax


def _bound(log_q: Floats, sigma: float, order: float) -> Floats:
    """Return the divergence bound at each of `log_q`, in its shape."""
    return pate.gaussian_rdp_from_log_q(log_q.ravel(), sigma, [order])[:, 0].reshape(log_q.shape)


def shifted_log_q(log_q: ArrayLike, sigma: float, classes: int, up: bool) -> Floats:
    """Return, in the shape of `log_q`, the log of the largest (`up`) or smallest q among votes one move away.

    A moved vote changes every gap by at most 2, and so each term's normal quantile by ``sqrt(2) / sigma``; the sum of
    the terms changes most if all are equal.
    """
    others = classes - 1
    quantile = -special.ndtri_exp(np.asarray(log_q, dtype=np.float64) - math.log(others))
    moved = quantile + math.sqrt(2.0) / sigma * (-1 if up else 1)
    shifted: Floats = np.minimum(math.log(others) + special.log_ndtr(-moved), 0.0)
    return shifted


@lru_cache(maxsize=256)
def plateau(sigma: float, order: float, classes: int) -> tuple[float, float]:
    """Return ``(log q1, log q0)``, one vote apart: q1's sensitivity holds up to q0, then the independent bound."""
    independent = order / sigma**2

    def helps(log_q: float) -> bool:
        return float(pate.gaussian_rdp_from_log_q(log_q, sigma, [order])[0, 0]) < independent * (1 - 1e-12)

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
    """Return, in the shape of `log_q`, a bound on the change in a query's divergence from one moved vote."""
    log_q1, log_q0 = plateau(sigma, order, classes)
    here = np.asarray(log_q, dtype=np.float64)
    here = np.where((here >= log_q1) & (here <= log_q0), log_q1, here)
    value = _bound(here, sigma, order)
    above = _bound(shifted_log_q(here, sigma, classes, up=True), sigma, order)
    below = _bound(shifted_log_q(here, sigma, classes, up=False), sigma, order)
    return np.maximum(np.maximum(above - value, value - below), 0.0)


def gnmax_sensitivity_at_distance(votes: Floats, sigma: float, order: float) -> Floats:
    """Return ``(queries, teachers)``: the local sensitivity of each query at each distance in votes, from 0 up.

    Steps move a vote between the two top classes; from the most sensitive q, or without votes, the largest value stays.
    """
    queries, classes = votes.shape
    teachers = round(float(votes[0].sum()))
    log_q1, log_q0 = plateau(sigma, order, classes)
    top = float(gnmax_local_sensitivity(log_q1, sigma, order, classes))
    result = np.full((queries, teachers), top)
    counts = -np.sort(-votes, axis=1)
    log_q = pate.gnmax_log_q(counts, sigma)
    rows = np.flatnonzero((log_q < log_q1) | (log_q > log_q0))
    counts, log_q = counts[rows], log_q[rows]
    widen = log_q > log_q0
    for distance in range(teachers):
        if rows.size == 0:
            break
        result[rows, distance] = gnmax_local_sensitivity(log_q, sigma, order, classes)
        # A row on the plateau stays; a row that cannot move also gets the plateau's value, which is an upper bound.
        going = np.where(widen, counts[:, 1] > 0, counts[:, 0] > counts[:, 1])
        rows, counts, widen = rows[going], counts[going], widen[going]
        step = np.where(widen, 1.0, -1.0)
        counts[:, 0] += step
        counts[:, 1] -= step
        counts = -np.sort(-counts, axis=1)
        log_q = pate.gnmax_log_q(counts, sigma) if rows.size else log_q[:0]
        outside = np.where(widen, log_q > log_q0, log_q < log_q1)
        rows, counts, widen, log_q = rows[outside], counts[outside], widen[outside], log_q[outside]
    return result


@lru_cache(maxsize=256)
def check_shape(sigma: float, order: float, classes: int) -> None:
    """Raise :class:`BenchError` unless, on a grid, divergence rises with q, and sensitivity only up to the plateau."""
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
    """Return ``(queries, teachers)``: the change in the threshold's divergence from one vote, by distance in votes."""
    teachers = round(float(votes[0].sum()))
    tops = np.arange(teachers + 1.0)
    cost = pate.threshold_rdp(tops[:, None], threshold, sigma1, [order])[:, 0]
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
    """Return the smooth sensitivity of the data-dependent divergence of a whole run at one `order` above 1.

    `sigma2` is the noise on the counts, `beta` the discount per vote of distance. Confident-GNMax also has `threshold`,
    `sigma1` and `answered`, as in :func:`bench.privacy.accounting.pate.confident_rdp`. Raises :class:`BenchError` on a
    parameter out of range, or if no votes could help at this order.
    """
    positive("sigma2", sigma2)
    positive("beta", beta)
    check_shape(float(sigma2), float(_order(order)), votes.shape[1])
    local = gnmax_sensitivity_at_distance(votes, sigma2, order)
    if threshold is None or sigma1 is None:
        return smooth(local.sum(axis=0), beta)
    weight = pate.answer_weights(votes, threshold, positive("sigma1", sigma1), answered)
    return smooth(weight @ local + threshold_sensitivity_at_distance(votes, threshold, sigma1, order).sum(axis=0), beta)


def _order(order: float) -> float:
    if not (math.isfinite(order) and order > 1):
        raise BenchError(f"the Renyi order must be finite and above 1, not {order}. Try 14.")
    return order


def release_rdp(order: float, beta: float, sigma_ss: float) -> float:
    """Return the Renyi divergence of a release with Gaussian noise of ``sigma_ss`` times the smooth sensitivity.

    The noise scale depends on the data, which costs the second term (ICLR 2018, appendix). Raises :class:`BenchError`
    unless `order` is between 1 and ``1 / (2 beta)``.
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
    """Return ``(beta, sigma_ss)``, which depend only on the order; a release then costs about half an epsilon.

    0.46 and 0.385 are from the paper's MNIST run (order 14: beta 0.0329, sigma_ss 6.23).
    """
    beta = 0.46 / _order(order)
    return beta, math.sqrt(order * math.exp(2 * beta) / 0.385)


@dataclass(frozen=True, slots=True)
class Sanitised:
    """A data-dependent epsilon to publish with noise, at one order; only one draw of :meth:`release` may be public."""

    mean: float
    """The average published epsilon, with the cost of publishing it."""
    deviation: float
    smooth_sensitivity: float
    order: float
    beta: float
    sigma_ss: float

    def release(self, rng: np.random.Generator) -> float:
        """Return a noisy epsilon that may be published; each further draw costs again."""
        return self.mean + self.deviation * float(rng.standard_normal())


def check_release(event: GNMax | ConfidentGNMax, delta: float, classes: int) -> float:
    """Return the order, without votes, at which :func:`sanitise` publishes `event`; :class:`BenchError` if unsound."""
    best = pate_2018([event], delta)
    assert best is not None
    assert best.order is not None
    check_shape(float(event.sigma2 if isinstance(event, ConfidentGNMax) else event.sigma), float(best.order), classes)
    return float(best.order)


def sanitise(
    votes: Floats, event: GNMax | ConfidentGNMax, delta: float, order: float, beta: float | None = None,
    sigma_ss: float | None = None, answered: ArrayLike | None = None,
) -> Sanitised:  # fmt: skip
    """Return the sanitised epsilon of a run of `event`.

    `votes` is ``(queries, classes)``; `order` must be chosen without them. `beta`, below ``1 / (2 order)``, and
    `sigma_ss`, the release's noise relative to the smooth sensitivity, default to :func:`default_release`. Raises
    :class:`BenchError` on a parameter out of range; see :func:`smooth_sensitivity`.
    """
    check_delta(delta)
    default_beta, default_sigma = default_release(order)
    beta = default_beta if beta is None else beta
    sigma_ss = default_sigma if sigma_ss is None else sigma_ss
    extra = release_rdp(order, beta, sigma_ss)
    if isinstance(event, ConfidentGNMax):
        confident = event.threshold, event.sigma1
        rdp = pate.confident_rdp(votes, *confident, event.sigma2, [order], answered)[0]
        sensitivity = smooth_sensitivity(votes, event.sigma2, order, beta, *confident, answered)
    else:
        rdp = _bound(pate.gnmax_log_q(votes, event.sigma), event.sigma, order).sum()
        sensitivity = smooth_sensitivity(votes, event.sigma, order, beta)
    mean, _ = classic_epsilon([order], [float(rdp) + extra], delta)
    return Sanitised(mean, sensitivity * sigma_ss, sensitivity, order, beta, sigma_ss)
