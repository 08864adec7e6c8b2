"""DGD's tables and figures: Ge et al., IEEE TIP 2023."""

from __future__ import annotations

from collections.abc import Sequence

from reports.evidence import Cell, cell
from reports.papers import (
    FigureSpec,
    Material,
    Ours,
    Panel,
    Paper,
    Point,
    Series,
    TableRow,
    TableSpec,
    Theirs,
)

BUDGETS = (10.0, 1.0)


def _table_1(material: Material) -> Sequence[TableRow]:
    rows = []
    for epsilon in BUDGETS:
        printed = material.printed(table="I", dataset="mnist", measure="accuracy", epsilon=epsilon)
        for number, mnist in enumerate(printed):
            fmnist = material.one(table="I", dataset="fmnist", measure="accuracy", epsilon=epsilon, system=mnist.system)
            row = (
                mnist.system, f"{epsilon:g}", Theirs(mnist, digits=1), Theirs(fmnist, digits=1), "–",
                Theirs(mnist, "verdict"),
            )  # fmt: skip
            rows.append(TableRow(row, rule=number == 0))
        for method, label in (("dgd", "DGD here"), ("dgd-plus", "DGD+ here")):
            rows.append(_here(material, label, method, epsilon))
        rows.append(_here(material, "DGD-sound here", "dgd-sound", epsilon))
    return rows


def _here(material: Material, label: str, method: str, epsilon: float) -> TableRow:
    from bench.interface import Basis

    basis = Basis.PROVEN if method == "dgd-sound" else Basis.CLAIMED
    mnist, fmnist = (Cell(method, dataset, epsilon, basis) for dataset in ("mnist", "fmnist"))
    system = {"dgd": "DGD"}.get(method, "")
    beside = [
        material.one(table="I", dataset=c.dataset, measure="accuracy", epsilon=epsilon, system=system)
        for c in (mnist, fmnist)
    ]
    verdict = "sound" if method == "dgd-sound" else "proven is infinite"
    return TableRow(
        (
            label,
            f"{epsilon:g}",
            Ours(mnist, beside=beside[0]),
            Ours(fmnist, beside=beside[1]),
            Ours(mnist, "proven"),
            verdict,
        )
    )


def _teachers(material: Material) -> Sequence[Panel]:
    numbers = (50, 100, 150, 200, 250, 300)
    ours = [Point(float(n), Ours(cell("dgd", "mnist", 10.0, teachers=n), "labels")) for n in numbers]
    budgets = (1.0, 2.0, 4.0, 8.0, 10.0)
    student = [
        Series(f"{name} ({dataset})", tuple(Point(e, Ours(Cell(method, dataset, e))) for e in budgets), slot)
        for slot, (method, name, dataset) in enumerate(
            [
                ("dgd", "DGD", "mnist"),
                ("dgd-plus", "DGD+", "mnist"),
                ("dgd", "DGD", "fmnist"),
                ("dgd-plus", "DGD+", "fmnist"),
            ]
        )
    ]
    return [
        Panel("ensemble", "teachers", "labels right (%)", (Series("mnist", tuple(ours), 0),)),
        Panel("student", "claimed ε", "accuracy (%)", tuple(student)),
    ]


PAPER = Paper(
    "dgd",
    "DGD (Ge et al., IEEE TIP 2023)",
    tables=(
        TableSpec(
            "I",
            "Six explicit approaches and DGD, test accuracy in % at delta 1e-5.",
            "DGD keeps most of the baseline's accuracy at both epsilons, and more than all six others.",
            ("approach", "ε", "MNIST", "Fashion-MNIST", "proven ε", "verdict"),
            _table_1,
        ),
    ),
    figures=(
        FigureSpec(
            "8",
            "Teachers, budgets, noise and queries.",
            "x",
            _teachers,
        ),
    ),
    plain={"dgd": {"images": "data-free", "vae": True}, "dgd-plus": {"images": "data-free", "vae": True}},
)
