"""Lower bounds on epsilon from privacy losses of independent runs, drawn from P or from a tilted distribution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from bench.core.errors import BenchError
from bench.privacy.auditing.one_run import check_confidence
from bench.privacy.events.conversions import check_delta

Floats = NDArray[np.float64]

_STAKES = 30
_HALVINGS = 40


def refuted_by_losses(losses: ArrayLike, log_weights: ArrayLike, delta: float, confidence: float = 0.95) -> float:
    """Return the largest epsilon that the runs' losses refute at `delta`: 0 if none, possibly infinite.

    `losses` are ``ln P / P'`` of the runs' transcripts (n,), in order; `log_weights` (n,) the log ratios of P to the
    distribution drawn from, which may depend on earlier runs. Holds at `confidence` for any stopping rule, including
    one that looks at earlier results. Raises :class:`BenchError` on arrays of other shapes, NaN, or a `delta` or
    `confidence` outside (0, 1). Source: Waudby-Smith and Ramdas 2023 (arXiv:2010.09686), betting against a mean, with
    Ville's inequality.
    """
    loss, log_weight = np.asarray(losses, dtype=np.float64), np.asarray(log_weights, dtype=np.float64)
    check_delta(delta)
    threshold = -math.log1p(-check_confidence(confidence))
    if loss.ndim != 1 or loss.shape != log_weight.shape:
        raise BenchError(
            f"losses and log weights must have one entry per run, not shapes {loss.shape} and {log_weight.shape}."
        )
    if np.isnan(loss).any() or np.isnan(log_weight).any():
        raise BenchError("losses and log weights must be numbers. Do not drop runs: find the cause of the NaN.")
    if not loss.size:
        return 0.0
    # X = weight (1 - e^(epsilon - loss))+ has mean at most delta(epsilon), whatever the distribution drawn from. If
    # that is at most delta, a bet that stakes a part c < 1 of its capital at odds X / delta is a supermartingale,
    # positive as X >= 0: X needs no upper bound and no clipping. So is the mean of several bets, and the probability
    # that it ever reaches 1 / (1 - confidence) is at most 1 - confidence. X falls with epsilon, so the refuted epsilons
    # form an interval, whose end exceeds the true epsilon only if that is refuted itself.
    stakes = np.geomspace(delta, 0.95, _STAKES)[:, None]

    def refuted(epsilon: float) -> bool:
        seen = loss > epsilon
        shown = np.zeros(loss.shape)
        shown[seen] = -np.expm1(epsilon - loss[seen]) * np.exp(np.minimum(log_weight[seen] - math.log(delta), 700))
        capital = np.log1p(stakes * (shown - 1)).cumsum(axis=1)
        return bool(np.logaddexp.reduce(capital, axis=0).max() - math.log(_STAKES) >= threshold)

    finite = loss[np.isfinite(loss)]
    low, high = 0.0, max(finite.max(initial=0.0), 0.0)
    if (loss == np.inf).any() and refuted(np.nextafter(np.inf, 0)):
        return math.inf
    if not refuted(low):
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def best_tilt(log_moment: Callable[[float], float], delta: float) -> float:
    """Return the tilt that suits :func:`refuted_by_losses` best: its mean loss is near epsilon at `delta`.

    `log_moment` of a tilt is ``ln E[exp(tilt * loss)]`` under P: the sum of ``log_weight + tilt * loss`` over one draw
    of each call, or, from a pilot's losses alone, ``tilt * mean + tilt^2 * variance / 2``. Pilot runs must not be
    counted. At most 1,000; 0 if all losses are 0. Saddle point: Alghamdi et al. 2023 (arXiv:2208.09595).
    """
    check_delta(delta)

    def excess(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        step = 1e-2 * tilt
        low, middle, high = (log_moment(tilt + shift) for shift in (-step, 0.0, step))
        mean, variance = (high - low) / (2 * step), max((high - 2 * middle + low) / step**2, 1e-300)
        spread = math.log(2 * math.pi * variance) / 2 + math.log(tilt) + math.log1p(tilt)
        return middle - tilt * mean - spread - math.log(delta)

    # The first crossing: the formula fails at tilts so large that only the largest loss is left, without variance.
    tilts = np.log(np.geomspace(1e-2, 1e3, 41)).tolist()
    if not log_moment(1.0) or excess(tilts[0]) <= 0:
        return 0.0
    for low, high in itertools.pairwise(tilts):
        if excess(high) < 0:
            return math.exp(float(optimize.brentq(excess, low, high, xtol=1e-2)))
    return math.exp(tilts[-1])
