"""PATE's table and figures: placeholders for students that were not run, and figures from the authors' votes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.core.errors import BenchError
from bench.data.datasets import load
from bench.privacy.accounting import pate
from bench.reports.papers.pate import PAPER, authors_votes, student_cell
from bench.reports.papers.spec import Material
from bench.reports.papers.tables import texts_of
from helpers.epsilons import MNIST, SVHN, needs_votes, votes_of
from helpers.records import record
from helpers.report_commands import material_of, record_of


def quick(epsilon: float, accuracy: float) -> Any:
    config = {"claim": "closed-form", "teachers": 250, "gamma": 0.02}
    return record(epsilon=epsilon, accuracy=accuracy, claimed=epsilon, config=config)


def table_4(material: Material) -> Any:
    (table,) = PAPER.tables
    return table.rows(material)


def rows(material: Material) -> dict[str, tuple[str, ...]]:
    return {row[0]: row for row in texts_of(table_4(material), material)}


def test_the_nearest_epsilon_stands_below_a_student_that_was_not_run() -> None:
    other = record(epsilon=2.05, config={"claim": "closed-form", "teachers": 100})
    material = material_of(PAPER, quick(1.0, 0.7), quick(3.0, 0.8), quick(10.0, 0.9), other)
    found = rows(material)
    assert [name for name in found if "here" in name] == [
        "MNIST, here at ε 3 claimed", "MNIST, here at ε 10 claimed",
    ]  # fmt: skip
    assert found["MNIST, here at ε 3 claimed"][4] == "3.00 [quick preset, no settings differ]"
    assert found["MNIST, here at ε 3 claimed"][9] == "80.00 (1 seed) [quick preset, no settings differ]"


def test_a_student_that_was_run_has_no_stand_in() -> None:
    (first, *_) = material_of(PAPER).printed(table="fig 4", system="PATE", measure="accuracy")
    material = material_of(PAPER, quick(1.0, 0.7), record_of(student_cell(first), 0.98))
    found = rows(material)
    assert [name for name in found if "here" in name] == ["MNIST, here at ε 1 claimed"]
    assert texts_of(table_4(material), material)[0][9].startswith("98.00 (1 seed)")


def test_without_records_there_is_no_stand_in() -> None:
    assert len(table_4(material_of(PAPER))) == 4


def test_every_query_has_some_gap() -> None:
    (figure,) = (figure for figure in PAPER.figures if figure.number == "3")
    (panel,) = figure.panels(material_of(PAPER))
    for series in panel.series:
        heights = [point.y for point in series.points]
        assert heights[0] == 100
        assert heights == sorted(heights, reverse=True)


@needs_votes
@pytest.mark.parametrize(("name", "path"), [("mnist", MNIST), ("svhn", SVHN)])
def test_the_gaps_are_those_of_the_authors_votes(name: str, path: Any) -> None:
    votes = np.sort(np.load(path, allow_pickle=False), axis=1)
    gaps = 100 * (votes[:, -1] - votes[:, -2]) / 250
    assert authors_votes()[name]["gaps"] == np.histogram(gaps, bins=np.arange(0, 101, 10))[0].tolist()
    assert authors_votes()[name]["mean_gap"] == pytest.approx(gaps.mean(), abs=0.005)


@needs_votes
def test_the_epsilons_are_those_of_the_authors_votes() -> None:
    for queries, epsilon in authors_votes()["mnist"]["epsilons"].items():
        assert pate.lnmax_epsilon(votes_of(f"mnist-{queries}"), 0.05, 1e-5)[0] == pytest.approx(epsilon, abs=5e-7)


@needs_votes
def test_the_answers_are_those_of_the_authors_votes() -> None:
    """Compute the exact probability that the true class's noisy count is the largest, averaged over quantiles of its
    noise. At the paper's noise it equals the share that the paper prints.
    """
    try:
        labels = np.asarray(load("mnist", fetch=False).test.labels)[:9000]
    except BenchError as error:
        pytest.skip(f"MNIST is not here: {error}")
    votes = np.load(MNIST, allow_pickle=False)
    true = votes[np.arange(9000), labels]
    rest = votes[np.arange(10)[None] != labels[:, None]].reshape(9000, 9)
    quantiles = (np.arange(401) + 0.5) / 401
    for gamma, share in authors_votes()["mnist"]["right"].items():
        noise = -np.sign(quantiles - 0.5) * np.log1p(-2 * np.abs(quantiles - 0.5)) / gamma
        chance = np.ones((9000, 401))
        for count in rest.T:
            above = (true - count)[:, None] + noise
            tail = 0.5 * np.exp(-gamma * np.abs(above))
            chance *= np.where(above < 0, tail, 1 - tail)
        assert 100 * chance.mean() == pytest.approx(share, abs=0.01)
    (printed,) = material_of(PAPER).printed(table="text", dataset="mnist", measure="label accuracy")
    assert authors_votes()["mnist"]["right"][0.05] == pytest.approx(printed.value, abs=0.03)
