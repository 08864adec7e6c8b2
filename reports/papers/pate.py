"""PATE's table and figures: Papernot et al., ICLR 2017."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

from bench.privacy.accounting.claims import advanced_largest_count
from bench.reports.papers.evidence import Usual, WantedCell, cell
from bench.reports.papers.spec import Material, Ours, Panel, Paper, Plotted, TableRow, Theirs, curve, curves
from bench.reports.papers.texts import Texts
from bench.reports.papers.vote_accounting import queries_panel
from bench.reports.reported.numbers import Reported

NAMES = {"mnist": "MNIST", "svhn": "SVHN"}
TEACHERS = (10, 100, 250)
GAMMAS = (0.005, 0.01, 0.02, 0.05, 0.1)
"""Our choice: at epsilon 10, larger values allow too few queries to estimate an accuracy."""
SCALE = 20.0
"""Scale of the Laplace noise in section 4.1."""
TEXTS = Texts("pate")
USUAL = {
    "teachers": Usual(250),
    "claim": Usual("data-dependent", "closed-form"),
    "gamma": Usual(0.05, 0.02, calibrated=True),
}


def student_cell(number: Reported) -> WantedCell:
    """Return the cell of a printed student with the paper's epsilon, delta, noise and claim."""
    settings = (("claim", "data-dependent"), ("gamma", 1 / SCALE))
    delta = number.delta if number.delta != 1e-5 else None
    return WantedCell("pate", number.dataset, number.epsilon, settings=settings, delta=delta)


def _students(material: Material) -> list[Reported]:
    return material.printed(table="fig 4", system="PATE", measure="accuracy")


def _table_4(material: Material) -> Sequence[TableRow]:
    rows = []
    for number in _students(material):
        wanted, baseline = student_cell(number), cell("nonprivate", number.dataset)
        queries = material.one(table="fig 4", row=number.row, system="PATE", measure="queries")
        bare = material.one(table="fig 4", row=number.row, system="Baseline", measure="accuracy")
        rows.append(TableRow((
            NAMES[number.dataset], Theirs(queries, digits=0), Ours(wanted, "queries", digits=0),
            Theirs(number, "epsilon"), Ours(wanted, "claimed"), Ours(wanted, "proven"), Theirs(bare),
            Ours(baseline, beside=bare), Theirs(number), Ours(wanted, beside=number), Theirs(number, "verdicts"),
        )))  # fmt: skip
        near = material.evidence.nearest(replace(wanted, settings=(), delta=None), material.plain)
        if material.find(wanted) is None and near is not None:
            head = f"{NAMES[number.dataset]}, here at ε {near.epsilon:g} claimed"
            rows.append(TableRow((
                head, "", Ours(near, "queries", digits=0), "", Ours(near, "claimed"), Ours(near, "proven"), "", "", "",
                Ours(near), "",
            )))  # fmt: skip
    return rows


@functools.cache
def authors_votes() -> Any:
    """Return what was computed from the authors' published votes, by data set."""
    return yaml.safe_load((Path(__file__).parent / "votes.yaml").read_text(encoding="utf-8"))


def _figure_2(material: Material) -> Sequence[Panel]:
    panels = []
    for dataset, name in NAMES.items():
        ours = {
            f"{n} teachers": [(g, cell("pate", dataset, 10.0, gamma=g, teachers=n)) for g in GAMMAS] for n in TEACHERS
        }
        printed = material.one(table="text", dataset=dataset, system="PATE", measure="label accuracy")
        series = [*curves(ours, measure="labels"), curve("250 teachers, printed", 2, [(1 / SCALE, printed)], "theirs")]
        if right := authors_votes()[dataset].get("right", {}):
            series.append(curve("250 teachers, the authors' votes", 2, right.items(), "formula"))
        panels.append(
            Panel(name, "γ of one query (noise 1/γ)", "answers right (%)", tuple(series), x_scale="log",
                  x_ticks=GAMMAS, y_limits=(0, 105))
        )  # fmt: skip
    return panels


def _counts(material: Material) -> Mapping[str, str]:
    most, least = (advanced_largest_count(2 * gamma, 10.0, 1e-5) for gamma in (GAMMAS[0], GAMMAS[-1]))
    return {"most": f"{most:,} at γ {GAMMAS[0]:g}", "least": f"{least} at γ {GAMMAS[-1]:g}"}


def _figure_3(material: Material) -> Sequence[Panel]:
    series = []
    for slot, (dataset, name) in enumerate(NAMES.items()):
        gaps = authors_votes()[dataset]["gaps"]
        # Sum from the last bin down to count the queries whose gap is at least a bin's lower end.
        above = [*accumulate(reversed(gaps))][::-1]
        points = [(10.0 * place, 100 * many / above[0]) for place, many in enumerate(above)]
        series.append(curve(name, slot, points, "formula"))
    return [Panel("250 teachers", "gap of the two largest votes, at least (% of teachers)", "queries (%)",
                  tuple(series), y_limits=(0, 105))]  # fmt: skip


def _gaps(material: Material) -> Mapping[str, str]:
    votes = authors_votes()
    return {"gaps": " and ".join(f"{votes[dataset]['mean_gap']:g}% on {name}" for dataset, name in NAMES.items())}


def _figure_queries(material: Material) -> Sequence[Panel]:
    costs = queries_panel((10, 20, 50, 100, 200, 500, 1000, 2000, 3000), scale=SCALE)
    theirs: list[tuple[float, Plotted]] = []
    ours: list[tuple[float, Plotted]] = []
    for number in _students(material):
        queries = material.one(table="fig 4", row=number.row, system="PATE", measure="queries")
        if queries is not None and number.dataset == "mnist":
            theirs.append((queries.value, Theirs(number, "epsilon")))
            ours.append((queries.value, student_cell(number)))
    series = (
        *costs.series,
        curve("on the votes, printed (MNIST)", 3, theirs, "theirs"),
        curve("on the votes, here (MNIST)", 3, ours, measure="claimed"),
        curve("proven of our runs (MNIST)", 4, ours, measure="proven"),
        curve("on the authors' votes, at the noise drawn", 5, authors_votes()["mnist"]["epsilons"].items(), "formula"),
    )
    return [Panel("noise scale 20", costs.x_label, "ε", series, x_scale="log", y_scale="log")]


PAPER = Paper(
    "pate",
    "PATE (Papernot et al., ICLR 2017)",
    tables=(TEXTS.table("4", _table_4),),
    figures=(
        TEXTS.figure("2", _figure_2, _counts),
        TEXTS.figure("3", _figure_3, _gaps),
        TEXTS.figure("queries", _figure_queries, height=2.6),
    ),
    plain={"pate": USUAL},
)
