"""The board is a pure function of records: groups, order, remarks, escaped text."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.types import Adjacency, Basis, PrivacyUnit, TargetAdjacency
from bench.privacy.accounting.accountants import proven
from bench.privacy.events.events import Gaussian, RandomizedResponse
from bench.reports.leaderboard import COLUMNS, Source, build_board, cells_of, to_csv, to_markdown
from bench.reports.site.front_page import glance
from bench.reports.site.rows import rankings
from bench.results.frame import NUMBERS, results_frame
from bench.results.record import Record
from bench.results.text import epsilon_rows
from helpers.records import asked as asked_for
from helpers.records import collapsed, failed, provenance, record


def test_seeds_are_one_row_with_mean_and_spread() -> None:
    board = build_board([record(seed=s, accuracy=a) for s, a in enumerate((0.94, 0.95, 0.96))])
    (row,) = board.rows
    assert row.accuracy == pytest.approx(95.0)
    assert row.spread == pytest.approx(1.0)
    assert row.seeds == (0, 1, 2)
    assert cells_of(row)["accuracy"] == "95.00 (92.1–97.8)"


def test_a_row_says_how_many_of_its_seeds_collapsed() -> None:
    found = [record(), record(seed=1), collapsed(seed=2), collapsed(seed=3, config={"queries": 200}), failed(seed=4)]
    board = build_board(found)
    assert board.rows[0].remarks[0] == "1 of 3 seeds collapsed, counted at chance"
    assert (cells_of(board.rows[0])["seeds"], board.rows[0].accuracy) == ("3", pytest.approx(2 / 3 * 95))
    assert not any("collapsed" in remark for remark in build_board(found[:2]).rows[0].remarks)
    assert "the generator collapsed [Its images](released/grid.png)" in to_markdown(board)


def test_the_frame_has_one_typed_row_per_record_in_order_of_seeds() -> None:
    frame = results_frame([record(seed=1, accuracy=0.5), record(seed=0, epsilon=None, bypasses=("x",))])
    assert frame["seed"].tolist() == [0, 1]
    assert {str(frame[name].dtype) for name in NUMBERS} == {"float64"}
    assert math.isnan(frame["epsilon"][0])
    assert frame["proven"].tolist() == [math.inf, 4.0]
    assert frame["accuracy"].tolist() == [95.0, 50.0]
    assert frame["bypasses"].tolist() == [("x",), ()]
    assert frame["row"].nunique() == 2
    assert results_frame([]).empty


def test_configs_budgets_and_presets_are_rows_of_their_own() -> None:
    rows = build_board(
        [
            record(), record(config={"queries": 1}), record(epsilon=1.0), record(preset="paper"),
            record(noise="secure"), record(dataset_revision="sha256:1"),
        ]
    ).rows  # fmt: skip
    assert len(rows) == 6


def test_another_precision_is_another_row_that_says_so() -> None:
    """It is not another seed, so the two must not be averaged."""
    rows = build_board([record(accuracy=0.9), record(accuracy=0.8, precision="bf16")]).rows
    assert sorted(row.accuracy for row in rows) == [80.0, 90.0]
    assert [len(row.seeds) for row in rows] == [1, 1]
    assert sorted("teachers in bf16" in row.remarks for row in rows) == [False, True]


def test_units_and_data_sets_never_share_a_table() -> None:
    board = build_board([record(), record(unit=PrivacyUnit.LABEL, method="b"), record(dataset="fmnist")])
    assert set(board.tables()) == {("mnist", "record"), ("mnist", "label"), ("fmnist", "record")}


def test_finite_proven_comes_first_then_accuracy() -> None:
    board = build_board(
        [
            record(method="open", accuracy=0.99, bypasses=("it saw everything",)),
            record(method="weak", accuracy=0.80),
            record(method="strong", accuracy=0.90),
        ]
    )
    assert [row.method for row in board.tables()["mnist", "record"]] == ["strong", "weak", "open"]
    assert math.isinf(board.rows[-1].proven)
    assert "it saw everything" in board.rows[-1].remarks


def test_rows_compete_by_what_is_proven_whatever_was_asked_for() -> None:
    found = [
        record(method="loose", epsilon=10.0, proven=0.9, accuracy=0.99),
        record(method="at-the-bound", epsilon=1.0, proven=1.0, accuracy=0.90),
        record(method="strong", epsilon=1.0, proven=1.01, accuracy=0.95),
        record(method="alike", epsilon=3.0, proven=2.9, accuracy=0.94),
        record(method="weak", epsilon=2.0, proven=2.0, accuracy=0.50),
        record(method="dear", epsilon=1.0, proven=5.6e6, accuracy=0.97),
        record(method="open", epsilon=1.0, accuracy=0.98, bypasses=("it saw everything",)),
        record(method="nonprivate", epsilon=None, accuracy=1.0, bypasses=("all",)),
    ]
    board = build_board(three_seeds(found))
    assert [(row.method, str(row.band), row.rank) for row in board.rows] == [
        ("loose", "up to 1", "1"), ("at-the-bound", "up to 1", "2"), ("strong", "up to 3", "1-2"),
        ("alike", "up to 3", "1-2"), ("weak", "up to 3", "3"), ("dear", "above 10", "–"), ("open", "above 10", "–"),
        ("nonprivate", "without privacy", "–"),
    ]  # fmt: skip
    names = [row.method for row in board.rows]
    assert [row["method"] for row in csv.DictReader(io.StringIO(to_csv(board)))] == names
    page = to_markdown(board)
    assert sorted(names, key=lambda name: page.index(f"| {name} |")) == names
    assert page.count("\n**Proven epsilon ") == 3
    assert page.count(" points of the first do not differ from it significantly.") == 2


def three_seeds(found: Sequence[Record]) -> list[Record]:
    """Return `found` with two further seeds each."""
    return [
        asked_for(one, seed=seed).model_copy(update={"key": f"{one.key}-{seed}"}) for one in found for seed in range(3)
    ]


def test_rows_without_enough_seeds_or_a_rank_of_their_own_say_why() -> None:
    again = record(method="pate", accuracy=0.7, config={"queries": 7}, key="again")
    found = [*three_seeds([record(accuracy=0.8), again]), record(method="lucky", accuracy=0.99)]
    assert [(row.rank, row.accuracy, row.unranked) for row in build_board(found).rows] == [
        ("1", pytest.approx(80), ""), ("–", pytest.approx(99), "fewer than three seeds"),
        ("–", pytest.approx(70), "another row of the method holds its rank"),
    ]  # fmt: skip


def test_one_seed_says_what_its_interval_covers_and_borrows_where_it_can() -> None:
    (alone,) = build_board([record()]).rows
    assert "one seed: the interval covers test records only" in alone.remarks
    assert alone.marks == "¹°†", "pate's quick settings were chosen on MNIST's test records"
    others = [record(seed=s, accuracy=a, config={"queries": 7}, key=f"o{s}") for s, a in enumerate((0.7, 0.8, 0.9))]
    lent = next(row for row in build_board([record(), *others]).rows if row.accuracy == 95.0)
    assert lent.low < alone.low - 10
    assert any("method's other rows" in remark for remark in lent.remarks)


def test_a_time_that_the_cache_shortened_is_not_shown() -> None:
    cold, warm = provenance(wall_seconds=100.0), provenance(wall_seconds=3.0, artefacts_found=2)
    busy = provenance(wall_seconds=300.0)  # beside other work
    given = [record(provenance=cold), record(seed=1, provenance=warm), record(seed=2, provenance=busy)]
    (row,) = build_board(given).rows
    assert cells_of(row)["time"] == "100 s (cpu, 2 threads)"
    assert cells_of(build_board([record(provenance=warm)]).rows[0])["time"] == "–"


def test_proven_above_claimed_is_said() -> None:
    (row,) = build_board([record(claimed=1.0, proven=28.8)]).rows
    assert "proven > claimed" in row.remarks
    (row,) = build_board([record(claimed=10.0, proven=4.0)]).rows
    assert "proven > claimed" not in row.remarks


def add_remove(noise: float = 3.5, epsilon: float = 2.0, **changes: Any) -> Record:
    """Return a record with full-batch noise under add-remove, like those of dp-linear-gd."""
    event = Gaussian(noise, adjacency=Adjacency.ADD_REMOVE)
    given = record(epsilon=epsilon, claimed=epsilon, proven=proven([event], 1e-5).epsilon)
    assert given.privacy is not None
    changed = {"adjacency": Adjacency.ADD_REMOVE, "events": [event.as_dict()]}
    privacy = given.privacy.model_copy(update=changed)
    return record(**{"method": "sums", "epsilon": epsilon, "privacy": privacy, **changes})


PROVEN = ("proven", "proven, replace-one")


def test_every_row_states_its_proven_epsilon_for_one_replaced_record() -> None:
    sums, votes = build_board([add_remove(), record(method="votes", epsilon=10.0)]).rows
    assert sums.replace_one == pytest.approx(proven([Gaussian(1.75)], 1e-5).epsilon)
    assert votes.replace_one == votes.proven
    assert [cells_of(sums)[name] for name in PROVEN] == ["1.08 (add-remove)", "2.32"]
    assert [cells_of(votes)[name] for name in PROVEN] == ["4.00", "4.00"]
    page = to_markdown(build_board([add_remove()]))
    assert "(zero-out)" in page
    assert "zero-out" not in to_markdown(build_board([record()]))
    (row,) = csv.DictReader(io.StringIO(to_csv(build_board([add_remove()]))))
    assert (float(row["proven"]), float(row["replace_one"])) == pytest.approx((sums.proven, sums.replace_one), rel=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.3, 30.0))
def test_the_csv_never_states_less_than_is_proven(noise: float) -> None:
    board = build_board([add_remove(noise=noise)])
    (row,) = csv.DictReader(io.StringIO(to_csv(board)))
    assert float(row["proven"]) >= board.rows[0].proven
    assert float(row["replace_one"]) >= board.rows[0].replace_one


def test_an_epsilon_that_delta_covers_does_not_look_like_no_cost() -> None:
    """Delta 1e-5 covers answers with a pure epsilon of 1e-9, so the proven epsilon is 0, with the reason."""
    event = RandomizedResponse(1e-9, 10, unit=PrivacyUnit.RECORD)
    figure = proven([event], 1e-5).epsilon
    row = build_board([record(epsilon=1e-9, claimed=1e-9, proven=figure)]).rows[0]
    assert (cells_of(row)["claimed"], cells_of(row)["proven"]) == ("1.0e-9", "0 (within delta)")
    assert "| 0.00 |" not in to_markdown(build_board([record(epsilon=1e-9, claimed=1e-9, proven=figure)]))


def test_a_record_states_both_figures() -> None:
    rows = {name: value for name, value, _ in epsilon_rows(add_remove().privacy)}
    assert (rows["proven"], rows["proven, replace-one"]) == ("1.08", "2.32")
    assert "proven, replace-one" not in {name for name, *_ in epsilon_rows(record().privacy)}


def test_rankings_go_by_the_proven_epsilon_for_one_replaced_record() -> None:
    """A row that meets the target only for its own neighbours does not rank above one with a smaller proven epsilon."""
    found = [
        add_remove(accuracy=0.99),
        add_remove(8.0, accuracy=0.97, method="noisier"),
        record(method="votes", epsilon=2.0, proven=1.9, accuracy=0.90),
        record(method="weaker", epsilon=2.0, proven=1.5, accuracy=0.80),
        record(method="beyond", epsilon=2.0, proven=2.5, accuracy=0.95),
        record(method="open", epsilon=2.0, accuracy=0.98, bypasses=("it saw everything",)),
    ]
    (ranking,) = rankings(Source(three_seeds(found)))
    assert [(row.name, row.group.removeprefix("proven epsilon "), row.place) for row in ranking.rows] == [
        ("noisier", "up to 1", "1"), ("sums", "up to 3", "1"), ("beyond", "up to 3", "2"), ("votes", "up to 3", "3"),
        ("weaker", "up to 3", "4"), ("open", "no finite epsilon is proven", "–"),
    ]  # fmt: skip
    ((_, within),) = glance([ranking])
    assert [best and best.name for best in within[:3]] == ["noisier", "sums", None]


def test_a_target_for_other_neighbours_says_so() -> None:
    made = {adjacency: asked(add_remove(basis=Basis.PROVEN, adjacency=adjacency)) for adjacency in TargetAdjacency}
    assert made == {TargetAdjacency.OWN: "2 (proven, add-remove)", TargetAdjacency.REPLACE_ONE: "2 (proven)"}
    assert asked(record(basis=Basis.PROVEN)) == "10 (proven)"


def asked(one: Record) -> str:
    return cells_of(build_board([one]).rows[0])["target epsilon (basis)"]


def test_without_events_nothing_is_proven_of_a_replaced_record() -> None:
    privacy = add_remove().privacy
    assert privacy is not None
    for events in ([], [{"kind": "another"}]):
        (row,) = build_board([add_remove(privacy=privacy.model_copy(update={"events": events}))]).rows
        assert math.isinf(row.replace_one)


def test_drop_from_the_baseline_of_the_same_data_and_preset() -> None:
    board = build_board(
        [
            record(accuracy=0.95),
            record(method="nonprivate", epsilon=None, accuracy=0.98, bypasses=("all",)),
            record(method="nonprivate", epsilon=None, accuracy=0.50, bypasses=("all",), preset="paper"),
            record(method="nonprivate", epsilon=None, accuracy=0.99, bypasses=("all",), config={"records": 500}),
            record(dataset="fmnist"),
        ]
    )
    drops = {(row.dataset, row.method, row.preset): row.drop for row in board.rows}
    assert drops["mnist", "pate", "quick"] == pytest.approx(3.0)
    assert drops["fmnist", "pate", "quick"] is None


def test_seeds_that_disagree_show_the_worst_epsilons() -> None:
    (row,) = build_board([record(seed=0, proven=3.0, claimed=2.0), record(seed=1, proven=4.0, claimed=2.5)]).rows
    assert (row.proven, row.claimed) == (4.0, 2.5)


def test_strange_text_stays_text() -> None:
    nasty = "<b>x</b> | `y`\n=HYPERLINK(1)"
    board = build_board([record(public_data=nasty), failed(f"{nasty}\nsecond line")])
    markdown = to_markdown(board)
    assert "<b>" not in markdown
    table = [line for line in markdown.splitlines() if "| pate |" in line]
    assert len(table) == 1
    assert len(table[0].replace("\\|", "").split("|")) == len(COLUMNS) + 2
    (row,) = csv.DictReader(io.StringIO(to_csv(build_board([record(public_data="=1+1")]))))
    assert row["public_data"] == "'=1+1"


def test_csv_has_plain_numbers() -> None:
    board = build_board([record(accuracy=0.5, bypasses=("x",)), record(seed=3, method="other")])
    rows = list(csv.DictReader(io.StringIO(to_csv(board))))
    assert {row["proven"] for row in rows} == {"inf", "4"}
    assert float(rows[0]["accuracy"]) == pytest.approx(95)


def test_same_records_in_any_order_give_the_same_bytes() -> None:
    records = [record(seed=s, method=m, provenance=provenance()) for s in range(3) for m in ("a", "b")]
    assert to_markdown(build_board(records)) == to_markdown(build_board(records[::-1]))
    assert to_csv(build_board(records)) == to_csv(build_board(records[::-1]))


def test_no_records_is_said() -> None:
    assert "No records" in to_markdown(build_board([]))


def test_data_sets_that_most_papers_use_come_first() -> None:
    names = ["att-faces-a", "digits", "cifar10", "movie-review", "fmnist", "mnist", "a-new-one"]
    board = build_board([record(dataset=name) for name in names])
    wanted = ["mnist", "fmnist", "cifar10", "att-faces-a", "movie-review", "a-new-one", "digits"]
    assert [dataset for dataset, _ in board.tables()] == wanted
    assert [row.dataset for row in board.rows] == wanted
    assert to_markdown(board).index("## mnist,") < to_markdown(board).index("## att-faces-a,")


def test_a_done_cell_without_accuracy_is_named() -> None:
    whole = record()
    board = build_board([whole.model_copy(update={"utility": None}), whole.model_copy(update={"privacy": None})])
    assert board.rows == []
    assert [why for _, why in board.refused] == [
        "it is done, but states no accuracy",
        "it is done, but states no epsilon",
    ]
