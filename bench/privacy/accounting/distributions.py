"""The privacy loss distribution of a whole ledger, and bounds on its epsilon in both directions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from bench.privacy.events import losses
from bench.privacy.events.base_event import Event

LEAST_PLD_DELTA = 5e-12
"""Below it a PLD's rounding errors, at least `losses.rounding` of 1, would dominate."""
LARGEST_PLD_DELTA = 0.5
"""`losses.rounding` does not bound the error of larger ones."""


def merged(events: Sequence[Event]) -> list[Event]:
    """Return `events`, merging those that differ only in their counts."""
    counts: dict[Event, int] = {}
    result: list[Event] = []
    for event in events:
        if not event.counted:
            result.append(event)
            continue
        single = replace(event, **{event.counted: 1})  # type: ignore[arg-type]
        counts[single] = counts.get(single, 0) + getattr(event, event.counted)
    return [replace(e, **{e.counted: n}) for e, n in counts.items()] + result  # type: ignore[arg-type]


def gaussian_total(events: Sequence[Event]) -> float | None:
    """Return the mu of the one Gaussian release that costs exactly as much as `events`, None if none does."""
    mus = [event.gaussian_mu() for event in events]
    return None if None in mus else math.hypot(*(mu for mu in mus if mu is not None))


def resolves(composed: int, delta: float) -> bool:
    """Return whether a PLD of `composed` losses is accurate enough for an epsilon at `delta`."""
    return LEAST_PLD_DELTA <= delta <= LARGEST_PLD_DELTA and delta > losses.rounding(composed)


def composition(distributions: Sequence[Any | None], composed: int) -> losses.Composed | None:
    """Return the composition of PLDs, of `composed` losses in all; None if one of them is None."""
    total = distributions[0]
    for one in distributions[1:]:
        total = None if total is None or one is None else total.compose(one)
    return None if total is None else losses.Composed(total, losses.rounding(composed))


def loss_distribution(events: Sequence[Event], coarseness: float = 1.0) -> losses.Composed | None:
    """Return the composed PLD of `events`, rounded pessimistically; None if an event has none or it is too wide.

    `coarseness` multiplies the grid's interval: 10 takes a tenth of the time and adds a thousandth to epsilon.
    """
    gaussian = [event for event in events if event.gaussian_mu() is not None]
    others = [event for event in events if event.gaussian_mu() is None]
    spread = sum(event.loss_spread for event in others)
    mu = gaussian_total(gaussian) if gaussian else None
    if mu is not None:
        spread += losses.gaussian_spread(mu)
    if not math.isfinite(spread):
        return None
    known = [(event.loss_deviation, event.composed) for event in others]
    narrowest = min((one * math.sqrt(count) for one, count in known if one is not None), default=math.inf)
    # Single losses that are wider than the grid are rounded less on a finer one.
    wide = [2 * step[0] for event in others if (step := event.pure_step()) and step[0] > losses.grid_interval(spread)]
    interval = losses.grid_interval(spread, min([narrowest, *wide])) * coarseness
    if interval > 100:  # its exponential would overflow, and Renyi accounting suffices there
        return None
    parts = [event.pld(interval) for event in others]
    if mu is not None:
        parts.append(losses.gaussian_pld(mu, interval))
    total, blurs = composition(parts, composed_losses(events)), [event.blur(interval) for event in others]
    if total is None or None in blurs:
        return total
    return replace(total, blur=sum(filter(None, blurs)) + (0.0 if mu is None else interval**2))


def composed_losses(events: Sequence[Event]) -> int:
    """Return the number of losses that the PLD of `events` composes."""
    return sum(1 if event.gaussian_mu() is not None else event.composed for event in events)


@lru_cache(maxsize=1)
def last_distribution(events: tuple[Event, ...]) -> losses.Composed | None:
    """Return :func:`loss_distribution`, kept until another one is asked for."""
    return loss_distribution(events)


def at_least(events: Sequence[Event], delta: float) -> float | None:
    """Return a lower bound on the epsilon of the exact losses that :func:`pld` rounds up; None if unknown.

    These are the losses of the pairs by which the events are accounted for. A method may reveal less.
    """
    listed = tuple(merged(events))
    if gaussian_total(listed) is not None or not resolves(composed_losses(listed), delta):
        return None
    total = last_distribution(listed)
    return None if total is None else total.at_least(delta)
