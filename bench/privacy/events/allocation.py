"""Privacy losses of Gaussian noise under random allocation: a record's answer is moved in one random step of an epoch.

Of `steps` steps, one moves by at most the sensitivity; the record's step is uniform and secret, and independent of
other records' steps. Let ``Z_i = exp(x_i / noise - 1 / (2 noise^2))`` with independent standard normal x_i. The pair of
the epoch's answers with and without the record has the likelihood ratio ``W = (Z_1 + ... + Z_steps) / steps`` under the
second; a record that is replaced by the opposite one gives ``(Z_1 + ...) / (Z'_1 + ...)``, where Z' has -x for x.

These pairs dominate even if a step depends on earlier answers. Hockey-stick divergences are means of convex functions
of a sum of one term per step, ``(W - c)+``, ``(1 - c W)+`` or ``(mean of Z_i - c Z'_i)+``. Backwards from the last
step, the mean over a step's noise is convex in the sum so far and, as a function of the record's lognormal terms, grows
with their variances and falls with their covariance (Kahane 1986, as in :mod:`bench.privacy.events.sampled_events`):
the longest and, for two records, opposite moves are worst at every step. Sources: Feldman and Shenfeld 2025
(arXiv:2502.08202) and 2026 (arXiv:2602.17284); Chua et al. 2024 (arXiv:2412.16802).

The sum's distribution is computed on an even grid, and each term's mass is split between neighbouring points so that
its mean is unchanged. This spreads the sum, which never lowers the mean of a convex function: the divergences here are
upper bounds.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

from bench.core.lazy_libraries import pld_pmf, privacy_loss_distribution
from bench.privacy.events import losses
from bench.privacy.events.composing import LARGEST_GRID
from bench.privacy.events.conversions import gaussian_delta

Floats = NDArray[np.float64]

LEAST_REPLACED = 0.3
"""The least noise for which the sums of a replaced record are computed."""
LARGEST_ORDER = 256
"""The largest Renyi order for which random allocation is known to gain anything here."""


def _precision(noise: float) -> tuple[float, float, int]:
    """Return the deviations of normal noise after which it is cut off, a bound on its mass there, and a grid's points.

    Little noise has such large likelihood ratios that an even grid up to 7.2 deviations would blur all others.
    """
    return (7.2, 3.1e-13, 2**20) if noise >= 0.8 else (5.7, 6.1e-9, 2**21)


def _largest(noise: float) -> float:
    """Return the likelihood ratio at which a term of the sum is cut off."""
    return math.exp(min((1 / noise + _precision(noise)[0]) / noise - 1 / (2 * noise**2), 700.0))


@lru_cache(maxsize=64)
def allocated_gaussian_pld(noise: float, steps: int, interval: float, *, replaced: bool = False) -> Any:
    """Return the PLD of one epoch; `noise` is its deviation over the most that a record moves a step's answer.

    For add-remove neighbours, or `replaced` records. If the epoch has one step, or the grid is too coarse for so little
    noise, it is the PLD of a known step, which bounds every epoch: divergences are convex.
    """
    largest, points = _largest(noise), _precision(noise)[2]
    # A replaced record's sums have grids of their own, one for each epsilon.
    if steps == 1 or (1.5 * largest > points / 2 and not (replaced and noise > LEAST_REPLACED)):
        return losses.gaussian_pld((2 if replaced else 1) / noise, interval)
    if replaced:
        return _replaced_pld(noise, steps, interval)
    grid, with_record, without = _sums(noise, steps)
    with np.errstate(divide="ignore"):
        loss = np.log(grid / steps)
    remove = _from_atoms(loss, with_record, interval, 2 * _precision(noise)[1])
    add = _from_atoms(-loss[::-1], without[::-1], interval, 0.0)
    if remove is None or add is None:
        return losses.gaussian_pld(1 / noise, interval)
    return privacy_loss_distribution.PrivacyLossDistribution(remove, add)


def _split(mass: Floats, moment: Floats, start: int, step: float, size: int) -> Floats:
    """Return masses on ``step * (start + 0 ... size - 1)`` from those of the cells in between, which keep their mean.

    `mass` and `moment` (size - 1,): of each cell, its probability and its mean times that.
    """
    place = step * (start + np.arange(size - 1))
    up = np.clip(moment - place * mass, 0.0, step * mass) / step
    found = np.zeros(size)
    found[:-1] += mass - up
    found[1:] += up
    return found


def _beyond(masses: Floats, one: Floats, grid: Floats, steps: int, limit: float) -> float:
    """Return a bound on the chance that one term drawn by `one` and the others by `masses` sum to `limit` or more."""
    top = float(grid[-1])
    bounds = []
    for slope in np.geomspace(0.5, 60, 8) / top:
        grown = np.exp(slope * (grid - top))
        first, other = math.log(float(one @ grown)), math.log(float(masses @ grown))
        bounds.append(first + (steps - 1) * (other + slope * top) + slope * (top - limit))
    return math.exp(min(0.0, *bounds))


def _sums(noise: float, steps: int) -> tuple[Floats, Floats, Floats]:
    """Return a grid of sums of Z and the sum's probabilities with and without the record, up to twice the cut mass."""
    mu, largest, (_, cut_mass, most) = 1 / noise, _largest(noise), _precision(noise)
    deviation = math.sqrt(math.expm1(min(mu**2, 700.0)))
    length = steps + 1.5 * largest + 10 * math.sqrt(steps * min(deviation**2, largest))
    # Steps of a few thousandths of a deviation change no epsilon; more points take more time.
    points = min(most, max(2**14, 2 ** math.ceil(math.log2(length / (0.003 * min(1.0, deviation))))))
    while True:
        step = length / points
        size = math.ceil(largest / step) + 1
        edges = step * np.arange(size)
        edges[-1] = largest
        with np.errstate(divide="ignore"):
            x = (np.log(edges) + mu**2 / 2) / mu
        mass, moment = np.diff(special.ndtr(x)), np.diff(special.ndtr(x - mu))
        above = float(special.ndtr(-x[-1]))  # the terms cut off stay at the largest
        grid = step * np.arange(size, dtype=np.float64)
        masses = _split(mass, moment, 0, step, size)
        masses[-2:] += above * np.array([grid[-1] - largest, largest - grid[-2]]) / step
        biased = grid * masses
        if _beyond(masses, biased, grid, steps, length) <= cut_mass:
            break
        length *= 1.5
    other = fft.rfft(masses, points)
    rest = other ** (steps - 1)
    without, with_record = (fft.irfft(rest * first, points) for first in (other, fft.rfft(biased, points)))
    return step * np.arange(points, dtype=np.float64), np.maximum(with_record, 0.0), np.maximum(without, 0.0)


def _from_atoms(loss: Floats, mass: Floats, interval: float, infinite: float) -> Any | None:
    """Return the PLD pmf of increasing losses with given masses, rounded pessimistically: both curves keep their mass.

    None if it would be larger than :data:`LARGEST_GRID`.

    A loss is split between the grid points around it so that ``E[exp(-loss)]`` stays, as by connecting the dots.
    """
    finite = np.isfinite(loss)  # the sum 0 has none
    low = max(int(np.searchsorted(np.cumsum(mass), 1e-14)), int(finite.argmax()))  # smaller losses become this one
    top = min(len(mass) - int(np.searchsorted(np.cumsum(mass[::-1]), 1e-14)), len(mass) - int(finite[::-1].argmax()))
    infinite += float(mass[top:].sum())
    kept, weight = loss[low:top], mass[low:top].copy()
    if kept[-1] - kept[0] > LARGEST_GRID * interval:
        return None
    weight[0] += mass[:low].sum()
    below = np.floor(kept / interval).astype(np.int64)
    upper = weight * (np.expm1(below * interval - kept) / math.expm1(-interval)).clip(0, 1)
    first = int(below[0])
    probabilities = np.bincount(below - first, weight - upper, int(below[-1]) - first + 2)
    probabilities += np.bincount(below - first + 1, upper, len(probabilities))
    return pld_pmf.DensePLDPmf(interval, first, probabilities, infinite, True)


def _replaced_pld(noise: float, steps: int, interval: float) -> Any:
    """Return the PLD of one epoch with a replaced record, whose curve is symmetric."""
    mu, (cut, cut_mass, _) = 1 / noise, _precision(noise)
    known = 2 * mu * cut + 2 * mu**2  # beyond the losses of a known step
    gap = min(2 * mu, 2 * math.sqrt(math.expm1(min(mu**2, 700.0)) / steps)) / 12
    epsilons, deltas = [0.0], [_replaced_delta(noise, steps, 0.0)]
    while epsilons[-1] < known and deltas[-1] > 10 * cut_mass:
        place = interval * max(round(max(epsilons[-1] + gap, 1.04 * epsilons[-1]) / interval), 1)
        if place > epsilons[-1]:
            epsilons.append(place)
            deltas.append(min(_replaced_delta(noise, steps, place), deltas[-1]))
        gap = max(gap, interval)
    e, up = np.asarray(epsilons), np.asarray(deltas)
    down = -np.expm1(-e) + np.exp(-e) * up
    places = np.rint(np.concatenate([-e[:0:-1], e]) / interval).astype(np.int64)
    both = np.concatenate([down[:0:-1], up]).clip(0, 1)
    return privacy_loss_distribution.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots(interval, places, np.minimum.accumulate(both))
    )


def _replaced_delta(noise: float, steps: int, epsilon: float) -> float:
    """Return an upper bound on the delta of one epoch at `epsilon` >= 0, with a replaced record."""
    mu, ratio, (cut, cut_mass, _) = 1 / noise, math.exp(epsilon), _precision(noise)
    points = 2**16 if noise >= 0.7 else 2**18  # fewer: each epsilon has its own sum
    scale = math.exp(-(mu**2) / 2)

    def term(x: float) -> float:
        return scale * (math.exp(mu * x) - ratio * math.exp(-mu * x))

    highest = term(mu + cut)
    # Terms below are raised to the lowest: a sum with one of these is hardly ever positive.
    lowest = max(term(-mu - cut), -highest)
    if highest <= 0:
        return gaussian_delta(2 * mu, epsilon)
    spread = 10 * math.sqrt(steps * min((1 + ratio) ** 2 * math.expm1(min(mu**2, 700.0)), highest * (1 + ratio)))
    above, below = 1.5 * highest + spread, steps * (ratio - 1) + 1.5 * highest + spread
    while True:
        # Sums below `-below` wrap around to larger ones, which only adds to the mean of the positive ones.
        step = (above + below) / points
        start, size = math.floor(lowest / step), math.ceil(highest / step) - math.floor(lowest / step) + 1
        if size < 100:  # so little noise that the step is as good as known
            return gaussian_delta(2 * mu, epsilon)
        edges = step * (start + np.arange(size))
        edges[0], edges[-1] = lowest, highest
        w = edges / scale
        # The larger root t = exp(mu x) of t - ratio / t = w, without cancellation for negative w.
        root = np.sqrt(w**2 + 4 * ratio)
        x = np.log(np.where(w >= 0, (w + root) / 2, 2 * ratio / (root - np.minimum(w, 0.0)))) / mu
        moment = np.diff(special.ndtr(x - mu)) - ratio * np.diff(special.ndtr(x + mu))
        masses = _split(np.diff(special.ndtr(x)), moment, start, step, size)
        masses[1] += float(special.ndtr(x[0]))
        masses[-1] += float(special.ndtr(-x[-1]))
        grid = step * np.arange(start, start + size, dtype=np.float64)
        if _beyond(masses, np.maximum(grid, 0.0) * masses, grid, steps, above) <= cut_mass:
            break
        above *= 1.5
    placed = np.zeros(points)
    placed[(start + np.arange(size)) % points] = masses
    sums = fft.irfft(fft.rfft(placed) ** steps, points)
    positive = np.arange(1, math.floor(above / step) + 1)
    found = float((step * positive) @ np.maximum(sums[positive], 0.0)) / steps + 2 * cut_mass
    return min(found, gaussian_delta(2 * mu, epsilon))


@lru_cache(maxsize=256)
def allocated_gaussian_rdp(noise: float, steps: int, orders: tuple[float, ...]) -> Floats:
    """Return an upper bound on one epoch's Renyi divergence for add-remove neighbours; read-only.

    The larger of both orders of the neighbours. Logarithms of moments are convex in the order: between whole orders
    chords bound them. Above :data:`LARGEST_ORDER`, and never above, the divergence of a known step.
    """
    order = np.asarray(orders)
    known: Floats = order / (2 * noise**2)
    if steps > 1:
        whole = np.arange(LARGEST_ORDER + 1)
        moments = np.maximum(_log_moments(noise, steps), _log_inverse_moments(noise, steps)) + 1e-12
        moments[:2] = 0.0
        bound = np.interp(order, whole, moments) / (order - 1)
        known = np.where(order <= LARGEST_ORDER, np.minimum(bound, known), known)
    known.flags.writeable = False
    return known


def _log_moments(noise: float, steps: int) -> Floats:
    """Return ``ln E[W^k]`` for k = 0 ... :data:`LARGEST_ORDER`: W's moments are coefficients of a power of a series."""
    k = np.arange(LARGEST_ORDER + 1)
    factorial = special.gammaln(k + 1)
    term, power, left = k * (k - 1) / (2 * noise**2) - factorial, np.where(k == 0, 0.0, -np.inf), steps
    while left:
        if left % 2:
            power = _log_product(power, term)
        term, left = _log_product(term, term), left // 2
    found: Floats = np.maximum(power + factorial - k * math.log(steps), 0.0)
    return found


def _log_product(first: Floats, second: Floats) -> Floats:
    """Return the logarithms of the coefficients of the product of two series, given theirs."""
    return np.array([np.logaddexp.reduce(first[: k + 1] + second[k::-1]) for k in range(len(first))])


def _log_inverse_moments(noise: float, steps: int) -> Floats:
    """Return bounds on ``ln E[W^(1 - k)]`` for k = 0 ... :data:`LARGEST_ORDER`.

    ``W^-a Gamma(a)`` is the integral of ``u^(a - 1) exp(-u W)``, whose mean is a power of one mean over Z. For large a,
    W is at least the geometric mean of its terms.
    """
    mu, a = 1 / noise, np.arange(-1.0, LARGEST_ORDER)
    bound = a * mu**2 / 2 + a**2 * mu**2 / (2 * steps)
    if mu > 20:  # the integral below is not used
        return bound
    x = np.arange(-40.0, 12.0, 0.05)
    z = np.exp(mu * x - mu**2 / 2)
    density = 0.05 / math.sqrt(2 * math.pi) * np.exp(-(x**2) / 2)
    log_u = np.arange(-40.0, 60.0 + 30 * mu, 0.1)
    less = np.array([float(density @ -np.expm1(-z * math.exp(min(t, 600.0)) / steps)) for t in log_u])
    with np.errstate(divide="ignore"):
        log_mean = steps * np.log1p(-np.minimum(less, 1.0))
    for k in range(2, min(LARGEST_ORDER, 65) + 1):
        integrand = a[k] * log_u + log_mean
        # Not where the integral may not have converged within these limits.
        if a[k] * mu <= 20 and integrand[-1] < integrand.max() - 40 and integrand[0] < integrand.max() - 30:
            moment = np.logaddexp.reduce(integrand) + math.log(0.1) - special.gammaln(a[k])
            bound[k] = min(bound[k], max(moment, 0.0))
    return bound
