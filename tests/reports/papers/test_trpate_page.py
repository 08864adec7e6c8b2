"""The paper's tables next to records: what is printed where, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from bench.core.types import Basis
from bench.privacy.accounting.claims import pate_closed_form
from bench.reports.leaderboard import build_board
from bench.reports.papers.trpate_page import TABLES, trpate_page
from bench.results.record import Queries, Record
from helpers.records import failed, record


def of(method: str, queries: int, accuracy: float, *, seed: int = 0, **changes: Any) -> Record:
    config = {"gamma": 0.05, **changes.pop("config", {})}
    return record(
        method=method, dataset="cifar10", accuracy=accuracy, config=config, seed=seed, key=f"{method}-{queries}-{seed}",
        queries=Queries(asked=queries, answered=queries, label_accuracy=0.8), proven=2.8934, **changes,
    )  # fmt: skip


def page_of(records: list[Record]) -> str:
    return trpate_page(build_board(records).rows)


def row(page: str, begins: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {begins} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_rows_stand_beside_the_papers() -> None:
    records = [
        of("trpate", 100, 0.70),
        of("trpate", 100, 0.72, seed=1),
        of("pate", 100, 0.40),
        record(method="nonprivate-transfer", dataset="cifar10", epsilon=None, accuracy=0.9, bypasses=("all of it",)),
        failed(method="trpate", dataset="cifar10"),
    ]
    page = page_of(records)
    cells = ["100", "5.8", "2.90", "42.24", "40.00 (1)", "71.37", "71.00 ± 1.41 (2)", "80.0"]
    assert row(page, "100") == cells
    assert row(page, "1000")[-2:] == ["–", "–"]
    assert "the paper's 92.34; here 90.00 (1)" in page
    assert "Table 4" not in page


def test_other_settings_do_not_mix_in() -> None:
    records = [of("trpate", 100, 0.7)]
    records += [
        of("trpate", 100, 0.1, seed=number, config=config, basis=basis)
        for number, (config, basis) in enumerate(
            [
                ({"gamma": 0.1}, Basis.CLAIMED),
                ({"weights": "random"}, Basis.CLAIMED),
                ({"weights": "source:mnist"}, Basis.CLAIMED),
                ({"source_fraction": 0.1}, Basis.CLAIMED),
                ({}, Basis.PROVEN),
            ],
            start=2,
        )
    ]
    assert row(page_of(records), "100")[6] == "70.00 (1)"


def test_sources_are_compared() -> None:
    records = [
        of("trpate", 100, 0.7, public_data="ImageNet through x; unlabelled images"),
        of("trpate", 100, 0.3, seed=1, config={"weights": "random"}, public_data="an untrained x; unlabelled images"),
    ]
    page = page_of(records)
    assert "| cifar10 | trpate | an untrained x | 100 | 30.00 (1) |" in page


def test_equal_proven_epsilon() -> None:
    """Rows of the board, not averages over configurations."""
    proven = {"basis": Basis.PROVEN, "epsilon": 1.0}
    records = [
        of("trpate", 40, 0.5, config={"teachers": 200, "backbone": "a"}, **proven),
        of("trpate", 400, 0.7, config={"teachers": 1000, "backbone": "a"}, **proven),
        of("dp-linear", 0, 0.8, config={"backbone": "a"}, **proven),
        of("dp-linear", 0, 0.1, config={"backbone": "b"}, **proven),
    ]
    lines = [line for line in page_of(records).splitlines() if line.startswith("| cifar10")]
    assert [[*line.split(" | ")[2:5], line.split(" | ")[-1]] for line in lines] == [
        ["dp-linear", "a", "–", "80.00 (1) |"],
        ["trpate", "a", "1000", "70.00 (1) |"],
        ["trpate", "a", "200", "50.00 (1) |"],
        ["dp-linear", "b", "–", "10.00 (1) |"],
    ]


def test_the_papers_preset_comes_first() -> None:
    records = [
        of("trpate", 100, 0.7, preset="paper"),
        *[of("trpate", 100, 0.2, seed=seed, config={"backbone": "other"}) for seed in range(3)],
    ]
    assert row(page_of(records), "100")[6] == "70.00 (1)"


def test_nothing_to_show() -> None:
    assert page_of([record()]) == ""


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.title)
def test_the_papers_epsilons_are_theorem_1(table: Any) -> None:
    """The numbers copied from the paper agree with its formula to the printed digits."""
    for queries, (epsilon, pate, trpate) in table.printed.items():
        assert pate_closed_form(0.05, queries, 1e-5).epsilon == pytest.approx(epsilon, abs=0.06)
        assert pate < trpate < 100
