"""Lower bounds on the epsilon of DP-SGD with fixed or shuffled batches, for which Poisson's figure is too small.

On the worst pair of data sets known, all records but one have the gradient -C in each step, of clip norm C; the one has
+C, or is absent. A batch with it has a sum of 2 C, or with its empty place of C, above a batch without. Shuffled: Chua
et al. 2024 (arXiv:2403.17673), Annamalai et al. 2024 (arXiv:2411.10614); fixed: Lebeda et al. 2024 (arXiv:2405.20769).
These are exact figures for that pair, with losses rounded down: nothing is drawn.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from bench.core.lazy_libraries import pld_pmf
from bench.privacy.events import losses
from bench.privacy.events.batch_events import FixedBatches, Training, steps_of_epoch
from bench.privacy.events.events import ShuffledEpochs

BINS = 2000
LEAST_MASS = 1e-13
"""Rarer outcomes are dropped, which only lowers the bound."""
LOST = 0.05
"""Largest part of epsilon that rounding may lose."""
MOST = 100_000


def at_least(event: Training, rate: float, taken: int, delta: float) -> float | None:
    """Return a lower bound on the epsilon of `event` at `delta`, for an absent record; None if none is known here.

    `rate` is the share of the records in a batch, and `taken` the number of steps. The attacker uses the largest noisy
    sum of each whole shuffled epoch, or every sum of fixed batches. None also beyond :data:`MOST` epochs or steps.
    """
    if isinstance(event, (ShuffledEpochs, FixedBatches)) and getattr(event, event.counted) > MOST:
        return None
    if isinstance(event, ShuffledEpochs):
        noise, steps = event.noise_multiplier, steps_of_epoch(rate)
        if taken < steps:  # no whole epoch
            return None
        edges = np.linspace(-4 * noise, 2 + 8 * noise, BINS)

        def largest(shift: float) -> losses.Floats:
            log_below = special.log_ndtr((edges - shift) / noise) + (steps - 1) * special.log_ndtr(edges / noise)
            return _masses(np.exp(log_below), -np.expm1(log_below))

        return _epsilon(largest(2.0), largest(1.0), taken // steps, delta)
    if isinstance(event, FixedBatches):
        noise = event.noise_multiplier
        edges = np.linspace(-8 * noise, 2 + 8 * noise, BINS)

        def one(shift: float) -> losses.Floats:
            parts = ((1 - rate, edges / noise), (rate, (edges - shift) / noise))
            below, above = (sum(w * special.ndtr(sign * x) for w, x in parts) for sign in (1, -1))
            return _masses(np.asarray(below), np.asarray(above))

        return _epsilon(one(2.0), one(1.0), event.steps, delta)
    return None


def _masses(below: losses.Floats, above: losses.Floats) -> losses.Floats:
    """Return the masses of the bins, given those below and above each edge: differences of the smaller ones."""
    inner = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
    return np.concatenate([below[:1], inner, above[-1:]])


def _epsilon(first: losses.Floats, second: losses.Floats, count: int, delta: float) -> float:
    """Return a lower bound on the epsilon of `count` outcomes with masses `first` on one set, `second` on the other."""
    interval = min(losses.INTERVAL, LOST / count)
    seen, found = (first > LEAST_MASS) & (second > LEAST_MASS), 0.0
    if not seen.any():
        return 0.0
    for one, other in ((first[seen], second[seen]), (second[seen], first[seen])):
        places = np.floor(np.log(one / other) / interval).astype(np.int64)
        mass = np.bincount(places - places.min(), one)
        total = pld_pmf.DensePLDPmf(interval, int(places.min()), mass, 0.0, False)
        total = total.self_compose(count, tail_mass_truncation=1e-15)
        found = max(found, float(total.get_epsilon_for_delta(delta + losses.rounding(count))))
    return found
