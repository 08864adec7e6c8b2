"""Exact costs of the best of a random number of Gaussian releases, for orders of the answers: bounds from below.

Which answer is better is public, but may be any order: a score on public data is some function of what was released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    laws = [
        np.where(edges[1:] < shift, np.diff(special.ndtr(edges - shift)), -np.diff(special.ndtr(shift - edges)))
        for shift in (0.0, mu)
    ]
    falling = np.arange(CELLS)[::-1]
    larger = _epsilon([_best(law[falling], mean, shape) for law in laws], delta)
    found = larger
    for cut in CUTS:
        small = falling < int(np.searchsorted(edges, mu / 2 - cut))
        order = np.concatenate([falling[small], falling[~small]])  # from best to worst
        found = max(found, _epsilon([_best(law[order], mean, shape) for law in laws], delta))
    return larger, found


def _best(law: Floats, mean: float, shape: float) -> Floats:
    """Return the distribution of the best answer; `law` is that of one, from best to worst."""
    gamma = gamma_of(mean, shape)
    if gamma == 1:
        return law
    odds, most = (1 - gamma) / gamma, -math.log(gamma)
    grown = 1 + odds * np.concatenate([[0.0], np.cumsum(law)])  # by the share of better answers
    steps = odds * law
    # Integrate the generating function's slope: differences of its values would lose the digits of rare answers. Where
    # the slope changes too much for the quadrature, take the differences.
    within = np.diff(np.log(grown) * special.exprel(-shape * np.log(grown)))
    nodes, weights = np.polynomial.legendre.leggauss(4)
    slope = sum(w / 2 * (grown[:-1] + steps * (t + 1) / 2) ** -(shape + 1) for t, w in zip(nodes, weights, strict=True))
    masses = np.where(steps < 0.1 * grown[:-1], steps * slope, np.maximum(within, 0.0))
    return np.asarray(masses / (most * special.exprel(-shape * most)))


def _epsilon(laws: Sequence[Floats], delta: float) -> float:
    def over(epsilon: float) -> float:
        pairs = (laws, laws[::-1])
        return max(float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum()) for one, other in pairs) - delta

    return float(optimize.brentq(over, 0.0, 700.0, xtol=1e-6)) if over(0.0) > 0 else 0.0
