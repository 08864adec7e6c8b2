"""Conversions of mechanisms' guarantees to an (epsilon, delta), all data-independent, using only NumPy and SciPy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from bench.core.errors import BenchError

Floats = NDArray[np.float64]


def check_delta(delta: float) -> float:
    """Return `delta`; raise :class:`BenchError` unless it is strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise BenchError(f"delta must lie strictly between 0 and 1, not {delta}. Try --delta 1e-5.")
    return float(delta)


def check_epsilon(epsilon: float, name: str = "epsilon") -> float:
    """Return `epsilon`; raise :class:`BenchError` unless it is positive and finite."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise BenchError(f"{name} must be a positive finite number, not {epsilon}. Try 1 or 10.")
    return float(epsilon)


def classic_epsilon(orders: ArrayLike, rdp: ArrayLike, delta: float) -> tuple[float, float]:
    """Return the least ``rdp + log(1 / delta) / (order - 1)`` and its order (Mironov 2017, proposition 3)."""
    order, divergence = _orders(orders, rdp)
    epsilons = divergence - math.log(check_delta(delta)) / (order - 1)
    best = int(np.argmin(epsilons))
    return float(epsilons[best]), float(order[best])


def improved_epsilon(orders: ArrayLike, rdp: ArrayLike, delta: float) -> tuple[float, float]:
    """Return the least epsilon over the orders by a conversion tighter than the classic one, and its order.

    Canonne, Kamath, Steinke 2020 (arXiv:2004.00010), proposition 12:
    ``rdp + log((order - 1) / order) - log(delta * order) / (order - 1)``; 0 if `rdp` bounds total variation by `delta`.
    """
    order, divergence = _orders(orders, rdp)
    check_delta(delta)
    usable = order > 1.01  # closer to 1 the formula loses precision and does not help
    epsilons = np.full(order.shape, np.inf)
    epsilons[usable] = (
        divergence[usable]
        + np.log1p(-1 / order[usable])
        - (math.log(delta) + np.log(order[usable])) / (order[usable] - 1)
    )
    epsilons = np.where(delta**2 + np.expm1(-divergence) > 0, 0.0, epsilons)
    best = int(np.argmin(epsilons))
    return max(float(epsilons[best]), 0.0), float(order[best])


def _orders(orders: ArrayLike, rdp: ArrayLike) -> tuple[Floats, Floats]:
    order = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    divergence = np.atleast_1d(np.asarray(rdp, dtype=np.float64))
    if order.shape != divergence.shape or order.size == 0 or not (order > 1).all():
        raise BenchError("Renyi orders must all be above 1, with one divergence for each.")
    return order, divergence


def zcdp_classic_epsilon(rho: float, delta: float) -> tuple[float, float]:
    """Return ``rho + 2 sqrt(rho log(1 / delta))`` and its best real order (Bun and Steinke 2016, proposition 1.3)."""
    root = math.sqrt(-math.log(check_delta(delta)) / rho) if rho > 0 else math.inf
    return rho + 2 * math.sqrt(-rho * math.log(delta)), 1 + root


def zcdp_improved_epsilon(rho: float, delta: float) -> tuple[float, float]:
    """Return the improved conversion of divergences ``rho * order``, best over all real orders, and its order."""
    check_delta(delta)
    if rho <= 0 or delta**2 + math.expm1(-rho) > 0:
        return 0.0, 1.0

    def epsilon(log_excess: float) -> float:
        excess = math.exp(log_excess)
        order = 1 + excess
        return rho * order + math.log(excess / order) - (math.log(delta) + math.log(order)) / excess

    middle = (math.log(-math.log(delta)) - math.log(rho)) / 2  # the optimum of the classic conversion
    # With divergences in the millions the best order is within 0.01 of 1.
    least = max(middle - 4, min(math.log(0.01), middle))
    found = optimize.minimize_scalar(epsilon, bounds=(least, middle + 4), method="bounded", options={"xatol": 1e-10})
    return max(float(found.fun), 0.0), 1 + math.exp(float(found.x))


SMALL, LARGE = 1e-4, 1e7
EPS = 2.0**-52


def gaussian_delta(mu: float, epsilon: float, slack: float = 0.0) -> float:
    """Return the exact delta of Gaussian noise, `mu` being sensitivity over deviation (arXiv:1805.06530, theorem 8).

    `slack` is added to the logarithm of the ratio of its two terms, for rounding.
    """
    upper = float(special.log_ndtr(mu / 2 - epsilon / mu))
    lower = epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))
    return max(math.exp(upper) * -math.expm1(min(lower - upper - slack, 0.0)), 0.0)


def exact_gaussian_epsilon(mu: float, delta: float) -> float:
    """Return Gaussian noise's exact epsilon at `delta` for `mu`, L2 sensitivity over deviation; its squares add up.

    For a `mu` below 1e-4 or above 1e7, where doubles do not resolve it, an upper bound.
    """
    check_delta(delta)
    if mu <= 0:
        return 0.0
    above = zcdp_classic_epsilon(mu**2 / 2, delta)[0]
    if mu > LARGE:
        return above
    # The difference of the two logarithms is of the size of mu, and each is rounded.
    tiny = mu < SMALL
    slack = 4 * EPS * -special.log_ndtr(-mu - above / mu) if tiny else 0.0
    if gaussian_delta(mu, 0.0, slack) <= delta:
        return 0.0
    if tiny and gaussian_delta(mu, above, slack) >= delta:
        return above
    xtol = above * 1e-13 if tiny else 1e-12
    root = optimize.brentq(lambda e: gaussian_delta(mu, e, slack) - delta, 0.0, above, xtol=xtol, rtol=1e-13)
    return float(root)


def gaussian_epsilon_at_least(mu: float, delta: float) -> float:
    """Return :func:`exact_gaussian_epsilon`, or a lower bound where that is only an upper one."""
    if mu > LARGE:
        return mu**2 / 2 if delta < 0.4 else 0.0  # delta at this epsilon is just below a half
    return exact_gaussian_epsilon(mu, delta) if mu >= SMALL else 0.0


MOST_COMPOSED = 10**9
"""The most runs for :func:`optimal_composition`, which sums over some hundred times the root of their number."""


def optimal_composition(eps0: float, count: int, delta: float) -> float:
    """Return the least epsilon at `delta` of any `count` mechanisms of pure `eps0`.

    Kairouz, Oh and Viswanath 2015 (arXiv:1311.0776), theorem 3.3, off its grid: the worst case is randomised response,
    with a binomial number of kept bits. Raises :class:`BenchError` on a parameter out of range, and on a `count` above
    :data:`MOST_COMPOSED`.
    """
    check_epsilon(eps0, "eps0")
    check_delta(delta)
    if count < 1:
        raise BenchError(f"the number of compositions must be at least 1, not {count}.")
    if count > MOST_COMPOSED:
        raise BenchError(f"optimal composition is computed for at most {MOST_COMPOSED:,} runs. Use Renyi accounting.")
    # Count lost bits within 45 deviations of the mean; the rest is below every delta and below float precision.
    mean = count / (1 + math.exp(min(eps0, 700.0)))
    first, last = max(mean - 45 * math.sqrt(mean), 0), min(mean + 45 * math.sqrt(mean) + 1000, count)
    kept = count - np.arange(math.floor(first), math.ceil(last) + 1, dtype=np.float64)  # starting at the largest loss
    loss = (2 * kept - count) * eps0
    log_binomial = special.gammaln(count + 1) - special.gammaln(kept + 1) - special.gammaln(count - kept + 1)
    log_p = log_binomial - kept * np.log1p(np.exp(-eps0)) - (count - kept) * np.logaddexp(0.0, eps0)
    # P - exp(epsilon) Q above any loss threshold is at most delta(epsilon), with equality at one: take the largest.
    tail_p = np.logaddexp.accumulate(log_p)
    tail_q = np.logaddexp.accumulate(log_p - loss)
    log_delta = math.log(delta) - 1e-14 * count  # allow for rounding of the log masses
    reached = tail_p > log_delta
    if not reached.any():
        return 0.0
    tail_p, tail_q = tail_p[reached], tail_q[reached]
    rounding = 4 * np.finfo(np.float64).eps * (1 + np.abs(tail_p) + np.abs(tail_q))
    epsilon = float(np.max(tail_p + np.log(-np.expm1(log_delta - tail_p)) - tail_q + rounding))
    return min(max(epsilon, 0.0), count * eps0)
