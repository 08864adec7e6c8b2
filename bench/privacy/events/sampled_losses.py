"""Privacy losses and Renyi divergences of one Gaussian release on a Poisson sample, for the pairs of `sampled_events`.

A sampled record moves the answer by 1. The pair is ``P = (1 - rate) N(0) + rate N(1)`` against Q = N(0) for add-remove
neighbours, and P against ``(1 - rate) N(0) + rate N(-1)`` for replaced ones. The loss grows with the answer, so that
the answers between two losses of a grid are an interval, of which both masses are known exactly. Each interval's masses
are split between its two losses so that both sums stay. That is connecting the dots of the delta curve (Doroshenko et
al. 2022, arXiv:2207.04380) without differences of deltas, whose rounding errors thousands of fine steps add up.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from bench.core.lazy_libraries import pld_pmf, privacy_loss_distribution
from bench.privacy.events import composing, losses

Floats = NDArray[np.float64]

LONGEST_SUM = 600_000
"""The most points in the sum for a Renyi divergence."""
MOST_POINTS = 2**20
"""The most points of the grid of one loss, or twice as many."""
TAIL = 10.2
"""Deviations of normal noise beyond which answers are cut off, with a mass below 1e-24."""


def sampled_gaussian_pld(noise: float, rate: float, interval: float, *, replaced: bool = False) -> Any:
    """Return the PLD of one release with a `rate` below 1, for add-remove or `replaced` neighbours."""
    lowest, highest = _log_ratio(np.array([-TAIL, 1 / noise + TAIL]), 1 / noise, rate, replaced)
    last = math.ceil(highest / interval)
    first = -last if replaced else math.floor(lowest / interval)
    masses, beyond, below = _split(1 / noise, rate, interval, first, last, replaced)
    remove = pld_pmf.DensePLDPmf(interval, first, masses, beyond, True)
    if replaced:
        return privacy_loss_distribution.PrivacyLossDistribution(remove)
    other = (masses * np.exp(-interval * np.arange(first, last + 1)))[::-1]
    other[0] += below
    return privacy_loss_distribution.PrivacyLossDistribution(
        remove, pld_pmf.DensePLDPmf(interval, -last, other, 0.0, True)
    )


def symmetric_gaussian_pld(noise: float, rate: float, interval: float) -> Any:
    """Return the PLD whose delta curve is that of removing a record at epsilon >= 0, extended symmetrically.

    A pair that dominates in both orders has a symmetric curve: ``delta(-e) = 1 - exp(-e) + exp(-e) delta(e)``.
    """
    (highest,) = _log_ratio(np.array([1 / noise + TAIL]), 1 / noise, rate, False)
    last = max(math.ceil(highest / interval), 1)
    masses, beyond, _ = _split(1 / noise, rate, interval, 0, last, False)
    above = masses[1:]
    below = (above * np.exp(-interval * np.arange(1, last + 1)))[::-1]
    middle = max(1 - float(above.sum()) - float(below.sum()) - beyond, 0.0)
    both = np.concatenate([below, [middle], above])
    return privacy_loss_distribution.PrivacyLossDistribution(pld_pmf.DensePLDPmf(interval, -last, both, beyond, True))


def known_sample_pld(noise: float, rate: float, interval: float) -> Any:
    """Return the PLD of one release of a sample that is known: of a Gaussian release or, without the record, nothing.

    `noise` is at least 0.1, so that the release's losses on the grid include 0.
    """
    sampled: Any = losses.gaussian_pld(1 / noise, interval)
    one = sampled._pmf_remove.to_dense_pmf()
    masses = rate * one._probs
    masses[-one._lower_loss] += 1 - rate
    pmf = pld_pmf.DensePLDPmf(interval, one._lower_loss, masses, rate * one._infinity_mass, True)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def known_sample_rdp(noise: float, rate: float, orders: ArrayLike) -> Floats:
    """Return the Renyi divergence of one release of a known sample: ``E[e^((order - 1) loss)]`` is a weighted mean."""
    order = losses.as_orders(orders)
    power = order * (order - 1) / (2 * noise**2)
    absent = math.log1p(-rate) if rate < 1 else -math.inf
    near, far = np.minimum(power, 1.0), np.logaddexp(absent, math.log(rate) + power)
    return np.asarray(np.where(power < 1, np.log1p(rate * np.expm1(near)), far) / (order - 1))


def _split(
    mu: float, rate: float, interval: float, first: int, last: int, replaced: bool
) -> tuple[Floats, float, float]:
    """Return P's masses on the losses ``interval * (first ... last)``, and P's and Q's masses of larger losses.

    All negative losses below the first become the first.
    """
    loss = interval * np.arange(first, last + 1, dtype=np.float64)
    x = _answers(loss, mu, rate, replaced)
    if first < 0:
        x[0] = -np.inf

    def cells(shift: float) -> Floats:
        """Return N(shift)'s masses between the answers `x`, as differences of the smaller tails."""
        return np.asarray(np.where(x[1:] < shift, np.diff(special.ndtr(x - shift)), -np.diff(special.ndtr(shift - x))))

    absent, present = cells(0.0), cells(mu)
    mass, opposite = (1 - rate) * absent + rate * present, cells(-mu) if replaced else absent
    other, low = (1 - rate) * absent + rate * opposite, loss[:-1]
    with np.errstate(divide="ignore"):
        far = mass - np.exp(low + np.log(other))
    # Of P less exp(loss) Q, where both are large, what is equal cancels exactly.
    near = rate * (present - opposite) - np.expm1(np.minimum(low, 1.0)) * other
    upper = np.clip(np.where(low < 1, near, far) / -math.expm1(-interval), 0.0, mass)
    masses = np.zeros(last - first + 1)
    masses[:-1] += mass - upper
    masses[1:] += upper
    tail = [float(special.ndtr(shift - x[-1])) for shift in (0.0, mu)]
    return masses, (1 - rate) * tail[0] + rate * tail[1], tail[0]


def _answers(loss: Floats, mu: float, rate: float, replaced: bool) -> Floats:
    """Return the answers, in deviations of the noise, with these losses."""
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    with np.errstate(divide="ignore", invalid="ignore"):
        if not replaced:
            near, far = np.log(np.expm1(np.minimum(loss, 1.0)) + rate), loss + np.log1p(-np.exp(log_rest - loss))
            found = (np.where(loss < 1, near, far) - log_rate) / mu + mu / 2
            return np.where(np.isnan(found), -np.inf, found)
        half = np.abs(loss) / 2
        log_y = log_rest - log_rate + mu**2 / 2 + half + np.log(-np.expm1(-2 * half) / 2)
    size = np.where(log_y > 30, log_y + math.log(2), np.arcsinh(np.exp(np.minimum(log_y, 30.0))))
    return np.asarray(np.sign(loss) * (half + size) / mu)


def loss_deviation(noise: float, rate: float, *, replaced: bool = False) -> float:
    """Return the standard deviation of one loss under Q, but no less than a grid of :data:`MOST_POINTS` resolves."""
    x = np.arange(-9.0, 9.0, 0.01)
    loss = _log_ratio(x, 1 / noise, rate, replaced)
    mass = np.exp(-(x**2) / 2)
    mass /= mass.sum()
    deviation = math.sqrt(max(float(mass @ (loss - float(mass @ loss)) ** 2), 0.0))
    lowest, highest = _log_ratio(np.array([-TAIL, 1 / noise + TAIL]), 1 / noise, rate, replaced)
    return max(deviation, composing.FINENESS * float(highest - lowest) / MOST_POINTS)


def _log_ratio(x: Floats, mu: float, rate: float, replaced: bool) -> Floats:
    """Return the losses of the answers `x`."""
    present = log_sampled_ratio(x, mu, rate)
    return present - log_sampled_ratio(-x, mu, rate) if replaced else present


def sampled_gaussian_rdp(noise: float, rate: float, orders: ArrayLike, *, replaced: bool = False) -> Floats:
    """Return the Renyi divergence of a Gaussian release on a Poisson sample, `rate` < 1, for the pairs of PLDs above.

    A sampled record moves the answer by 1: the pair is ``(1 - rate) N(0) + rate N(1)`` against N(0), the larger of both
    orders (Mironov, Talwar, Zhang 2019, arXiv:1908.10530), or `replaced` against ``(1 - rate) N(0) + rate N(-1)``.

    The trapezoidal sum of an analytic integrand is exact to rounding if its step is well below the distance
    ``pi noise`` of the branch points from the real line. Infinite at orders whose sum would be longer than
    :data:`LONGEST_SUM`, which have little noise: sampling gains hardly anything there.
    """
    order, mu = losses.as_orders(orders), 1 / noise
    step = min(0.25, 0.25 / mu)
    # All maxima of the integrand lie inside: the slope of the first logarithm below is at most mu, the second's at
    # least -mu.
    ends = (2 * order - 1 if replaced else order) * mu + 12.0
    lengths = np.ceil((ends + 12.0 + mu) / step)
    summed = lengths <= LONGEST_SUM
    found = np.full(order.shape, np.inf)
    if not summed.any():
        return found
    x = -12.0 - mu + step * np.arange(lengths[summed].max())
    other = log_sampled_ratio(-x, mu, rate) if replaced else np.zeros_like(x)
    loss = log_sampled_ratio(x, mu, rate) - other
    log_mass = other - x**2 / 2 + math.log(step / math.sqrt(2 * math.pi))
    for place in np.flatnonzero(summed):
        part, alpha = slice(int(lengths[place])), float(order[place])
        moment = special.logsumexp(log_mass[part] + losses.log_excess(loss[part], alpha))
        found[place] = np.logaddexp(0.0, moment) / (alpha - 1)
    return found


def log_sampled_ratio(x: Floats, mu: float, rate: float) -> Floats:
    """Return the log of the density of ``(1 - rate) N(0, 1) + rate N(mu, 1)`` over that of N(0, 1)."""
    exponent = mu * x - mu**2 / 2
    less = rate * np.expm1(np.minimum(exponent, 30.0))
    near = np.abs(less) < 0.5  # summing logarithms would lose the digits of a small ratio
    far = np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)
    return np.where(near, np.log1p(np.where(near, less, 0.0)), far)
