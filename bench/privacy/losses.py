"""Renyi divergences and privacy loss distributions of single mechanisms, for any neighbours, rounded pessimistically.

The distributions are dp-accounting's objects on one grid, made without its events: it may name neighbours otherwise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]

INTERVAL = 1e-4
GRID_POINTS = 400_000
"""The approximate number of points above which a grid is made coarser."""


ROUNDING = 1e-12
"""A bound, with room to spare, on the error in a delta of the Fourier transforms that compose losses."""


def epsilon_of(distribution: Any, delta: float) -> float:
    """Return a PLD's epsilon at `delta`, well above :data:`ROUNDING`, on the safe side of that error."""
    return float(distribution.get_epsilon_for_delta(delta - ROUNDING))


def _order(orders: ArrayLike) -> Floats:
    return np.atleast_1d(np.asarray(orders, dtype=np.float64))


def pure_spread(epsilon: float, count: int) -> float:
    """Return the approximate width of the loss of `count` mechanisms of pure `epsilon`."""
    return min(2 * epsilon * count, count * epsilon**2 + 20 * epsilon * math.sqrt(count))


def gaussian_spread(mu: float) -> float:
    """Return the approximate width of the loss of a Gaussian release."""
    return mu**2 + 20 * mu


def grid_interval(spread: float, smallest: float = math.inf) -> float:
    """Return :data:`INTERVAL`, finer where it blurs `spread` or its least part `smallest`, coarser for a huge grid."""
    base = max(INTERVAL, spread / GRID_POINTS)
    return min(base, spread * 2e-4, max(smallest / 10, spread / (2.5 * GRID_POINTS)))


def log_sum_rdp(terms: list[tuple[Floats, float | Floats]], order: Floats) -> Floats:
    """Return ``log(sum of mass * exp((order - 1) * loss)) / (order - 1)`` over (log mass, loss) terms, at least 0."""
    exponents = np.stack([np.broadcast_to(mass + (order - 1) * loss, order.shape) for mass, loss in terms])
    divergence: Floats = np.maximum(special.logsumexp(exponents, axis=0) / (order - 1), 0.0)
    return divergence


def laplace_rdp(epsilon: float, orders: ArrayLike) -> Floats:
    """Return the Renyi divergence of Laplace noise of scale sensitivity over `epsilon` (Mironov 2017, table II)."""
    order = _order(orders)
    up = np.log(order / (2 * order - 1)) + (order - 1) * epsilon
    down = np.log((order - 1) / (2 * order - 1)) - order * epsilon
    # The two-term formula loses its digits for small epsilon, where this bound is as good.
    exact = np.maximum(np.logaddexp(up, down) / (order - 1), 0.0)
    return np.minimum(exact, np.minimum(epsilon, order * epsilon**2 / 2))


def discrete_laplace_rdp(epsilon: float, granularity: int, orders: ArrayLike) -> Floats:
    """Return discrete Laplace's Renyi divergence, of parameter ``epsilon / granularity``, shifted by `granularity`."""
    order = _order(orders)
    step = epsilon / granularity
    centre = -math.log1p(math.exp(-step))
    terms: list[tuple[Floats, float | Floats]] = [
        (np.full(order.shape, centre), epsilon),
        (np.full(order.shape, centre - epsilon), -epsilon),
    ]
    if granularity > 1:
        # Sum over k = 1 .. granularity - 1 of mass exp(-step k) and loss epsilon - 2 step k: a geometric series.
        rate = -step * (2 * order - 1)
        series = rate + np.log(-np.expm1(rate * (granularity - 1))) - np.log(-np.expm1(rate))
        terms.append((centre + math.log(-math.expm1(-step)) + series, epsilon))
    pure = np.minimum(epsilon, order * epsilon**2 / 2)
    return np.minimum(log_sum_rdp(terms, order), pure)


def randomized_response_rdp(epsilon: float, classes: int, orders: ArrayLike) -> Floats:
    """Return the Renyi divergence of randomised response over `classes` between two labels."""
    order = _order(orders)
    log_total = np.logaddexp(epsilon, math.log(classes - 1)) if classes > 1 else epsilon
    ones = np.ones(order.shape)
    terms: list[tuple[Floats, float | Floats]] = [
        ((epsilon - log_total) * ones, epsilon),
        (-log_total * ones, -epsilon),
    ]
    if classes > 2:
        terms.append(((math.log(classes - 2) - log_total) * ones, 0.0))
    return np.minimum(log_sum_rdp(terms, order), np.minimum(epsilon, order * epsilon**2 / 2))


def laplace_pld(epsilon: float, count: int, interval: float, granularity: int | None = None) -> Any:
    """Return the PLD of `count` Laplace releases of scale sensitivity over `epsilon`.

    With `granularity`, noise is discrete Laplace of parameter ``epsilon / granularity`` and sensitivity `granularity`.
    """
    from dp_accounting.pld import privacy_loss_distribution as distribution

    if granularity is None:
        one = distribution.from_laplace_mechanism(1 / epsilon, value_discretization_interval=interval)
    else:
        one = distribution.from_discrete_laplace_mechanism(
            epsilon / granularity, granularity, value_discretization_interval=interval, use_connect_dots=True
        )
    return one.self_compose(count)


def gaussian_pld(mu: float | None, interval: float) -> Any | None:
    """Return the PLD of one Gaussian release of sensitivity over deviation `mu`; None for None."""
    from dp_accounting.pld import privacy_loss_distribution as distribution

    if mu is None:
        return None
    return distribution.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)


def sampled_gaussian_pld(noise: float, rate: float, interval: float, *, replaced: bool = False) -> Any:
    """Return the PLD of a Gaussian release on a Poisson sample, for add-remove or replace neighbours.

    A sampled record moves the answer by 1. The pairs are those of :mod:`bench.privacy.sampled_events`.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as distribution

    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    return distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval, neighboring_relation=relation
    )


def symmetric_gaussian_pld(noise: float, rate: float, interval: float) -> Any:
    """Return the PLD whose curve of delta is that of removing a record at epsilon >= 0, and symmetric.

    Symmetric is the curve of a pair that dominates in both orders: ``delta(-e) = 1 - exp(-e) + exp(-e) delta(e)``.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as distribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    removed = GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=AdjacencyType.REMOVE)
    top = math.ceil(removed.connect_dots_bounds().epsilon_upper / interval)
    epsilons = interval * np.arange(top + 1)
    up = np.asarray(removed.get_delta_for_epsilon(epsilons))
    down = -np.expm1(-epsilons) + np.exp(-epsilons) * up
    deltas = np.concatenate([down[:0:-1], up]).clip(0, 1)
    return distribution.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -top, top, deltas)
    )


def replaced_gaussian_rdp(noise: float, rate: float, orders: ArrayLike) -> Floats:
    """Return the Renyi divergence of a Gaussian release on a Poisson sample, for replace neighbours.

    A sampled record moves the answer by 1: the pair is ``(1 - rate) N(0) + rate N(1)`` against ``N(-1)`` likewise. The
    trapezoidal sum of an analytic integrand is exact to rounding where its step is well below the distance ``pi noise``
    of the branch points from the real line. Infinite for a noise below an eighth: sampling gains nothing there, and the
    sum would take memory without bound.
    """
    mu = 1 / noise
    if mu > 8:
        return np.full(_order(orders).shape, np.inf)
    step = min(0.25, 0.25 / mu)
    found = []
    for order in _order(orders):
        x = np.arange(-12.0 - mu, order * mu + 12.0, step)
        centre = math.log1p(-rate) - x**2 / 2
        first, other = (np.logaddexp(centre, math.log(rate) - (x - shift) ** 2 / 2) for shift in (mu, -mu))
        log_integral = special.logsumexp(order * first - (order - 1) * other) + math.log(step / math.sqrt(2 * math.pi))
        found.append(max(log_integral / (order - 1), 0.0))
    return np.asarray(found)


def finite_pld(log_masses: list[float], values: list[float], count: int, interval: float) -> Any:
    """Return the PLD of `count` runs with losses `values`, `log_masses` their log probabilities under one neighbour.

    Chords of the curve of delta between grid points lie above it; rounding `values` up would add `interval` per run.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as distribution

    mass, loss = np.exp(np.asarray(log_masses)), np.asarray(values)
    points = np.unique(np.concatenate([np.floor(loss / interval), np.ceil(loss / interval)])).astype(np.int64)
    # Adding a neighbour on each side keeps the first chord above the curve's straight start.
    points = np.unique(np.concatenate([points - 1, points, points + 1]))
    gap = loss[None, :] - (points * interval)[:, None]
    deltas = np.where(gap > 0, mass[None, :] * -np.expm1(-np.maximum(gap, 0.0)), 0.0).sum(axis=1)
    one = pld_pmf.create_pmf_pessimistic_connect_dots(interval, points, np.minimum(deltas, 1.0))
    return distribution.PrivacyLossDistribution(one).self_compose(count)


def pure_pld(epsilon: float, count: int, interval: float) -> Any:
    """Return the PLD of any `count` mechanisms of pure `epsilon`: two losses, plus and minus it."""
    log_keep = -math.log1p(math.exp(-epsilon))
    return finite_pld([log_keep, log_keep - epsilon], [epsilon, -epsilon], count, interval)


def randomized_response_pld(epsilon: float, classes: int, count: int, interval: float) -> Any:
    """Return the PLD of randomised response over `classes`, `count` times, between two labels."""
    log_total = float(np.logaddexp(epsilon, math.log(classes - 1)))
    masses, values = [epsilon - log_total, -log_total], [epsilon, -epsilon]
    if classes > 2:
        masses.append(math.log(classes - 2) - log_total)
        values.append(0.0)
    return finite_pld(masses, values, count, interval)
