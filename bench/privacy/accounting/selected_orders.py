"""Exact costs of the best of a random number of Gaussian releases, for orders of the answers: bounds from below.

Which answer is better is public, but may be any order: a score on public data is some function of what was released.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from bench.privacy.events.tuning import gamma_of

Floats = NDArray[np.float64]

CELLS = 6000
"""Answers are merged into so many cells, which only lowers an epsilon."""
CUTS = np.linspace(-0.5, 2.5, 7)
"""Where the small answers that win end, in deviations below the middle."""


def attained(mu: float, mean: float, shape: float, delta: float) -> tuple[float, float]:
    """Return the epsilon at `delta` if the larger answer is better, and the largest of some other orders.

    In those, small answers are best, and of the others large ones: the first are rare on one of the sets, which makes
    the large ones win there.
    """
    edges = np.linspace(-9.0, 9.0 + mu, CELLS + 1)
    laws = [np.diff(special.ndtr(edges - shift)) for shift in (0.0, mu)]
    rising = np.arange(CELLS)
    larger = _epsilon(*(_best(law, mean, shape) for law in laws), delta)
    found = larger
    for cut in CUTS:
        small = int(np.searchsorted(edges, mu / 2 - cut))
        order = np.concatenate([rising[small:], rising[:small]])  # from worst to best
        found = max(found, _epsilon(*(_best(law[order], mean, shape) for law in laws), delta))
    return larger, found


def _best(law: Floats, mean: float, shape: float) -> Floats:
    """Return the distribution of the best answer; `law` is that of one, from worst to best."""
    share = np.concatenate([[0.0], np.cumsum(law)]).clip(0.0, 1.0)
    gamma = gamma_of(mean, shape)
    if gamma == 1:
        return law
    log_base, log_gamma = np.log1p(-(1 - gamma) * share), math.log(gamma)
    below = log_base * special.exprel(-shape * log_base) / (log_gamma * special.exprel(-shape * log_gamma))
    return np.asarray(np.diff(below))


def _epsilon(first: Floats, second: Floats, delta: float) -> float:
    def over(epsilon: float) -> float:
        pairs = ((first, second), (second, first))
        return max(float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum()) for one, other in pairs) - delta

    return float(optimize.brentq(over, 0.0, 700.0, xtol=1e-6)) if over(0.0) > 0 else 0.0
