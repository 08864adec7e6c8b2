"""TrPATE's tables and figures: which records fill which cells, what is kept apart, and that printed commands run."""

from __future__ import annotations

from typing import Any

import pytest

from bench.core.rows import Change
from bench.privacy.accounting.claims import advanced_largest_count
from bench.reports.papers.evidence import WantedCell
from bench.reports.papers.figures import POINT_COLUMNS, point_rows
from bench.reports.papers.spec import FigureSpec, Material, TableSpec, Theirs, choose, entries_of
from bench.reports.papers.tables import texts_of
from bench.reports.papers.trpate_figures import DELTA, GAMMAS, asked_for, plain_pate, transferred
from bench.reports.papers.trpate_tables import PAPER, QUERIES, QUERIES_2
from bench.results.record import Queries, Record
from helpers.records import asked, record
from helpers.report_commands import check_records, check_settings, material_of, planned, record_of


def run(wanted: WantedCell, accuracy: float, labels: float = 0.8, **changes: Any) -> Record:
    made = record_of(wanted, accuracy)
    return made.model_copy(update={"queries": Queries(asked=1000, answered=1000, label_accuracy=labels), **changes})


def table(number: str, material: Material) -> list[dict[str, str]]:
    spec = choose(PAPER.tables, number, "table", "trpate")
    assert isinstance(spec, TableSpec)
    rows = texts_of(list(spec.rows(material)), material)
    return [dict(zip(spec.columns, row, strict=True)) for row in rows]


def points(number: str, material: Material) -> list[dict[str, Any]]:
    spec = choose(PAPER.figures, number, "figure", "trpate")
    assert isinstance(spec, FigureSpec)
    return [dict(zip(POINT_COLUMNS, row, strict=True)) for row in point_rows(list(spec.panels(material)), material)]


@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_epsilon_asked_for_pays_for_the_queries_and_no_more(gamma: float) -> None:
    for queries in {*QUERIES, *QUERIES_2} if gamma in (0.05, 0.1) else {1000}:
        assert advanced_largest_count(2 * gamma, asked_for(gamma, queries), DELTA) == queries


def test_the_printed_command_asks_so_many_queries() -> None:
    """The command's epsilon has six digits."""
    assert [planned(plain_pate("cifar10", gamma, 1000)).config.queries for gamma in GAMMAS] == [1000] * len(GAMMAS)


@pytest.mark.parametrize("number", ["2", "3", "4", "5"])
def test_every_printed_number_stands_in_its_table(number: str) -> None:
    material = material_of(PAPER)
    spec = choose(PAPER.tables, number, "table", "trpate")
    assert isinstance(spec, TableSpec)
    shown = {e.number for e in entries_of(spec.rows(material)) if isinstance(e, Theirs)}
    wanted = {n for n in material.printed(table=number) if n.column != "Baseline"}
    assert len(wanted) >= 3 * len(QUERIES)
    if number == "5":  # a baseline without a similar method here
        assert wanted <= shown
        return
    (baseline,) = {n.value for n in material.printed(table=number, column="Baseline")}
    assert wanted <= shown
    assert baseline in {n.value for n in shown if n is not None}


def test_splits_stand_beside_the_papers() -> None:
    made = run(transferred("trpate", "movie-review", 0.05, 1000), 0.66)
    seeds = [asked(made.model_copy(update={"private_records": 6400, "public_records": 1000, "key": f"k{s}"}), seed=s)
             for s in (0, 1)]  # fmt: skip
    rows = {row["data set"]: row for row in table("1", material_of(PAPER, *seeds))}
    row = rows["Movie Review"]
    assert (row["private, printed"], row["private here"], row["test, printed"]) == ("8000", "6400", "1662")
    assert rows["STL-10"]["public here"] == "not run"


def test_ours_stands_beside_theirs() -> None:
    made = run(transferred("trpate", "cifar10", 0.05, 1000), 0.81, 0.83)
    other = run(plain_pate("cifar10", 0.05, 1000), 0.4)
    first, *_ = table("2", material_of(PAPER, made, other))
    assert (first["PATE, printed"], first["PATE here"]) == ("47.03", "40.00 (1 seed) [quick preset, 7 settings differ]")
    assert (first["TrPATE, printed"], first["TrPATE here"]) == ("82.64", "81.00 (1 seed)")
    assert first["labels right (%)"] == "83.0"
    assert first["ε, printed"] == "25.20"


@pytest.mark.parametrize(
    ("settings", "reduced"),
    [
        ({"weights": "random"}, Change.of("weights", "auto", "random")),
        ({"source_fraction": 0.1}, Change.of("source_fraction", 1.0, 0.1)),
        ({"teachers": 1000}, Change.of("teachers", 200, 1000)),
        ({"backbone": "resnet10t"}, Change.of("backbone", "resnet50_keras", "resnet10t")),
    ],
)
def test_other_sources_and_ensembles_do_not_mix_in(settings: dict[str, Any], reduced: Change) -> None:
    wanted = transferred("trpate", "cifar10", 0.05, 1000)
    made = run(wanted, 0.8)
    other = made.model_copy(update={"config": {**made.config, **settings}, "reduced": [reduced], "key": "other"})
    assert material_of(PAPER, other).find(wanted) is None
    found = material_of(PAPER, made, other).find(wanted)
    assert found is not None
    assert found.records == (made,)


def test_arithmetic_in_half_precision_is_the_same_cell() -> None:
    wanted = transferred("trpate", "cifar10", 0.05, 1000)
    made = run(wanted, 0.8)
    half = made.model_copy(update={"reduced": [Change.of("precision", "float32", "bfloat16")]})
    assert material_of(PAPER, half).find(wanted) is not None


def test_a_part_of_the_records_is_no_baseline() -> None:
    part = record_of(WantedCell("nonprivate", "mnist", settings=(("records", 500),), preset="quick"), 0.9)
    material = material_of(PAPER, part)
    assert material.find(WantedCell("nonprivate", "mnist", preset="quick")) is None
    there = {p["x"]: p["y"] for p in points("1", material) if p["series"] == "MNIST, small net" and p["y"] is not None}
    assert there == {500.0: 90.0}


def test_curves_of_sizes_hold_what_is_printed() -> None:
    found = points("5", material_of(PAPER))
    assert [(p["x"], p["y"]) for p in found if p["series"] == "from scratch, VGG13, printed"] == [
        (500.0, 42.8), (50000.0, 94.13),
    ]  # fmt: skip
    assert [(p["x"], p["y"]) for p in found if p["series"] == "transferred, VGG13, printed"] == [(500.0, 83.0)]


def test_labels_by_the_scale_of_the_noise() -> None:
    material = material_of(PAPER, run(transferred("trpate", "cifar10", 0.1, 1000), 0.7, 0.84))
    labels = [p for p in points("7", material) if p["panel"] == "1,000 labels" and p["series"] == "TrPATE"]
    assert {p["x"]: p["y"] for p in labels if p["y"] is not None} == {10.0: 84.0}
    assert len(labels) == len(GAMMAS)


def test_what_no_record_holds_has_no_command() -> None:
    spec = choose(PAPER.figures, "4", "figure", "trpate")
    assert isinstance(spec, FigureSpec)
    there = [record_of(WantedCell(name, "cifar10", preset="quick")) for name in ("nonprivate", "nonprivate-transfer")]
    material = material_of(PAPER, *there)
    missing = [material.missing(entry) for entry in entries_of(spec.panels(material))]
    assert len(missing) == 2
    assert all(found is not None and not found.commands and "t-SNE" in found.why for found in missing)


def test_captions_hold_without_records_and_with_them() -> None:
    made = [run(transferred("trpate", "cifar10", 0.05, 1000), 0.81), record(method="pate", dataset="cifar10")]
    for material in (material_of(PAPER), material_of(PAPER, *made)):
        for spec in (*PAPER.tables, *PAPER.figures):
            assert all(isinstance(sentence, str) and sentence for sentence in spec.shows(material)), spec.number
    told = " ".join(choose(PAPER.tables, "2", "table", "trpate").shows(material_of(PAPER, *made)))
    assert "Our TrPATE is -1.64 to -1.64 points" in told


def test_commands_name_real_settings() -> None:
    assert check_settings(PAPER) > 80


@pytest.mark.parametrize(
    "wanted",
    [
        transferred("trpate", "cifar10", 0.2, 1000),
        transferred("trpate-bayes", "movie-review", 0.1, 500),
        transferred("pate-bayes", "movie-review-sst", 0.05, 100),
        plain_pate("movie-review", 0.05, 100, teachers=80, teacher="text_cnn", student="text_cnn"),
        WantedCell("nonprivate-transfer", "cifar10", settings=(("records", 500),), preset="paper"),
    ],
    ids=lambda wanted: wanted.label,
)
def test_what_a_command_makes_answers_its_cell(wanted: WantedCell) -> None:
    made = record_of(wanted)
    found = material_of(PAPER, made).find(wanted)
    assert found is not None
    assert found.records == (made,)


@pytest.mark.slow
def test_what_all_commands_make_answers_their_cells_alone() -> None:
    check_records(PAPER)
