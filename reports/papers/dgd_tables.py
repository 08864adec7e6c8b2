"""DGD's tables and figures: Ge et al., IEEE TIP 2023."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.core.margins import covered
from bench.core.types import Basis
from bench.privacy.accounting.claims import DGD_BYPASS
from bench.reports.papers.dgd_figures import FIGURES, TEXTS
from bench.reports.papers.evidence import Usual, WantedCell, cell, elsewhere, proven_cell
from bench.reports.papers.pate import USUAL
from bench.reports.papers.spec import Entry, Material, Ours, Paper, TableRow, Theirs
from bench.reports.reported.numbers import Reported

BUDGETS = (10.0, 1.0)


def _holds(material: Material, wanted: WantedCell) -> str:
    found = material.find(wanted)
    if found is None:
        return "–"
    if found.row.proven == float("inf"):
        return "private data bypasses the mechanism" if found.row.claimed != float("inf") else "no privacy"
    return "sound" if covered(found.row.proven, found.row.claimed) else "proven > claimed"


def _table_1(material: Material) -> Sequence[TableRow]:
    def printed(**wanted: object) -> Reported | None:
        return material.one(table="I", measure="accuracy", **wanted)

    datasets = ("mnist", "fmnist")
    base = [(cell("nonprivate", d), printed(system="Baseline", dataset=d)) for d in datasets]
    rows = [
        TableRow(("baseline, printed", "∞", *(Theirs(n, digits=1) for _, n in base), "–", "no privacy")),
        TableRow(
            ("baseline, here", "∞", *(Ours(c, beside=n) for c, n in base), Ours(base[0][0], "proven"), "no privacy")
        ),
    ]
    for epsilon in BUDGETS:
        systems = material.printed(table="I", dataset="mnist", measure="accuracy", epsilon=epsilon)
        for place, mnist in enumerate(systems):
            fmnist = printed(dataset="fmnist", epsilon=epsilon, system=mnist.system)
            numbers = (Theirs(mnist, digits=1), Theirs(fmnist, digits=1))
            head = (f"{mnist.system}, printed", f"{epsilon:g}")
            rows.append(TableRow((*head, *numbers, "–", Theirs(mnist, "verdicts")), rule=place == 0))
        for mnist in systems:
            for label, method, basis in elsewhere(mnist):
                cells = [WantedCell(method, dataset, epsilon, basis) for dataset in datasets]
                if any(map(material.find, cells)):
                    ours = [Ours(c) for c in cells]
                    rows.append(
                        TableRow((label, f"{epsilon:g}", *ours, Ours(cells[0], "proven"), _holds(material, cells[0])))
                    )
        for method, name in (("dgd", "DGD"), ("dgd-plus", "DGD+"), ("dgd-sound", "DGD-sound (ours)")):
            basis = Basis.PROVEN if method == "dgd-sound" else Basis.CLAIMED
            cells = [WantedCell(method, dataset, epsilon, basis) for dataset in datasets]
            # Compare only DGD with the printed row.
            system = "DGD" if method == "dgd" else ""
            ours = [Ours(c, beside=printed(dataset=c.dataset, epsilon=epsilon, system=system)) for c in cells]
            head = (f"{name}, here", f"{epsilon:g} ({basis.value})")
            rows.append(TableRow((*head, *ours, Ours(cells[0], "proven"), _holds(material, cells[0]))))
    return rows


def _table_2(material: Material) -> Sequence[TableRow]:
    rows = [
        TableRow((f"{n.system}, printed", Theirs(n, "epsilon"), Theirs(n, digits=1), "–", Theirs(n, "verdicts")))
        for n in material.printed(table="II", dataset="cifar10", measure="accuracy")
    ]
    for theirs in material.printed(table="II", dataset="cifar10", measure="accuracy"):
        for label, method, basis in elsewhere(theirs):
            wanted = WantedCell(method, "cifar10", theirs.epsilon, basis)
            if basis is Basis.CLAIMED and material.find(wanted) is not None:
                ours_too = (Ours(wanted, beside=theirs), Ours(wanted, "proven"), _holds(material, wanted))
                rows.append(TableRow((label, f"{wanted.epsilon:g} (claimed)", *ours_too)))
    dgd, dp_sgd = (material.one(table="II", measure="accuracy", system=system) for system in ("DGD", "DPSGD"))
    ours = [(cell("dgd", "cifar10", 3.0, teachers=100), dgd), (proven_cell("dgd-sound", "cifar10", 3.0), None)]
    if dp_sgd is not None and dp_sgd.epsilon is not None:
        ours.append((cell("dp-sgd", "cifar10", dp_sgd.epsilon), dp_sgd))
    for place, (wanted, number) in enumerate(ours):
        row: tuple[Entry, ...] = (
            f"{wanted.method}, here", f"{wanted.epsilon:g} ({wanted.basis.value})", Ours(wanted, beside=number),
            Ours(wanted, "proven"), _holds(material, wanted),
        )  # fmt: skip
        rows.append(TableRow(row, rule=place == 0))
    return rows


def _transformer(material: Material) -> Mapping[str, str]:
    accuracy = material.one(table="text", system="Baseline", dataset="imagenet", measure="accuracy")
    return {"vit": "" if accuracy is None else f"{accuracy.value:g}"}


_PLAIN = {
    "images": Usual("data-free"), "vae": Usual(True), "teachers": Usual(250), "synthetic": Usual(60_000, 6000),
    "random_share": Usual(0.0, 0.75),
}  # fmt: skip

PAPER = Paper(
    "dgd",
    "DGD (Ge et al., IEEE TIP 2023)",
    tables=(
        TEXTS.table("I", _table_1, lambda material: {"bypass": DGD_BYPASS}),
        TEXTS.table("II", _table_2, _transformer),
    ),
    figures=FIGURES,
    plain={
        "dgd": {**_PLAIN, "count": Usual("printed", "formula")},
        "dgd-plus": {**_PLAIN, "count": Usual("formula")},
        "pate": USUAL,
        "pate-gnmax": {"teachers": Usual(250), "claim": Usual("data-dependent", "data-independent"),
                       "sigma": Usual(40.0, calibrated=True)},
    },
)  # fmt: skip
