"""Recomputation of a record's epsilons: the cost of its events, the cost of its settings, and its method's claim."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.experiments.candidates import candidates_of, tuned_claim, tuned_event
from bench.experiments.plan import Cell, bound_method
from bench.interface.registry import METHODS
from bench.privacy.accounting.accountants import Accounted, account, proven
from bench.privacy.events.base_event import restored, stored
from bench.privacy.events.events import Bypass
from bench.privacy.mechanisms.ledger import Ledger
from bench.results.record import Privacy, Record

TOLERANCE = 1e-4  # relative; machines and package versions differ by less
# Noise settings, with the same names in configs and events.
_NOISE = {"gamma", "sigma", "sigma1", "sigma2", "threshold", "noise_multiplier"}


def accounted(record: Record, privacy: Privacy) -> tuple[list[str], list[str]]:
    """Return the problems of the proven epsilon given the ledger's events, and the checks that could not run."""
    method = METHODS.get(record.method)
    again = "Run its cell again."
    problems = []
    if (privacy.unit, privacy.adjacency) != (method.unit, method.adjacency) or privacy.delta != record.delta:
        problems.append(f"its unit, adjacency or delta differ from the method's. {again}")
    try:
        figure, level = account_events(json.dumps(privacy.events, sort_keys=True), privacy.unit.value, record.delta)
    except (BenchError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        return [*problems, f"its ledger cannot be accounted for: {str(error).rstrip('.')}. {again}"], []
    counted = [event["queries"] * event.get("times", 1) for event in privacy.events if "queries" in event]
    asked = 0 if record.queries is None else record.queries.asked
    if counted and not 0 < asked <= sum(counted):  # some events of a declared maximum may be unspent
        problems.append(f"its ledger has {sum(counted)} queries, but {asked} were asked. {again}")
    if not privacy.events:
        problems.append(f"its ledger is empty, so its privacy is unknown. {again}")
    if not same(privacy.proven.epsilon, figure.epsilon):
        problems.append(
            f"its events cost epsilon {figure.epsilon:.6g} ({figure.name}), but it says {privacy.proven.epsilon:.6g} "
            f"is proven. {again}"
        )
    if not (privacy.proven.sound and privacy.proven.releasable) or privacy.proven.data_dependent:
        problems.append(f"its proven figure is not sound, or depends on the data. {again}")
    if (privacy.proven.name, privacy.proven.note) != (figure.name, figure.note):
        problems.append(f"its proven figure lacks the name or the note of {figure.name}. {again}")
    problems += _others(privacy, record.delta)
    if (privacy.plausibility is not None) != method.single_teacher:
        problems.append(f"the plausibility of its accuracy under the claim is missing or unjustified. {again}")
    reasons = [str(event.reason) for event in restored(privacy.events) if isinstance(event, Bypass)]
    if privacy.bypasses != reasons:
        problems.append(f"its bypasses differ from its ledger's. {again}")
    if method.bypass and math.isfinite(privacy.proven.epsilon):
        problems.append(f"the method has no finite proven epsilon: {method.bypass}. {again}")
    said = None if privacy.record_level is None else privacy.record_level.epsilon
    if not same(said, None if level is None else level.epsilon):
        problems.append(f"its epsilon for a training record does not follow from its events. {again}")
    unchecked = (
        [] if privacy.plausibility is None else ["what the claim says of the accuracy: it needs the test labels"]
    )
    return problems, unchecked


def _others(privacy: Privacy, delta: float) -> list[str]:
    """Return a problem for each figure that the events do not reproduce, except data-dependent ones."""
    events = json.dumps(privacy.events, sort_keys=True)
    there = {figure.name: figure for figure in all_accountants(events, delta)}
    wrong = []
    for said in privacy.accountants:
        if said.data_dependent and not said.releasable:
            continue
        found = there.get(said.name)
        told = (said.sound, said.data_dependent, said.releasable)
        if (
            found is None
            or told != (found.sound, found.data_dependent, found.releasable)
            or not same(said.epsilon, found.epsilon)
        ):
            wrong.append(f"its events do not cost {said.epsilon:.6g} by {said.name[:80]!r}. Run its cell again.")
    return wrong


@functools.lru_cache(maxsize=1024)
def all_accountants(events: str, delta: float) -> tuple[Accounted, ...]:
    """Return every accountant's figure for a ledger's `events` (JSON)."""
    return tuple(account(restored(json.loads(events)), delta))


@functools.lru_cache(maxsize=1024)
def account_events(events: str, unit: str, delta: float) -> tuple[Accounted, Accounted | None]:
    """Return the proven figure for a ledger's `events` (JSON), and the record-level one."""
    parsed = restored(json.loads(events))
    level = Ledger.from_events(PrivacyUnit(unit), Adjacency.REPLACE, parsed).record_level(delta)
    return proven(parsed, delta), level


class _NoVotes(Exception):
    pass


class _Ledger(Ledger):
    """A record's ledger, without votes: raises _NoVotes if a claim depends on them."""

    def private_votes(self) -> Any:
        raise _NoVotes

    def sanitised(self, delta: float) -> Any:
        raise _NoVotes

    def data_dependent(self, delta: float) -> Any:
        raise _NoVotes


def claimed(record: Record, privacy: Privacy, cell: Cell) -> tuple[list[str], list[str]]:
    """Return the problem of the claimed epsilon given the method's claim, and the check that could not run."""
    method = METHODS.get(record.method)
    try:
        ledger = _Ledger.from_events(method.unit, method.adjacency, restored(privacy.events))
        if cell.spec.tuning is None:
            claim = bound_method(cell).claimed_after(cell.delta, ledger)
        else:
            one = bound_method(cell).claimed(cell.delta)
            claim = tuned_claim(one, proven(ledger.events, cell.delta))
    except _NoVotes:
        return [], ["the claimed epsilon depends on votes"]
    except Exception as error:  # noqa: BLE001 (of a plug-in)
        return [f"its claim cannot be computed again: {str(error).rstrip('.')}. Run its cell again."], []
    said = (privacy.claimed.source, privacy.claimed.note)
    if not same(privacy.claimed.epsilon, claim.epsilon) or said != (claim.source, claim.note):
        return [
            f"the method's claim is epsilon {claim.epsilon:.6g} ({claim.source}), but the record states "
            f"{privacy.claimed.epsilon:.6g} or describes it differently. Run its cell again."
        ], []
    return [], []


def charged(record: Record, privacy: Privacy, cell: Cell) -> tuple[list[str], list[str]]:
    """Return the problem of a ledger that costs less than the cell's settings, and the check that could not run."""
    method = METHODS.get(record.method)
    if method.bypass:
        return [], []  # nothing finite is proven
    try:
        tuned = cell.spec.tuning is not None
        events = [tuned_event(candidates_of(cell))] if tuned else bound_method(cell).charges()
    except BenchError as error:
        return [f"{error} Run its cell again."], []
    if events is None:
        return [], ["whether the ledger holds all that the settings cost"]
    listed = json.dumps(stored(events), sort_keys=True)
    figure, level = account_events(listed, privacy.unit.value, record.delta)
    pairs = [(privacy.proven, figure), (privacy.record_level, level)]
    return [
        f"its settings cost epsilon {cost.epsilon:.6g}, but it says {said.epsilon:.6g} is proven. Run its cell again."
        for said, cost in pairs
        # A higher cost is valid: exact noise costs slightly more than planned noise.
        if said is not None and cost is not None and not said.epsilon >= cost.epsilon * (1 - TOLERANCE)
    ], []


def noisy(record: Record, privacy: Privacy, cell: Cell) -> tuple[list[str], list[str]]:
    """Return contradictions between the ledger's noise and the cell's settings, since events alone could be forged."""
    method = METHODS.get(record.method)
    try:
        charges = () if method.bypass or cell.spec.tuning is not None else bound_method(cell).charges() or ()
    except BenchError:
        return [], []  # reported by :func:`charged`
    planned = [event.as_dict() for event in charges]
    problems = []
    for name in sorted(_NOISE & set(record.config)):
        spent, set_to = {event[name] for event in privacy.events if name in event}, record.config[name]
        # A setting may be relative to a part of the release; then the planned charges state the event's noise.
        meant = [set_to, *(event[name] for event in planned if name in event)]
        # With mixed noise only one mechanism has the setting; the total cost is compared with the method's charges.
        holds = any if spent and method.mixed_noise else all
        # Planning reports settings that are not numbers.
        if isinstance(set_to, (int, float)) and not holds(any(same(value, one) for one in meant) for value in spent):
            problems.append(f"its settings have {name} {set_to:g}, but its ledger differs. Run its cell again.")
    return problems, []


def same(one: float | None, other: float | None) -> bool:
    """Return whether two figures agree within :data:`TOLERANCE` or are both None."""
    if one is None or other is None:
        return one is other
    return one == other or math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-9)
