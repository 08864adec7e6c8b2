"""What a method states in charges() and what its run charges the ledger: cost, unit and adjacency."""

from __future__ import annotations

import pytest

from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.check.check_runs import Outcome
from bench.evaluation.check.noninterference import Rejected, costs_covered
from bench.privacy.events.base_event import Event, stored
from bench.privacy.events.events import Bypass, Gaussian

RECORD = Gaussian(1.0, unit=PrivacyUnit.RECORD, adjacency=Adjacency.REPLACE)


def outcome(stated: Event, *charged: Event) -> Outcome:
    return Outcome(stated=stored([stated]), charged=stored(charged))


@pytest.mark.parametrize(
    ("charged", "said"),
    [
        (Gaussian(2.0, unit=PrivacyUnit.RECORD, adjacency=Adjacency.REPLACE), r"its charges\(\) cost epsilon"),
        (Gaussian(0.5, unit=PrivacyUnit.CLIENT, adjacency=Adjacency.REPLACE), "the unit of its charges.* is record"),
        (Gaussian(0.5, unit=PrivacyUnit.RECORD, adjacency=Adjacency.ADD_REMOVE), "charged the ledger for add-remove"),
    ],
)
def test_a_run_that_charges_less_or_for_something_else_is_rejected(charged: Event, said: str) -> None:
    with pytest.raises(Rejected, match=said):
        costs_covered(outcome(RECORD, charged), 1e-5)


def test_more_of_the_same_is_fine_and_a_bypass_protects_nothing() -> None:
    costs_covered(outcome(RECORD, RECORD, RECORD), 1e-5)
    bypass = Bypass("looked", adjacency=Adjacency.ADD_REMOVE)
    costs_covered(outcome(RECORD, RECORD, bypass), 1e-5)
    costs_covered(outcome(RECORD, bypass), 1e-5)
