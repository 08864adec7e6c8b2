"""The mark of each claim, from records: nobody is called wrong who is right."""

from __future__ import annotations

import math

import pytest

from bench.interface.registry import METHODS
from bench.results.record import Accountant, Record
from helpers.pairs import pair_audit, release
from helpers.paths import BOARD
from helpers.records import record
from reports.claims import CHOSEN_ON_TEST, Claim
from reports.leaderboard import BoardRow, build_board
from reports.runs import read_runs


def with_votes(one: Record, epsilon: float) -> Record:
    """Return `one` with a data-dependent figure of the run's votes."""
    assert one.privacy is not None
    found = Accountant(name="data-dependent", epsilon=epsilon, sound=True, data_dependent=True, releasable=False)
    privacy = one.privacy.model_copy(update={"accountants": [*one.privacy.accountants, found]})
    return one.model_copy(update={"privacy": privacy})


def row(one: Record) -> BoardRow:
    return build_board([one]).rows[0]


@pytest.mark.parametrize(
    ("method", "dataset", "preset", "said"),
    [
        ("pate", "mnist", "quick", True), ("pate", "fmnist", "quick", False), ("pate", "mnist", "paper", False),
        ("trpate", "mnist", "quick", False), ("scatter-linear", "mnist", "quick", False),
        ("unknown", "mnist", "quick", False),
    ],
)  # fmt: skip
def test_settings_chosen_on_test_records_are_said(method: str, dataset: str, preset: str, said: bool) -> None:
    (row,) = build_board([record(method=method, dataset=dataset, preset=preset)]).rows
    assert ("settings chosen on this data set's test records" in row.remarks) == said
    assert set().union(*CHOSEN_ON_TEST.values()) <= set(METHODS.names())


def test_the_four_marks() -> None:
    assert row(record(claimed=1.0, proven=1.0)).claim is Claim.HOLDS
    assert row(record(claimed=1.0, proven=1.1)).claim is Claim.FAILS
    assert row(with_votes(record(claimed=1.0, proven=1.1), 0.99)).claim is Claim.DATA_DEPENDENT
    assert row(with_votes(record(claimed=1.0, proven=1.1), 1.05)).claim is Claim.FAILS
    assert row(with_votes(record(claimed=1.0, proven=math.inf, bypasses=("x",)), 0.9)).claim is Claim.FAILS
    assert row(record(claimed=math.inf, proven=math.inf)).claim is Claim.NONE
    audited = record(claimed=1.0, proven=4.0)
    (refuted,) = build_board([audited], [pair_audit(release(2.0), student=audited.key, allowed=4.0)]).rows
    assert (refuted.claim, refuted.claim_reason) == (Claim.REFUTED, "refuted by release; proven: 4.00")


@pytest.mark.parametrize("low", [1.0, 3.0])
def test_one_seed_beyond_the_claim_is_enough(low: float) -> None:
    found = [with_votes(record(seed=seed, claimed=2.0, proven=2.5), votes) for seed, votes in enumerate((1.9, low))]
    (one,) = build_board(found).rows
    assert one.claim is (Claim.DATA_DEPENDENT if low < 2 else Claim.FAILS)


def test_bad_marks_on_the_board_are_those_that_something_contradicts() -> None:
    runs = read_runs([BOARD], "")
    rows = build_board(runs.records.values(), runs.audits.values()).rows
    bad = {one.method for one in rows if one.claim.bad}
    assert bad == {"dgd", "dgd-plus", "dp-kernel", "dpdfd", "dpsd", "dpsd-t", "dpsur", "fed-dpsd", "gep", "p3gm"}, (
        "bypasses, noise that the claim's formula cancels, or steps that it does not count"
    )
    for one in rows:
        if one.claim.bad:
            assert one.proven > one.claimed
        if one.claim is Claim.DATA_DEPENDENT:
            assert one.method in ("g-pate", "trpate-gnmax", "trpate-confident", "pate-gnmax", "pate-confident")
            assert one.proven > one.claimed
