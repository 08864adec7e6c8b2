"""The mark of each claim, from records: no correct claim is marked wrong."""

from __future__ import annotations

import math

import pytest

from bench.interface import Facts
from bench.interface.registry import METHODS
from bench.reports.audits import audits_page
from bench.reports.board_row import BoardRow
from bench.reports.claims import CHOSEN, Claim
from bench.reports.leaderboard import build_board
from bench.reports.runs import read_runs
from bench.results.frame import results_frame
from bench.results.record import Accountant, Record
from helpers.pairs import pair_audit, release
from helpers.paths import BOARD
from helpers.records import record


def with_votes(one: Record, epsilon: float, *, sound: bool = True) -> Record:
    """Return `one` with a data-dependent epsilon of the run's votes."""
    assert one.privacy is not None
    found = Accountant(name="data-dependent", epsilon=epsilon, sound=sound, data_dependent=True, releasable=False)
    privacy = one.privacy.model_copy(update={"accountants": [*one.privacy.accountants, found]})
    return one.model_copy(update={"privacy": privacy})


def row(one: Record) -> BoardRow:
    return build_board([one]).rows[0]


@pytest.mark.parametrize(
    ("method", "dataset", "preset", "said"),
    [
        ("pate", "mnist", "quick", "test"), ("pate", "fmnist", "quick", ""), ("pate", "mnist", "paper", ""),
        ("trpate", "mnist", "quick", ""), ("unknown", "mnist", "quick", ""), ("dpsd", "mnist", "quick", "test"),
        ("trpate", "movie-review", "paper", "test"), ("scatter-linear", "mnist", "quick", ""),
        ("scatter-linear", "fmnist", "quick", "training"), ("scatter-linear", "fmnist", "paper", ""),
        ("dp-sgd", "fmnist", "quick", "training"), ("dp-gan", "mnist", "quick", "training"),
    ],
)  # fmt: skip
def test_settings_chosen_on_records_of_the_rows_data_set_are_said(
    method: str, dataset: str, preset: str, said: str
) -> None:
    (row,) = build_board([record(method=method, dataset=dataset, preset=preset)]).rows
    for records in ("test", "training"):
        found = any(f"settings chosen on this data set's {records} records" in remark for remark in row.remarks)
        assert found == (records == said)


@pytest.mark.parametrize(
    ("method", "config", "said"),
    [
        ("dgd", {"teacher_init": "package"}, "training"), ("dgd", {"teacher_init": "random"}, ""),
        ("pate-gnmax", {"teacher_init": "package", "teachers": 9}, "test"), ("trpate", {"teacher_init": "package"}, ""),
    ],
)  # fmt: skip
def test_settings_given_by_hand_are_said_too(method: str, config: dict[str, object], said: str) -> None:
    (row,) = build_board([record(method=method, dataset="cifar10", config=config)]).rows
    found = [remark for remark in row.remarks if remark.startswith("settings chosen")]
    assert [f" {said} records" in remark for remark in found] == [True] * bool(said)


def test_every_method_whose_settings_were_chosen_exists() -> None:
    named = {method for rules in CHOSEN.values() for rule in rules for method in rule["methods"]}
    assert named <= set(METHODS.names())


def test_what_takes_the_rate_of_dp_sgd_says_on_what_it_was_chosen() -> None:
    """DP-SGD's quick rate and its decrease with the noise were chosen on Fashion-MNIST's training records."""
    facts = Facts("fmnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)
    takes = {
        name
        for name in METHODS.names()
        if METHODS.get(name).__module__.startswith("bench.methods.")
        and METHODS.get(name).presets(facts).get("quick", {}).get("scale_lr")
    }
    assert "dp-sgd" in takes
    for name in takes:
        (row,) = build_board([record(method=name, dataset="fmnist", preset="quick")]).rows
        assert any("this data set's training records" in remark for remark in row.remarks), name


def test_the_four_marks() -> None:
    assert row(record(claimed=1.0, proven=1.0)).claim is Claim.HOLDS
    assert row(record(claimed=1.0, proven=1.1)).claim is Claim.FAILS
    assert row(with_votes(record(claimed=1.0, proven=1.1), 0.99)).claim is Claim.DATA_DEPENDENT
    assert row(with_votes(record(claimed=1.0, proven=1.1), 1.05)).claim is Claim.FAILS
    rounded = row(record(claimed=0.09999999726335769, proven=0.09999999726335772))  # two sums of the same events
    assert rounded.claim is Claim.HOLDS
    assert "proven > claimed" not in rounded.remarks
    assert row(with_votes(record(claimed=1.0, proven=math.inf, bypasses=("x",)), 0.9)).claim is Claim.FAILS
    assert row(record(claimed=math.inf, proven=math.inf)).claim is Claim.NONE
    audited = record(claimed=1.0, proven=4.0)
    (refuted,) = build_board([audited], [pair_audit(release(2.0), student=audited.key, allowed=4.0)]).rows
    assert (refuted.claim, refuted.claim_reason) == (Claim.REFUTED, "refuted by release; proven: 4.00")
    voted = with_votes(audited, 0.99)
    board = build_board([voted], [pair_audit(release(2.0), student=voted.key, allowed=4.0)])
    assert board.rows[0].claim is Claim.DATA_DEPENDENT, "an audit has other votes than the run"
    assert "refuted by release if read for any votes" in board.rows[0].claim_reason
    assert "refuted by experiment, if read for any votes: release" in board.rows[0].remarks
    assert "| above the claim, which covers only the votes of its own run, by release |" in audits_page(board)


def test_a_figure_after_the_fact_neither_supports_a_claim_nor_lets_an_audit_refute_it() -> None:
    """Confident-GNMax's figure for the answers given: other runs on the same votes give more, and cost more."""
    audited = with_votes(record(claimed=1.0, proven=4.0), 0.99, sound=False)
    (one,) = build_board([audited], [pair_audit(release(2.0), student=audited.key, allowed=4.0)]).rows
    assert one.claim is Claim.FAILS
    assert one.claim_reason.startswith("another run on the same votes may answer more queries")
    assert "refuted by release if read for any votes" in one.claim_reason
    assert math.isnan(results_frame([audited])["data_dependent"][0]), "no sound figure"


@pytest.mark.parametrize("low", [1.0, 3.0])
def test_one_seed_beyond_the_claim_is_enough(low: float) -> None:
    found = [with_votes(record(seed=seed, claimed=2.0, proven=2.5), votes) for seed, votes in enumerate((1.9, low))]
    (one,) = build_board(found).rows
    assert one.claim is (Claim.DATA_DEPENDENT if low < 2 else Claim.FAILS)


def test_bad_marks_on_the_board_have_a_reason() -> None:
    runs = read_runs([BOARD], "")
    rows = build_board(runs.records.values(), runs.audits.values()).rows
    bad = {one.method for one in rows if one.claim.bad}
    assert bad == {
        "dgd",
        "dgd-plus",
        "dp-kernel",
        "dpdfd",
        "dpsd",
        "dpsd-t",
        "dpsur",
        "fed-dpsd",
        "gep",
        "p3gm",
        "g-pate",
        "trpate-confident",
    }, "bypasses, noise that the formula cancels, steps that it does not count, or a count of answers after the fact"
    for one in rows:
        if one.claim.bad:
            assert one.proven > one.claimed
        if one.claim is Claim.DATA_DEPENDENT:
            assert one.method in ("trpate-gnmax", "pate-gnmax")
            assert one.proven > one.claimed


@pytest.mark.parametrize(
    ("method", "config", "said"),
    [
        ("dgd-sound", {"teachers": 1000}, True),
        ("dgd-sound", {"teachers": 250}, False),
        ("pate", {"teachers": 1000}, False),
    ],
)
def test_settings_chosen_by_hand_on_training_records_are_said(method: str, config: dict[str, int], said: bool) -> None:
    (row,) = build_board([record(method=method, config=config)]).rows
    assert any("chosen on this data set's training records" in remark for remark in row.remarks) == said
