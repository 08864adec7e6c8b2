"""Renyi divergences and privacy loss distributions of single mechanisms, for any neighbours, rounded pessimistically.

The distributions are dp-accounting's objects on one grid, built without its events, whose neighbours may differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from bench.core.lazy_libraries import pld_pmf, privacy_loss_distribution
from bench.privacy.events import composing

Floats = NDArray[np.float64]

INTERVAL = 1e-4
GRID_POINTS = 400_000
"""Above about this many points a grid is coarsened."""

MOST_STEPS = 2**22
"""The largest sensitivity of discrete noise, in grid steps, for which a PLD is computed."""
ROUNDING = 1e-15
"""A bound on the error that each composed loss adds to a delta of at most 1/2: taking a power of a Fourier transform
multiplies the transform's error by the number of losses. The largest observed error is 4e-16 per loss. The masses of
one loss sum to 1 within 6e-11, so composing also multiplies deltas by a factor, which matters only near 1."""
LARGEST_EXACT = 700.0
"""From about 710, ``exp(-epsilon)`` is denormal or 0, and dp-accounting returns an epsilon that is too large."""


def rounding(composed: int) -> float:
    """Return a bound on the error in a delta of the PLD of `composed` losses."""
    return ROUNDING * max(composed, 1000)


@dataclass(frozen=True, slots=True)
class Composed:
    """The PLD of several composed mechanisms, read on the safe side of its rounding error."""

    distribution: Any
    """dp-accounting's ``PrivacyLossDistribution``, rounded pessimistically."""
    rounding: float
    """See :func:`rounding`."""
    blur: float | None = None
    """The sum over all losses of the squared distances of the grid's points between which they are split, or None if
    the distribution is above the exact one for other reasons."""

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at `delta`: infinite unless `delta` is above the rounding error, NaN if unknown."""
        left = delta - self.rounding
        if left <= 0:
            return math.inf
        with np.errstate(over="ignore"):  # dp-accounting divides masses by ones near 0 on purpose
            try:
                return float(self.distribution.get_epsilon_for_delta(left))
            except OverflowError:  # its exponential of a loss below -709
                return math.nan

    def at_least(self, delta: float) -> float | None:
        """Return a lower bound on the epsilon at `delta` of the exact losses; None if unknown or very large.

        A loss is split between two points of the grid so that the mean of its exponential stays, which adds to it on
        average at most an eighth of the points' squared distance. By Hoeffding's inequality all of them add more than
        `added` below with probability a thousandth of `delta` at most.
        """
        if self.blur is None:
            return None
        rare = delta / 1000
        added = self.blur / 4 + math.sqrt(self.blur * math.log(1 / rare) / 2)
        masses = [self.distribution._pmf_remove, self.distribution._pmf_add]
        lost = max(float(pmf._infinity_mass) for pmf in masses) + self.rounding + rare
        found = float(self.distribution.get_epsilon_for_delta(delta + lost))
        return max(found - added, 0.0) if found < LARGEST_EXACT else None

    def deltas(self, epsilons: ArrayLike) -> Floats:
        """Return the delta at each of `epsilons`."""
        return np.asarray(self.distribution.get_delta_for_epsilon(epsilons)) + self.rounding

    def profiles(self, points: int) -> list[tuple[Floats, Floats]]:
        """Return about `points` epsilons, some of them negative, and their deltas in each direction between neighbours.

        As :meth:`deltas`, which takes seconds for thousands of epsilons and gives the larger direction.
        """
        found = self.distribution
        masses = [found._pmf_remove] if found._symmetric else [found._pmf_remove, found._pmf_add]
        profiles = []
        for pmf in masses:
            dense = pmf.to_dense_pmf()
            epsilons = (np.arange(dense.size) + dense._lower_loss) * dense._discretization
            above = np.cumsum(dense._probs[::-1])[::-1]
            with np.errstate(over="ignore", invalid="ignore"):  # extreme losses overflow and are dropped below
                scaled = np.cumsum((dense._probs * np.exp(-epsilons))[::-1])[::-1]
                deltas = above - np.exp(epsilons) * scaled + dense._infinity_mass + self.rounding
            at = np.flatnonzero(np.isfinite(deltas))[:: max(1, dense.size // points)]
            profiles.append((epsilons[at], np.clip(deltas[at], self.rounding, 1.0)))
        return profiles


def as_orders(orders: ArrayLike) -> Floats:
    """Return `orders` as an array."""
    return np.atleast_1d(np.asarray(orders, dtype=np.float64))


def pure_spread(epsilon: float, count: int) -> float:
    """Return the approximate width of the loss of `count` mechanisms of pure `epsilon`."""
    return min(2 * epsilon * count, count * epsilon**2 + 20 * epsilon * math.sqrt(count))


def gaussian_spread(mu: float) -> float:
    """Return the approximate width of the loss of a Gaussian release."""
    return mu**2 + 20 * mu


def grid_interval(spread: float, smallest: float = math.inf) -> float:
    """Return :data:`INTERVAL`, finer if it blurs `spread` or deviations like `smallest`, coarser for a huge grid."""
    base = max(INTERVAL, spread / GRID_POINTS)
    return min(base, spread * 2e-4, max(smallest / 20, spread / (2.5 * GRID_POINTS)))


def _curved(x: Floats) -> Floats:
    """Return ``e^x - 1 - x``."""
    return np.where(np.abs(x) < 1e-3, x**2 / 2 * (1 + x / 3 + x**2 / 12), np.expm1(x) - x)


def log_excess(loss: float | Floats, order: float | Floats) -> Floats:
    """Return the log of ``(e^(order loss) - 1) - order (e^loss - 1)``.

    Its mean under the second distribution is the moment ``E[e^(order loss)]`` minus 1, as the mean of ``e^loss - 1`` is
    0. It is never negative, so summing it keeps the digits that the logarithm of a moment near 1 loses.
    """
    power = np.asarray(order * loss)
    near, top = np.abs(power) < 1, np.maximum(power, 0.0)
    small = np.where(near, loss, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = top + np.log(np.exp(power - top) + (order - 1) * np.exp(-top) - order * np.exp(loss - top))
        return np.where(near, np.log(_curved(order * small) - order * _curved(small)), far)


def _below_pure(divergence: Floats, epsilon: float, order: Floats) -> Floats:
    """Return `divergence`, capped at the maximum for mechanisms of pure `epsilon`."""
    return np.minimum(divergence, np.minimum(epsilon, order * epsilon**2 / 2))


def laplace_rdp(epsilon: float, orders: ArrayLike) -> Floats:
    """Return the Renyi divergence of Laplace noise of scale sensitivity over `epsilon` (Mironov 2017, table II)."""
    order = as_orders(orders)
    up = np.log(order / (2 * order - 1)) + (order - 1) * epsilon
    down = np.log((order - 1) / (2 * order - 1)) - order * epsilon
    near = np.minimum(epsilon, 0.01 / order)  # the moment is near 1 where this equals epsilon
    excess = (order * _curved((order - 1) * near) + (order - 1) * _curved(-order * near)) / (2 * order - 1)
    log_moment = np.where(near < epsilon, np.logaddexp(up, down), np.log1p(excess))
    return _below_pure(log_moment / (order - 1), epsilon, order)


def discrete_laplace_rdp(epsilon: float, granularity: int, orders: ArrayLike) -> Floats:
    """Return discrete Laplace's Renyi divergence, of parameter ``epsilon / granularity``, shifted by `granularity`."""
    order = as_orders(orders)
    step = epsilon / granularity
    centre = -math.log1p(math.exp(-step))
    terms = [centre + (order - 1) * epsilon, centre - order * epsilon]
    if granularity > 1:
        # Sum over k = 1 .. granularity - 1 of mass exp(-step k) and loss epsilon - 2 step k: a geometric series.
        rate = -step * (2 * order - 1)
        series = rate + np.log(-np.expm1(rate * (granularity - 1))) - np.log(-np.expm1(rate))
        terms.append(centre + math.log(-math.expm1(-step)) + series + (order - 1) * epsilon)
    # The logarithm of a sum near 1 has few digits; the added term exceeds its rounding error.
    log_moment = np.maximum(special.logsumexp(np.stack(terms), axis=0), 0.0) + 1e-13
    return _below_pure(log_moment / (order - 1), epsilon, order)


def randomized_response_rdp(epsilon: float, classes: int, orders: ArrayLike) -> Floats:
    """Return the Renyi divergence of randomised response over `classes` between two labels."""
    order = as_orders(orders)
    log_total = np.logaddexp(epsilon, math.log(classes - 1))
    excess = np.logaddexp(log_excess(epsilon, order), epsilon + log_excess(-epsilon, order)) - log_total
    return _below_pure(np.logaddexp(0.0, excess) / (order - 1), epsilon, order)


def bounded_range_rdp(epsilon: float, orders: ArrayLike) -> Floats:
    """Return the largest Renyi divergence of losses that lie within some ``[t - epsilon, t]``.

    For given t, the worst loss takes only the two ends: moments are convex in its exponential, whose mean is fixed. The
    worst t has a closed form. Never above ``order epsilon^2 / 8`` (Cesar and Rogers 2021, arXiv:2004.07223).
    """
    order = as_orders(orders)
    log_a, log_b = np.log(-np.expm1(-order * epsilon)), np.log(-np.expm1(-(order - 1) * epsilon))
    log_moment = (order - 1) * (epsilon + np.log1p(-1 / order) + log_a - log_b) + log_a - np.log(order)
    # The added term exceeds the rounding error of a logarithm near 0.
    log_moment = np.maximum(log_moment - math.log(-math.expm1(-epsilon)), 0.0) + 1e-13
    return _below_pure(np.minimum(log_moment / (order - 1), order * epsilon**2 / 8), epsilon, order)


def bounded_range_pld(epsilon: float, count: int, interval: float) -> Any | None:
    """Return a PLD of `count` mechanisms whose losses each lie within some ``[t - epsilon, t]``, chosen adaptively.

    For losses at the two ends, delta at e is ``(e^(epsilon - t) - 1)(e^t - e^e) / (e^epsilon - 1)``, largest for
    ``t = (epsilon + e) / 2``. The maximum over t is the curve of a pair, which dominates every t.
    """

    def one(interval: float) -> Any:
        top = math.ceil(epsilon / interval)
        e = interval * np.arange(-top, top + 1)
        inside = np.expm1((np.clip(e, -epsilon, epsilon) - epsilon) / 2) ** 2 / -math.expm1(-epsilon)
        deltas = np.where(e < -epsilon, -np.expm1(e), inside)
        return privacy_loss_distribution.PrivacyLossDistribution(
            pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -top, top, deltas)
        )

    return composing.many_composed(one, count, interval, epsilon)


def laplace_pld(epsilon: float, count: int, interval: float, granularity: int | None = None) -> Any | None:
    """Return the PLD of `count` Laplace releases of scale sensitivity over `epsilon`, None if it or they are too large.

    With `granularity`, noise is discrete Laplace of parameter ``epsilon / granularity`` and sensitivity `granularity`.
    """
    if epsilon > LARGEST_EXACT or (granularity is not None and granularity > MOST_STEPS):
        return None

    def one(interval: float) -> Any:
        if granularity is None:
            return privacy_loss_distribution.from_laplace_mechanism(1 / epsilon, value_discretization_interval=interval)
        return privacy_loss_distribution.from_discrete_laplace_mechanism(
            epsilon / granularity, granularity, value_discretization_interval=interval, use_connect_dots=True
        )

    return composing.many_composed(one, count, interval, epsilon)


def gaussian_pld(mu: float | None, interval: float) -> Any | None:
    """Return the PLD of one Gaussian release of sensitivity over deviation `mu`; None for None."""
    if mu is None:
        return None
    return privacy_loss_distribution.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)


def finite_pld(log_masses: list[float], values: list[float], count: int, interval: float) -> Any | None:
    """Return the PLD of `count` runs with losses `values` of log probabilities `log_masses` under one neighbour.

    None if it or a loss is too large.

    Chords of the delta curve between grid points lie above it; rounding `values` up would add `interval` per run.
    """
    mass, loss = np.exp(np.asarray(log_masses)), np.asarray(values)
    if np.abs(loss).max() > LARGEST_EXACT:
        return None

    def one(interval: float) -> Any:
        points = np.unique(np.concatenate([np.floor(loss / interval), np.ceil(loss / interval)])).astype(np.int64)
        # Add a neighbour on each side to keep the first chord above the curve's straight start.
        points = np.unique(np.concatenate([points - 1, points, points + 1]))
        gap = loss[None, :] - (points * interval)[:, None]
        deltas = np.where(gap > 0, mass[None, :] * -np.expm1(-np.maximum(gap, 0.0)), 0.0).sum(axis=1)
        return privacy_loss_distribution.PrivacyLossDistribution(
            pld_pmf.create_pmf_pessimistic_connect_dots(interval, points, np.minimum(deltas, 1.0))
        )

    return composing.many_composed(one, count, interval, float(np.abs(loss).max()))


def pure_pld(epsilon: float, count: int, interval: float) -> Any | None:
    """Return the PLD of any `count` mechanisms of pure `epsilon`, with losses plus and minus `epsilon`."""
    log_keep = -math.log1p(math.exp(-epsilon))
    return finite_pld([log_keep, log_keep - epsilon], [epsilon, -epsilon], count, interval)


def randomized_response_pld(epsilon: float, classes: int, count: int, interval: float) -> Any | None:
    """Return the PLD of randomised response over `classes`, `count` times, between two labels."""
    log_total = float(np.logaddexp(epsilon, math.log(classes - 1)))
    masses, values = [epsilon - log_total, -log_total], [epsilon, -epsilon]
    if classes > 2:
        masses.append(math.log(classes - 2) - log_total)
        values.append(0.0)
    return finite_pld(masses, values, count, interval)
