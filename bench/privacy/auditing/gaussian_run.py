"""A white-box audit of a single Gaussian release along the directions of many canaries.

The auditor chooses m orthonormal directions. A fair coin decides whether canary i is +x_i or -x_i, and the release is
the sum of all records plus Gaussian noise of one deviation, unknown to the auditor. The inner products of the release
with the directions, times the coins, are m independent normal numbers. Their mean over their deviation is half of mu,
the distance between a coin's two values in deviations of the noise, so inverting Student's noncentral t gives an exact
lower bound on mu. Other records only add spread, as the coins make their part symmetric.

A coin may move `group` neighbours: under add-remove, replacing -x_i by +x_i removes one and adds one. A mechanism with
Gaussian trade-off mu for neighbours has at most group * mu then (Dong, Roth and Su 2022, arXiv:1905.02383), so the
bound for one record is the bound divided by `group`. That halves the error of coins that only include or omit x_i.

As in :mod:`bench.privacy.auditing.curve_bounds`, it bounds epsilon only for mechanisms with Gaussian noise; it refutes
a claimed Gaussian mechanism at the stated confidence. Inner products of canaries with a Gaussian aggregate: Andrew et
al. 2024 (arXiv:2302.03098), with asymptotic intervals.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from bench.core.errors import BenchError
from bench.privacy.auditing.one_run import check_confidence
from bench.privacy.events.conversions import check_delta, gaussian_epsilon_at_least


def gaussian_run_mu(products: ArrayLike, coins: ArrayLike, confidence: float = 0.95, group: int = 1) -> float:
    """Return the largest mu of Gaussian noise that one release refutes for one record, 0 if none.

    `products` (m,) are the inner products of the release with orthonormal directions, in any unit; `coins` (m,) are 1
    or -1, fair and independent. Raises :class:`BenchError` on other shapes or coins, fewer than 2 canaries, numbers
    that are not finite, a `group` below 1 or a `confidence` outside (0, 1).
    """
    seen, tossed = np.asarray(products, dtype=np.float64), np.asarray(coins)
    if seen.ndim != 1 or seen.shape != tossed.shape or len(seen) < 2:
        raise BenchError(f"products and coins must both be (m,), m at least 2, not {seen.shape} and {tossed.shape}.")
    if not (np.abs(tossed) == 1).all() or not np.isfinite(seen).all():
        raise BenchError("coins must be 1 or -1, and inner products finite.")
    if isinstance(group, bool) or not isinstance(group, (int, np.integer)) or group < 1:
        raise BenchError(f"a coin must move a whole number of neighbours, at least one, not {group!r}.")
    check_confidence(confidence)
    along, freedom, root = seen * tossed, len(seen) - 1, math.sqrt(len(seen))
    mean, deviation = float(along.mean()), float(along.std(ddof=1))
    if deviation <= 1e-12 * abs(mean):
        return math.inf if mean > 0 else 0.0
    t = root * mean / deviation
    if special.stdtr(freedom, t) <= confidence:
        return 0.0
    return 2 * float(special.nctdtrinc(freedom, confidence, t)) / (root * group)


def gaussian_run_epsilon(
    products: ArrayLike, coins: ArrayLike, delta: float, confidence: float = 0.95, group: int = 1
) -> float:
    """Return the epsilon at `delta`, in (0, 1), of :func:`gaussian_run_mu`; other arguments and errors are the same.

    Infinite for a release without noise.
    """
    check_delta(delta)
    mu = gaussian_run_mu(products, coins, confidence, group)
    return gaussian_epsilon_at_least(mu, delta) if math.isfinite(mu) else math.inf
