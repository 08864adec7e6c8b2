"""Renyi divergences and privacy loss distributions of single mechanisms, whatever neighbours they are used for.

The distributions are dp-accounting's objects on one common grid, made directly and not from its events, so that
mechanisms whose neighbours it words differently still compose. Every rounding is pessimistic.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]

INTERVAL = 1e-4
"""The grid of privacy losses, where their spread does not ask for another."""
GRID_POINTS = 400_000
"""How many points a grid may have, about, before it is made coarser."""


ROUNDING = 1e-12
"""What the Fourier transforms that compose losses may get wrong in a delta, with room to spare."""


def epsilon_of(distribution: Any, delta: float) -> float:
    """Return the epsilon of a PLD at `delta`, on the safe side of what rounding did to it.

    `delta` must be well above :data:`ROUNDING`.
    """
    return float(distribution.get_epsilon_for_delta(delta - ROUNDING))


def _order(orders: ArrayLike) -> Floats:
    return np.atleast_1d(np.asarray(orders, dtype=np.float64))


def pure_spread(epsilon: float, count: int) -> float:
    """Return about how wide the loss of `count` mechanisms of pure `epsilon` is spread."""
    return min(2 * epsilon * count, count * epsilon**2 + 20 * epsilon * math.sqrt(count))


def gaussian_spread(mu: float) -> float:
    """Return about how wide the loss of a Gaussian release is spread."""
    return mu**2 + 20 * mu


def grid_interval(spread: float, smallest: float = math.inf) -> float:
    """Return the interval of the grid for a total loss of such `spread`, of whose parts the `smallest` is so large.

    It is :data:`INTERVAL`, finer where the spread or a part is so small that the grid would blur it, and coarser where
    there would be too many points.
    """
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
    """Return the Renyi divergence of discrete Laplace noise of parameter ``epsilon / granularity`` on a shift of it.

    The loss is `epsilon` below the two centres, minus `epsilon` above them, and falls in even steps between.
    """
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

    With `granularity`, that of the exact discrete Laplace of parameter ``epsilon / granularity`` on a shift of it.
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


def sampled_gaussian_pld(noise_multiplier: float, sampling_rate: float, steps: int, interval: float) -> Any:
    """Return the PLD of `steps` Gaussian releases, each on a Poisson sample, for add-remove neighbours."""
    from dp_accounting.pld import privacy_loss_distribution as distribution

    one = distribution.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=sampling_rate, value_discretization_interval=interval
    )
    return one.self_compose(steps)


def finite_pld(log_masses: list[float], values: list[float], count: int, interval: float) -> Any:
    """Return the PLD of `count` runs of a mechanism whose loss takes a few known values.

    Between the grid points around each value the curve of delta is replaced by its chords, which lie above it. Rounding
    the values up instead would add up to `interval` at every composition.

    Args:
        log_masses: Log probability of each value under the first of two neighbours.
        values: The losses.
        count: Number of compositions.
        interval: The grid.

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
    """Return the PLD of `count` mechanisms of pure `epsilon`, whatever they are: two losses, plus and minus it."""
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
