"""Data-independent epsilon of a whole ledger by each accountant that applies, and the least proven epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from bench.core.errors import BenchError, UnknownNameError
from bench.core.types import Adjacency, Claim, PrivacyUnit
from bench.privacy.accounting import distributions, pate
from bench.privacy.events import conversions, losses
from bench.privacy.events.batch_events import FixedBatches
from bench.privacy.events.events import Bypass, ConfidentGNMax, Event, GNMax, LNMax, RepeatAndSelect

ORDERS = np.array([1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [64, 80, 96, 128, 192, 256, 512, 1024])
HIGH_ORDERS = np.concatenate([ORDERS, 2.0 ** np.arange(11, 20.5, 0.5)])
"""Orders for epsilons below :data:`TINY`, the best of which is about ``2 log(1 / delta) / epsilon``."""
TINY = 0.1


@dataclass(frozen=True, slots=True)
class Accounted:
    """The epsilon of one accountant."""

    name: str
    epsilon: float
    """Infinite if there is no guarantee."""
    sound: bool
    """Whether it bounds the privacy loss of the run."""
    data_dependent: bool
    releasable: bool
    """Whether it may be published; a data-dependent figure may only if sanitised."""
    order: float | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values for JSON, with an infinite epsilon as the string ``"inf"``."""
        return {**asdict(self), "epsilon": self.epsilon if math.isfinite(self.epsilon) else "inf"}


AccountantFunction = Callable[[Sequence[Event], float], Accounted | None]


def common_unit(events: Sequence[Event]) -> tuple[PrivacyUnit, Adjacency]:
    """Return the weakest unit and the adjacency for which all `events` hold.

    With replace neighbours a client's guarantee covers each of its records, and a record's guarantee its label. Raises
    :class:`BenchError` without events, or if their neighbour relations do not cover each other.
    """
    if not events:
        raise BenchError("an empty ledger has no privacy unit.")
    adjacencies = {event.adjacency for event in events}
    units = {event.unit for event in events}
    if len(adjacencies) > 1:
        raise BenchError(
            "events for add-remove and for replace neighbours do not compose: "
            f"{_listed(events, 'adjacency')}. State all of them for one adjacency."
        )
    adjacency = adjacencies.pop()
    if len(units) == 1:
        return units.pop(), adjacency
    strength = [PrivacyUnit.LABEL, PrivacyUnit.RECORD, PrivacyUnit.CLIENT]
    if adjacency is Adjacency.REPLACE and units <= set(strength):
        return min(units, key=strength.index), adjacency
    raise BenchError(
        f"events that protect different units do not compose: {_listed(events, 'unit')}. State all of them "
        "for one unit, or account for each separately."
    )


def _listed(events: Sequence[Event], field: str) -> str:
    return "; ".join(sorted({f"{event.kind} ({getattr(event, field).value})" for event in events}))


def _independent(name: str, epsilon: float, order: float | None = None, note: str = "") -> Accounted:
    return Accounted(name, epsilon, sound=True, data_dependent=False, releasable=True, order=order, note=note)


def basic(events: Sequence[Event], delta: float) -> Accounted | None:
    """Return the sum of pure epsilons, which holds at delta 0; None unless every event has one."""
    total = sum(event.pure_epsilon() for event in events)
    if not math.isfinite(total):
        return None
    return _independent("basic-composition", total, note="pure: holds at delta 0")


def optimal(events: Sequence[Event], delta: float) -> Accounted | None:
    """Return the least epsilon from pure epsilons alone, rounded up if they differ; None if an event has none."""
    steps: dict[float, int] = {}
    for event in events:
        step = event.pure_step()
        if step is None:
            return None
        steps[step[0]] = steps.get(step[0], 0) + step[1]
    if len(steps) == 1:
        ((eps0, count),) = steps.items()
        if count > conversions.MOST_COMPOSED:
            return None
        return _independent("optimal-composition", conversions.optimal_composition(eps0, count, delta))
    if not distributions.resolves(sum(steps.values()), delta):
        return None
    spread = sum(losses.pure_spread(e, n) for e, n in steps.items())
    interval = losses.grid_interval(spread, min(e * math.sqrt(n) for e, n in steps.items()))
    total = distributions.composition([losses.pure_pld(e, n, interval) for e, n in steps.items()], sum(steps.values()))
    if total is None:
        return None
    return _independent("optimal-composition", total.epsilon(delta), note="of differing pure epsilons, rounded up")


def _rho(events: Sequence[Event]) -> float | None:
    rhos = [event.zcdp() for event in events]
    return None if None in rhos else sum(rho for rho in rhos if rho is not None)


def rdp(events: Sequence[Event], delta: float) -> Accounted | None:
    """Return Renyi accounting with the improved conversion; over all real orders if all noise is Gaussian."""
    rho = _rho(events)
    if rho is not None:
        epsilon, order = conversions.zcdp_improved_epsilon(rho, delta)
    else:
        epsilon, order = conversions.improved_epsilon(ORDERS, sum(event.rdp(ORDERS) for event in events), delta)
        if order == ORDERS[-1] and epsilon < TINY:
            high = sum(event.rdp(HIGH_ORDERS) for event in events)
            epsilon, order = min((epsilon, order), conversions.improved_epsilon(HIGH_ORDERS, high, delta))
    return _independent("rdp", epsilon, order, "improved conversion")


def rdp_classic(events: Sequence[Event], delta: float) -> Accounted | None:
    """Return Renyi accounting with the classic conversion; None unless all noise is Gaussian."""
    rho = _rho(events)
    if rho is None:
        return None
    epsilon, order = conversions.zcdp_classic_epsilon(rho, delta)
    return _independent("rdp-classic", epsilon, order, "classic conversion, looser than necessary")


def exact_gaussian(events: Sequence[Event], delta: float) -> Accounted | None:
    """Return the exact figure of Gaussian noise; None unless all noise is Gaussian and continuous."""
    mu = distributions.gaussian_total(events)
    if mu is None:
        return None
    note = f"mu {mu:.6f}" if mu >= 0.001 else f"mu {mu:.6g}"
    return _independent("exact-gaussian", conversions.exact_gaussian_epsilon(mu, delta), note=note)


def pld(events: Sequence[Event], delta: float) -> Accounted | None:
    """Return the PLD accountant's figure; None if an event has no PLD, or if all noise is Gaussian."""
    found = [_pld(tuple(distributions.merged(events)), delta)]
    if any(isinstance(event, FixedBatches) for event in events):
        # An absent record is one replaced by an empty place, whose curve may be the lower one at this delta.
        again = [event.replaced() if isinstance(event, FixedBatches) else event for event in events]
        found.append(_pld(tuple(distributions.merged(again)), delta))
    return min((row for row in found if row is not None), key=lambda row: row.epsilon, default=None)


@lru_cache(maxsize=1024)
def _pld(events: tuple[Event, ...], delta: float) -> Accounted | None:
    composed = distributions.composed_losses(events)
    if distributions.gaussian_total(events) is not None or not distributions.resolves(composed, delta):
        return None
    total = distributions.last_distribution(events)
    if total is None or math.isnan(epsilon := total.epsilon(delta)):
        return None
    histogram = any(isinstance(event, LNMax) for event in events)
    note = "of the whole noisy histogram" if histogram else ""
    return _independent("pld", epsilon, note=note)


def selection_profile(events: Sequence[Event], delta: float) -> Accounted | None:
    """Return tuning's bound from privacy profiles; None unless the only event is a RepeatAndSelect with profiles."""
    if len(events) != 1 or not isinstance(events[0], RepeatAndSelect):
        return None
    return _selection_profile(events[0], delta)


@lru_cache(maxsize=1024)
def _selection_profile(event: RepeatAndSelect, delta: float) -> Accounted | None:
    totals: dict[tuple[Event, ...], float | losses.Composed] = {}
    for run in event.runs:
        mu = distributions.gaussian_total(run)
        if mu is None and not distributions.resolves(distributions.composed_losses(run), delta / event.mean):
            return None
        total = distributions.loss_distribution(distributions.merged(run)) if mu is None else mu
        if total is None:
            return None
        totals[run] = total

    def epsilon_at(run: Sequence[Event], of: float) -> float:
        total = totals[tuple(run)]
        return conversions.exact_gaussian_epsilon(total, of) if isinstance(total, float) else total.epsilon(of)

    def delta_at(run: Sequence[Event], epsilon: float) -> float:
        total = totals[tuple(run)]
        return conversions.gaussian_delta(total, epsilon) if isinstance(total, float) else float(total.deltas(epsilon))

    return _independent("selection-profile", event.epsilon_by_profile(delta, epsilon_at, delta_at))


def _lnmax(events: Sequence[Event]) -> tuple[float, int] | None:
    gammas = {event.gamma for event in events if isinstance(event, LNMax)}
    if len(gammas) != 1 or not all(isinstance(event, LNMax) for event in events):
        return None
    return gammas.pop(), sum(event.queries for event in events if isinstance(event, LNMax))


def pate_closed_form(events: Sequence[Event], delta: float) -> Accounted | None:
    """Return PATE's ``4 T gamma^2 + 2 gamma sqrt(2 T log(1 / delta))``; None unless all is LNMax with one gamma."""
    found = _lnmax(events)
    if found is None:
        return None
    gamma, queries = found
    epsilon = queries * (2 * gamma) ** 2 + 2 * gamma * math.sqrt(-2 * queries * math.log(delta))
    return _independent("pate-2017-closed-form", epsilon, note="TrPATE's Theorem 1; sound but loose")


def pate_moments(events: Sequence[Event], delta: float, largest_moment: int = pate.LARGEST_MOMENT) -> Accounted | None:
    """Return PATE 2017's moments accountant without votes; None unless all events are LNMax with one gamma."""
    found = _lnmax(events)
    if found is None:
        return None
    epsilon, moment = pate.pure_moments_epsilon(2 * found[0], found[1], delta, largest_moment)
    return _independent("pate-2017-moments-data-independent", epsilon, moment)


def pate_2018(events: Sequence[Event], delta: float) -> Accounted | None:
    """Return PATE 2018's Renyi accounting without votes; None unless all events are GNMax or Confident-GNMax."""
    if not all(isinstance(event, (GNMax, ConfidentGNMax)) for event in events):
        return None
    epsilon, order = conversions.classic_epsilon(pate.ORDERS, sum(event.rdp(pate.ORDERS) for event in events), delta)
    return _independent("pate-2018-rdp-data-independent", epsilon, order, "classic conversion on the paper's orders")


ACCOUNTANTS: Mapping[str, AccountantFunction] = {
    "basic-composition": basic,
    "optimal-composition": optimal,
    "pate-2017-closed-form": pate_closed_form,
    "pate-2017-moments-data-independent": pate_moments,
    "pate-2018-rdp-data-independent": pate_2018,
    "rdp-classic": rdp_classic,
    "rdp": rdp,
    "pld": pld,
    "exact-gaussian": exact_gaussian,
    "selection-profile": selection_profile,
}


def accountant(name: str) -> AccountantFunction:
    """Return the accountant `name`, or :func:`proven` for ``"proven"``; raise :class:`BenchError` on other names."""
    if name == "proven":
        return proven
    if name not in ACCOUNTANTS:
        raise UnknownNameError("accountant", name, [*ACCOUNTANTS, "proven"])
    return ACCOUNTANTS[name]


def claim_by(name: str, events: Sequence[Event], delta: float, source: str, note: str = "") -> Claim:
    """Return the figure of the accountant `name` for `events` as a claim of `source`.

    Raises :class:`BenchError` on another name, or if the accountant does not apply.
    """
    figure = accountant(name)(events, delta)
    if figure is None:
        raise BenchError(f"the accountant {name!r} does not apply to {_listed(events, 'unit')}.")
    return Claim(figure.epsilon, delta, source, note)


def account(events: Sequence[Event], delta: float) -> list[Accounted]:
    """Return the figure of every accountant that applies to a whole ledger, in a fixed order.

    With a bypass the first row is infinite, with the reason; the others cover only the mechanisms and are not sound. If
    units differ, the notes name the weakest. Raises :class:`BenchError` on a delta outside (0, 1) or units that do not
    compose.
    """
    conversions.check_delta(delta)
    if not events:
        return [_independent("no-mechanism", 0.0, note="nothing was taken from private data")]
    reasons = list(dict.fromkeys(event.reason for event in events if isinstance(event, Bypass)))
    mechanisms = [event for event in events if not isinstance(event, Bypass)]
    rows: list[Accounted] = []
    if mechanisms:
        unit, adjacency = common_unit(mechanisms)
        weakest = len({event.unit for event in mechanisms}) > 1
        combined = distributions.merged(mechanisms)
        rows = [row for function in ACCOUNTANTS.values() if (row := function(combined, delta)) is not None]
        if weakest:
            said = f"for one {unit.value} ({adjacency.value}), the weakest of the units"
            rows = [replace(row, note="; ".join(filter(None, [row.note, said]))) for row in rows]
    if not reasons:
        return rows
    alone = "the mechanisms alone, without the bypass"
    rows = [replace(row, sound=False, note="; ".join(filter(None, [row.note, alone]))) for row in rows]
    return [_independent("bypass", math.inf, note="; ".join(reasons)), *rows]


def proven(events: Sequence[Event], delta: float) -> Accounted:
    """Return the least sound, publishable epsilon, infinite with a bypass, 0 for no events; see :func:`account`."""
    usable = [row for row in account(events, delta) if row.sound and row.releasable]
    return min(usable, key=lambda row: row.epsilon)


def replace_one(events: Sequence[Event], delta: float) -> Accounted:
    """Return :func:`proven` for replace neighbours, for any adjacency of `events`.

    Never below the add-remove figure, whose pairs it covers: grids may differ in the last digits.
    """
    figures = [proven([event.replaced() for event in events], delta)]
    if {event.adjacency for event in events} == {Adjacency.ADD_REMOVE}:
        figures.append(proven(events, delta))
    return max(figures, key=lambda row: row.epsilon)
