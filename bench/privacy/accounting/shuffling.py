"""How much DP-SGD on shuffled records reveals at least: the pair of data sets that shows that Poisson's figure fails.

All records but one have the gradient -C in each step, of clip norm C; the one has +C, or is absent. The batch with it
has a sum of 2 C, or with its empty place of C, above the others' (Chua et al. 2024, arXiv:2403.17673; Annamalai et al.
2024, arXiv:2411.10614).
"""

from __future__ import annotations

import numpy as np
from scipy import special

from bench.privacy.events import losses

BINS = 1000
LEAST_MASS = 1e-13
"""Outcomes that are rarer than this are left out: less is seen."""


def shuffled_at_least(noise: float, steps: int, epochs: int, delta: float) -> float:
    """Return a lower bound on the epsilon at `delta` of `epochs` epochs of `steps` batches of shuffled records.

    For an absent record, by each epoch's largest noisy sum alone. Losses are rounded down; nothing is drawn.
    """
    edges = np.linspace(-4 * noise, 2 + 8 * noise, BINS)

    def masses(shift: float) -> losses.Floats:
        log_below = special.log_ndtr((edges - shift) / noise) + (steps - 1) * special.log_ndtr(edges / noise)
        above = -np.expm1(log_below)
        return np.concatenate([[np.exp(log_below[0])], -np.diff(above), [above[-1]]])

    present, absent = masses(2.0), masses(1.0)
    seen = (present > LEAST_MASS) & (absent > LEAST_MASS)
    found = 0.0
    for first, second in ((present, absent), (absent, present)):
        loss = np.log(first[seen] / second[seen])
        places = np.floor(loss / losses.INTERVAL).astype(np.int64)
        mass = np.bincount(places - places.min(), first[seen])
        one = losses.pld_pmf.DensePLDPmf(losses.INTERVAL, int(places.min()), mass, 0.0, False)
        total = one.self_compose(epochs, tail_mass_truncation=1e-15)
        found = max(found, float(total.get_epsilon_for_delta(delta + losses.rounding(epochs))))
    return found
