"""DPSD's tables and figures: which records fill which cells, what is kept apart, and that printed commands run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bench.core.rows import Change
from bench.core.types import Basis, PrivacyUnit
from bench.reports.papers.dgd_tables import PAPER as DGD
from bench.reports.papers.dpsd_ablations import why_not
from bench.reports.papers.dpsd_figures import EPSILONS, FAR
from bench.reports.papers.dpsd_tables import PAPER, TABLE_1
from bench.reports.papers.evidence import WantedCell, cell, proven_cell
from bench.reports.papers.figures import POINT_COLUMNS, point_rows
from bench.reports.papers.spec import FigureSpec, Material, Panel, TableSpec, Theirs, choose, entries_of
from bench.reports.papers.tables import texts_of
from bench.results.record import Accountant, Record
from helpers.records import collapsed, record
from helpers.report_commands import check_records, check_settings, material_of, record_of

QUICK = [Change.of("beta", None, 0.0001), Change.of("iterations", 200, 300)]
CONFIG: dict[str, Any] = {
    "beta": 1e-4, "iterations": 300, "random_share": 0.75, "teacher": "small_cnn", "k": 3, "bounding": "normalise",
}  # fmt: skip


def dpsd(epsilon: float = 10.0, accuracy: float = 0.9, *, reduced: tuple[Change, ...] = (), **changes: Any) -> Record:
    config = {**CONFIG, **changes.pop("config", {})}
    return record(
        method="dpsd", epsilon=epsilon, accuracy=accuracy, claimed=epsilon, proven=1e7, config=config,
        reduced=[*QUICK, *reduced], key=f"dpsd-{epsilon}-{sorted(config.items())}", **changes,
    )  # fmt: skip


def table(number: str, material: Material) -> list[dict[str, str]]:
    spec = choose(PAPER.tables, number, "table", "dpsd")
    assert isinstance(spec, TableSpec)
    rows = texts_of(list(spec.rows(material)), material)
    return [dict(zip(spec.columns, row, strict=True)) for row in rows]


def figure(number: str, material: Material) -> list[Any]:
    spec = choose(PAPER.figures, number, "figure", "dpsd")
    assert isinstance(spec, FigureSpec)
    return list(spec.panels(material))


def points(number: str, material: Material) -> list[dict[str, Any]]:
    return [dict(zip(POINT_COLUMNS, row, strict=True)) for row in point_rows(figure(number, material), material)]


@pytest.mark.parametrize("number", ["I", "II", "III", "V", "VI"])
def test_every_printed_accuracy_stands_in_its_table(number: str) -> None:
    material = material_of(PAPER)
    spec = choose(PAPER.tables, number, "table", "dpsd")
    assert isinstance(spec, TableSpec)
    shown = {e.number for e in entries_of(spec.rows(material)) if isinstance(e, Theirs) and e.number is not None}
    wanted = {number_ for number_ in material.printed(table=spec.number) if number_.measure == "accuracy"}
    assert wanted
    assert wanted <= shown


def test_printed_labels_whose_column_is_lost_stand_apart() -> None:
    rows = {row["approach"]: row for row in table("IV", material_of(PAPER))}
    assert rows["ClusterRR [22]"]["column not known"] == "88.00, 68.57"
    assert rows["ClusterRR [22]"]["MNIST, ε 1"] == "90.00"
    assert rows["Our DPSD"]["CelebA-G, ε 8"] == "74.67"


def test_ours_stands_below_with_what_is_proven() -> None:
    sound = record(method="dpsd-sound", basis=Basis.PROVEN, accuracy=0.8, proven=10.0, config={}, preset="paper")
    rows = {row["approach"]: row for row in table("I", material_of(PAPER, dpsd(), dpsd(1.0, 0.4), sound))}
    assert rows["Our DPSD"]["MNIST, ε 10"] == "97.85"
    assert (
        rows["DPSD here, ε claimed"]["MNIST, ε 10"]
        == "90.00 (1 seed) [quick preset, 2 settings differ (beta, iterations)]"
    )
    assert (
        rows["DPSD here, ε claimed"]["MNIST, ε 1"]
        == "40.00 (1 seed) [quick preset, 2 settings differ (beta, iterations)]"
    )
    assert rows["its proven ε"]["MNIST, ε 10"] == "1.0e7 [quick preset, 2 settings differ (beta, iterations)]"
    assert rows["DPSD-sound here, ε proven"]["MNIST, ε 10"] == "80.00 (1 seed)"
    assert rows["DPSD-sound here, ε proven"]["MNIST, ε 1"] == "not run"
    assert rows["DPSD here, ε claimed"]["CelebA-H, ε 1"] == "not run"


def test_seeds_that_collapsed_and_corrected_forms_are_told() -> None:
    wgan = [record(method="gs-wgan", accuracy=0.3), collapsed(method="gs-wgan", seed=1)]
    dpdfd = [
        record(method=name, basis=Basis.PROVEN, accuracy=accuracy, proven=10.0, preset="paper")
        for name, accuracy in (("dpdfd", 0.1), ("dpsd-sound", 0.8))
    ]
    rows = {row["approach"]: row for row in table("I", material_of(PAPER, *wgan, *dpdfd))}
    assert rows["GS-WGAN here, ε claimed"]["MNIST, ε 10"].startswith("30.00 (1 seed, 1 collapsed)")
    assert rows["DPDFD here, ε proven"]["MNIST, ε 10"].startswith("10.00 (1 seed)")
    assert rows["DPDFD corrected (dpsd-sound) here, ε proven"]["MNIST, ε 10"].startswith("80.00 (1 seed)")
    assert "P3GM here, ε claimed" not in rows


def test_another_papers_system_stands_beside_its_printed_epsilon_where_it_ran() -> None:
    assert not any("GM-DP here" in row["approach"] for row in table("III", material_of(PAPER)))
    other = record(method="gm-dp", epsilon=3.0, accuracy=0.5, claimed=3.0, config={})
    ran = record(method="gm-dp", epsilon=1.0, accuracy=0.9, claimed=1.0, proven=0.7, config={}, preset="paper")
    rows = {row["approach"]: row for row in table("III", material_of(PAPER, other, ran))}
    assert (rows["GM-DP here, ε claimed"]["MNIST: ε"], rows["GM-DP here, ε claimed"]["MNIST"]) == (
        "1.0",
        "90.00 (1 seed)",
    )
    assert rows["GM-DP here, ε claimed"]["CIFAR10"] == "not run"
    dgd = choose(DGD.tables, "II", "table", "dgd")
    assert isinstance(dgd, TableSpec)
    zcdp = record(
        method="zcdp",
        dataset="cifar10",
        epsilon=6.78,
        accuracy=0.4,
        claimed=6.78,
        proven=9.0,
        config={},
        preset="paper",
    )
    material = material_of(DGD, zcdp)
    lines = {row[0]: row for row in texts_of(list(dgd.rows(material)), material)}
    assert lines["zCDP here, ε claimed"][1:] == ("6.78 (claimed)", "40.00 (1 seed)", "9.00", "proven > claimed")


def test_no_error_bar_of_figure_3_is_cut() -> None:
    (panel,) = figure("3", material_of(PAPER))
    assert panel.x_limits[0] < min(FAR) < max(FAR) < panel.x_limits[1]
    assert panel.y_limits is None


def test_the_inception_score_says_what_it_is() -> None:
    (score, *_) = figure("8", material_of(PAPER))
    assert score.y_label == "score - 1 ([IS] in millions)"
    # 10^6 times (score - 1), in millions.
    assert {point.y.scale for series in score.series for point in series.points} == {1e-6}
    assert score.y_limits is None


def test_an_ablation_is_no_plain_run() -> None:
    changed = dpsd(accuracy=0.1, config={"beta": 1e-3})
    assert material_of(PAPER, changed).find(cell("dpsd", "mnist", 10.0)) is None
    clipped = dpsd(accuracy=0.2, config={"bounding": "clip"}, reduced=(Change.of("bounding", "normalise", "clip"),))
    assert material_of(PAPER, clipped).find(cell("dpsd", "mnist", 10.0)) is None
    plain = dpsd()
    found = material_of(PAPER, changed, clipped, plain).find(cell("dpsd", "mnist", 10.0, beta=1e-4))
    assert found is not None
    assert found.records == (plain,)


def test_the_papers_own_beta_is_plain_at_any_epsilon() -> None:
    for epsilon, beta in ((1.0, 1e-3), (10.0, 5e-3)):
        run = record(method="dpsd", epsilon=epsilon, config={"beta": beta}, preset="paper")
        assert material_of(PAPER, run).find(cell("dpsd", "mnist", epsilon)) is not None


def test_labels_of_queries_have_a_unit_of_their_own_and_tell_of_the_record() -> None:
    run = record_of(cell("dpsd-label", "mnist", 1.0), accuracy=0.35)
    level = Accountant(name="pure", epsilon=11904.0, sound=True, data_dependent=False, releasable=True)
    assert run.privacy is not None
    privacy = run.privacy.model_copy(update={"unit": PrivacyUnit.QUERY_LABEL, "record_level": level})
    rows = table("IV", material_of(PAPER, run.model_copy(update={"privacy": privacy})))
    by_name = {row["approach"]: row for row in rows}
    assert (
        by_name["DPSD(L) here, ε of a query's label"]["MNIST, ε 1"]
        == "35.00 (1 seed) [quick preset, 8 settings differ]"
    )
    assert by_name["ε of a training record there"]["MNIST, ε 1"] == "11904.00"
    assert by_name["ε of a training record there"]["unit"] == "record"
    assert {row["unit"] for row in rows} == {"label", "query-label", "record"}


def test_the_right_half_of_figure_9_stands_at_what_is_proven() -> None:
    material = material_of(PAPER, *[dpsd(epsilon, 0.5) for epsilon in EPSILONS])
    left, right = (
        [p for p in points("9", material) if p["panel"] == f"MNIST, {title}" and p["series"] == "DPSD"]
        for title in ("by what is claimed", "by what is proven")
    )
    assert [p["x"] for p in left] == list(EPSILONS)
    assert [p["x"] for p in right] == [1e7] * len(EPSILONS)
    assert [p["y"] for p in right] == [50.0] * len(EPSILONS)
    printed = [p for p in points("9", material) if p["series"] == "DPSD, printed" and p["panel"].startswith("MNIST")]
    assert [(p["x"], p["y"]) for p in printed] == [(0.1, 29.19), (1.0, 96.03), (10.0, 97.85)]


def test_accounting_needs_no_run() -> None:
    (curve,) = [
        series
        for panel in figure("5", material_of(PAPER))
        if isinstance(panel, Panel)
        for series in panel.series
        if series.whose == "formula"
    ]
    costs = {float(str(point.x)): point.y for point in curve.points}
    assert costs[1e-4] == pytest.approx(1.8e7, rel=0.1)
    assert all(isinstance(cost, float) and cost > 1000 for cost in costs.values())
    assert "28.84" in why_not()


def test_every_teacher_of_figure_4_has_a_command() -> None:
    material = material_of(PAPER)
    every = {material.missing(entry) for entry in entries_of(figure("4", material))} - {None}
    assert len(every) == 9 * len({10.0, 5.0, 1.0}) * 2
    assert all(one is not None and one.commands for one in every)


def test_captions_hold_without_records_and_with_them() -> None:
    for material in (material_of(PAPER), material_of(PAPER, dpsd(), dpsd(1.0, 0.4))):
        for spec in (*PAPER.tables, *PAPER.figures):
            sentences = spec.shows(material)
            assert all(isinstance(sentence, str) and sentence for sentence in sentences), spec.number
    told = " ".join(choose(PAPER.tables, "I", "table", "dpsd").shows(material_of(PAPER, dpsd())))
    assert "MNIST, ε 10: DPSD has 90.00 at claimed 10.00, proven 1.0e7, audited –" in told
    assert "changed places" in told


@pytest.mark.slow
def test_commands_name_real_settings() -> None:
    assert check_settings(PAPER) > 100


@pytest.mark.parametrize(
    "wanted",
    [
        cell("dpsd", "mnist", 1.0),
        cell("dpsd", "fmnist", 10.0, sigma=100.0, calibrate="printed"),
        cell("dpsd-label", "mnist", 10.0, amount=5000, iterations=196),
        cell("fed-dpsd", "cifar10", 10.0),
        proven_cell("dpsd-sound", "mnist", 1.0),
        WantedCell(
            "dpsd", "imagenet", 1.0, settings=(("teacher", "resnet50"), ("student", "resnet34")), preset="paper"
        ),
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


def test_columns_are_finite_epsilons() -> None:
    assert all(epsilon is not None and math.isfinite(epsilon) for _, epsilon in TABLE_1)
