"""Lower bounds on epsilon that assume the shape of a mechanism's trade-off curve, for audits.

The candidate curves form a one-parameter family: Gaussian noise, or the ledger's events with all noise divided by one
number. The bound is the epsilon of the least private member that the guesses refute. It is a lower bound on the
mechanism's epsilon only if the mechanism's curve is in the family; on correct randomised response the Gaussian one
exceeds epsilon. So it is reported next to an audited epsilon, never in its place. For a mechanism at least as private
as a member, the bound exceeds that member's epsilon no more often than the confidence allows.

One run: Mahloujifar, Melis and Chaudhuri 2025 (arXiv:2410.22235). Many runs: Nasr et al. 2023 (arXiv:2302.07956) for
Gaussian noise, here for any curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import special

from bench.privacy.accounting.accountants import common_unit
from bench.privacy.accounting.distributions import loss_distribution, merged
from bench.privacy.auditing.bounds import many_run_epsilon
from bench.privacy.auditing.one_run import check_confidence, check_one_run
from bench.privacy.events import events as kinds
from bench.privacy.events.base_event import Event
from bench.privacy.events.conversions import check_delta, gaussian_epsilon_at_least
from bench.privacy.events.gaussian_events import GaussianEvent

Curve = Callable[[float], float]
"""Maps a set's probability x to its least probability under a neighbour: ``f(1 - x)`` for a symmetric trade-off curve
f."""
CurveFamily = Literal["gaussian", "pld"]

NOISE: Mapping[type[Event], Mapping[str, int]] = {
    kinds.GNMax: {"sigma": 1},
    kinds.ConfidentGNMax: {"sigma1": 1, "sigma2": 1},
    kinds.Gaussian: {"noise_multiplier": 1},
    kinds.TreeSums: {"noise_multiplier": 1},
    kinds.BandedSums: {"noise_multiplier": 1},
    kinds.DPSGD: {"noise_multiplier": 1},
    kinds.AllocatedSteps: {"noise_multiplier": 1},
    kinds.FixedBatches: {"noise_multiplier": 1},
    kinds.ShuffledEpochs: {"noise_multiplier": 1},
    kinds.SampledGaussian: {"noise_multiplier": 1},
    kinds.SampledGNMax: {"sigma": 1},
    kinds.Laplace: {"noise_multiplier": 1},
    kinds.LNMax: {"gamma": -1},
}
"""For each event with additive noise, the fields of the noise's size, and the power of it that they hold."""
COARSENESS = 10.0
SMALLEST = 1e-3
"""The smallest mu, or multiple of a ledger's inverse noise, that is distinguished from 0."""


@dataclass(frozen=True, slots=True)
class CurveBound:
    """A lower bound within a family of trade-off curves."""

    family: CurveFamily
    scale: float
    """The refuted member's mu for Gaussian noise, else the ledger's noise over the member's; 0 if none is refuted."""
    epsilon: float
    """The member's epsilon at the requested delta, rounded down."""


def curve_family(events: Sequence[Event]) -> CurveFamily | None:
    """Return which family is proven to contain a ledger's curve, None if neither is.

    ``"gaussian"``: all events together cost exactly one Gaussian release. ``"pld"``: other additive noise with a
    privacy loss distribution. None: no events, a bypass, randomised response, discrete Gaussian noise, or an unknown
    event. Raises :class:`BenchError` on events whose units do not compose.
    """
    exact = any(isinstance(event, GaussianEvent) and event.exact for event in events)
    if not events or exact or any(type(event) not in NOISE for event in events):
        return None
    common_unit(events)
    return "pld" if any(event.gaussian_mu() is None for event in events) else "gaussian"


def one_run_by_curve(
    events: Sequence[Event],
    canaries: int,
    guesses: int,
    correct: int,
    delta: float,
    confidence: float = 0.95,
    group: int = 1,
) -> CurveBound | None:
    """Return the bound of a one-run audit within the family of `events`, None if no curve or no epsilon is known.

    The counts are those of :func:`bench.privacy.auditing.one_run.one_run_epsilon`; canaries that occur `group` times
    are tested with the group privacy curve. Raises :class:`BenchError` on impossible counts, a `delta` or `confidence`
    outside (0, 1), or events whose units do not compose.
    """
    check_one_run(canaries, guesses, correct, group)
    error = 1 - check_confidence(confidence)

    def refuted(curve: Curve) -> bool:
        right, wrong = error * correct / canaries, error * (guesses - correct) / canaries
        for fewer in range(correct - 1, -1, -1):
            least = right
            for _ in range(group):
                least = curve(least)
            if least <= wrong:
                break
            right = min(right + fewer / (guesses - fewer) * (least - wrong), 1.0)
            wrong = least
        return right + wrong > guesses / canaries

    return _largest_member(events, delta, refuted)


def many_run_by_curve(
    events: Sequence[Event],
    false_positives: int,
    negatives: int,
    false_negatives: int,
    positives: int,
    delta: float,
    confidence: float = 0.95,
) -> CurveBound | None:
    """Return the bound of a fixed test over independent runs within the family of `events`; None as for one run.

    The counts are those of :func:`bench.privacy.auditing.bounds.many_run_epsilon`; a member is refuted if it does not
    allow the upper confidence bounds on both rates. Raises :class:`BenchError` as :func:`one_run_by_curve`.
    """
    found = many_run_epsilon(false_positives, negatives, false_negatives, positives, delta, confidence)
    return _largest_member(events, delta, lambda curve: curve(1 - found.fpr_upper) > found.fnr_upper)


def _largest_member(events: Sequence[Event], delta: float, refuted: Callable[[Curve], bool]) -> CurveBound | None:
    family = curve_family(events)
    if family is None:
        return None
    check_delta(delta)
    if not refuted(lambda probability: probability):  # perfect privacy, the limit of both families
        return CurveBound(family, 0.0, 0.0)
    if family == "gaussian":
        mu = _largest(lambda mu: refuted(lambda x: float(special.ndtr(special.ndtri(x) - mu))), 1e-7)
        return CurveBound(family, mu, gaussian_epsilon_at_least(mu, delta))
    ledger = tuple(merged(events))
    scale = _largest(lambda scale: refuted(_by_losses(ledger, scale)), 1e-3)
    if not scale:
        return CurveBound(family, 0.0, 0.0)
    losses = loss_distribution(_with_noise(ledger, scale))
    epsilon = None if losses is None else losses.at_least(delta)
    return None if epsilon is None else CurveBound(family, scale, epsilon)


def _largest(refuted: Callable[[float], bool], tolerance: float) -> float:
    """Return the largest refuted scale to a relative `tolerance`, from below; 0 if it is below :data:`SMALLEST`."""
    high = 1.0
    while refuted(high):
        high *= 2
    low = high / 2
    while not refuted(low):
        low, high = low / 2, low
        if low < SMALLEST:
            return 0.0
    while high - low > tolerance * low:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _with_noise(events: Sequence[Event], scale: float) -> list[Event]:
    """Return `events` with all noise divided by `scale`."""
    return [
        replace(event, **{name: getattr(event, name) * scale**-power for name, power in NOISE[type(event)].items()})
        for event in events
    ]


@lru_cache(maxsize=256)
def _by_losses(events: tuple[Event, ...], scale: float) -> Curve:
    """Return the curve of `events` with all noise divided by `scale`, rounded towards less privacy."""
    distribution = loss_distribution(_with_noise(events, scale), COARSENESS)
    if distribution is None:
        return lambda probability: 0.0
    top = min(distribution.epsilon(1e-8), 500.0)
    epsilons = np.linspace(0.0, top, 500)
    # Tangents lie below the curve, so fewer of them would also be valid.
    deltas = distribution.deltas(epsilons)
    ratios = np.exp(epsilons)

    def least(probability: float) -> float:
        low, high = (probability - deltas) / ratios, 1 - deltas - ratios * (1 - probability)
        return max(float(low.max()), float(high.max()), 0.0)

    return least
