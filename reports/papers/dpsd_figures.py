"""DPSD's figures 3 and 7 to 9, and the specs of all its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.core.types import Basis
from bench.reports.papers.dpsd_ablations import ABLATIONS, NAMES, TEXTS, TWO, WHOLE, shown
from bench.reports.papers.evidence import WantedCell, cell, proven_cell
from bench.reports.papers.spec import Attacked, Material, Ours, Panel, Picture, PicturePanel, curve, curves, number_text
from bench.results.text import epsilon_text

# --- Figure 3: a drawing ----------------------------------------------------------------------------------------------

LEARNT_FROM = (
    ("private data, no noise", cell("nonprivate", "mnist")),
    ("public data (PATE, GNMax)", cell("pate-gnmax", "mnist", 10.0)),
    ("synthetic data (DPSD), claimed ε 10", cell("dpsd", "mnist", 10.0)),
    ("synthetic data (DPSD-sound), proven ε 10", proven_cell("dpsd-sound", "mnist", 10.0)),
)
FAR = (1.0, 1e9)
"""Range of proven epsilons that have a line."""


def _figure_3(material: Material) -> Sequence[Panel]:
    (name, whole), *others = LEARNT_FROM
    # Epsilon is infinite without noise: a horizontal line.
    series = (
        curve(f"{name} (ε ∞)", 6, [(x, whole) for x in FAR], "formula", dashed=True),
        *(curve(label, slot, [(Ours(one, "replace_one"), one)]) for slot, (label, one) in enumerate(others)),
    )
    return [Panel("MNIST", "proven ε", "accuracy (%)", series, x_scale="log", x_limits=(0.5, 2e9))]


def _found_3(material: Material) -> Mapping[str, str]:
    found = [f"{name}: {shown(material, one, ' at proven ') or 'not run'}" for name, one in LEARNT_FROM]
    return {"found": "; ".join(found)}


# --- Figure 7: synthetic images ---------------------------------------------------------------------------------------

CORNER = (0.0, 0.0, 0.5, 0.5)
"""Crop of a grid that is ten images wide to five rows of five."""


def _figure_7(material: Material) -> Sequence[PicturePanel]:
    panels = []
    for dataset in ("mnist", "fmnist", "celeba-g"):
        cells = {
            "D, ε 1": cell("dpsd", dataset, 1.0),
            "D, ε 10": cell("dpsd", dataset, 10.0),
            "L, ε 1": cell("dpsd-label", dataset, 1.0),
            "repaired, ε 10": proven_cell("dpsd-sound", dataset, 10.0),
        }
        pictures = tuple(Picture(name, one, crop=CORNER, square=True) for name, one in cells.items())
        panels.append(PicturePanel(NAMES[dataset], pictures))
    return panels


# --- Figure 8: inversion attacks --------------------------------------------------------------------------------------

TARGETS = (
    ("no privacy", cell("nonprivate", "mnist")),
    ("DPSD(D)", cell("dpsd", "mnist", 1.0)),
    ("DPSD(L)", cell("dpsd-label", "mnist", 1.0)),
    ("PATE", cell("pate", "mnist", 1.0)),
    ("DGD", cell("dgd", "mnist", 1.0)),
)
ROLES = (("student", "the student"), ("counterfactual", "a target that saw other records"), ("prior", "no target"))
TRIES = (0.0, 0.045, 0.33, 0.53)
CONTROLS = (0.355, 0.045, 0.76, 0.53)
"""Crops of an attack's image grid, first five classes: attempts on the student, and on its controls."""


def _figure_8(material: Material) -> Sequence[Panel | PicturePanel]:
    def bars(title: str, what: str, metric: str, scale: float, **layout: Any) -> Panel:
        series = curves({
            label: [(name, Attacked(one, "gmi", metric, role, scale)) for name, one in TARGETS] for role, label in ROLES
        })  # fmt: skip
        return Panel(title, "student at ε 1", what, series, form="bars", **layout)

    tries = tuple(Picture(name, one, attack="gmi", crop=TRIES) for name, one in TARGETS[:3])
    controls = Picture("controls of DPSD(D)", TARGETS[1][1], attack="gmi", crop=CONTROLS)
    return [
        bars("Inception score", "score - 1 ([IS] in millions)", "[IS]", 1e-6),
        bars("Named by three evaluators", "images (%)", "committee top-1", 100.0, y_limits=WHOLE),
        PicturePanel("", tries[:2]),
        PicturePanel("", (tries[2], controls)),
    ]


def _found_8(material: Material) -> Mapping[str, str]:
    found = []
    for name, one in TARGETS:
        score = material.value(Attacked(one, "gmi", "[IS]", "student", 1e-6))
        gap = material.value(Attacked(one, "gmi", "committee top-1 above counterfactual"))
        if score is not None:
            above = "" if gap is None else f", named {gap.mean:+.1f} points against the control"
            found.append(f"{name} {score.mean:.2f} million{above}")
    return {"found": "; ".join(found)}


# --- Figure 9: privacy against accuracy -------------------------------------------------------------------------------

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
METHODS_9 = (
    ("DPSD", "dpsd", Basis.CLAIMED),
    ("DPSD-sound", "dpsd-sound", Basis.PROVEN),
    ("DP-SGD", "dp-sgd", Basis.CLAIMED),
)


def _figure_9(material: Material) -> Sequence[Panel]:
    panels = []
    for dataset in TWO:
        numbers = [
            (number.epsilon, number)
            for table in ("fig 9", "I")
            for number in material.printed(table=table, dataset=dataset, system="DPSD", measure="accuracy")
            if number.epsilon is not None
        ]
        numbers.sort(key=lambda pair: pair[0])
        printed = curve("DPSD, printed", 0, numbers, "theirs")
        cells = {
            label: [(e, WantedCell(method, dataset, e, basis)) for e in EPSILONS] for label, method, basis in METHODS_9
        }
        claimed = (printed, *curves(cells))
        proven = curves({label: [(Ours(one, "replace_one"), one) for _, one in of] for label, of in cells.items()})
        for axis, series, limits in (("claimed", claimed, (0.07, 14.0)), ("proven", proven, (0.05, 1e8))):
            # Methods with different adjacencies share the panel.
            what = "proven ε, replace-one" if axis == "proven" else "claimed ε"
            panels.append(
                Panel(f"{NAMES[dataset]}, by what is {axis}", what, "accuracy (%)", series, x_scale="log",
                      y_limits=WHOLE, x_limits=limits)
            )  # fmt: skip
    return panels


def _found_9(material: Material) -> Mapping[str, str]:
    found = []
    for dataset in TWO:
        for epsilon in (EPSILONS[0], EPSILONS[-1]):
            one = material.find(cell("dpsd", dataset, epsilon))
            if one is not None:
                found.append(
                    f"{NAMES[dataset]} at claimed {epsilon:g} has {number_text(one.row.accuracy)}, proven "
                    f"{epsilon_text(one.row.proven, 'up')}, audited {one.row.audited_text}"
                )
    dp_sgd, dpsd = (shown(material, cell(method, "mnist", 1.0)) for method in ("dp-sgd", "dpsd"))
    return {"found": "; on ".join(found), "dp_sgd": dp_sgd, "dpsd": dpsd}


FIGURES = (
    TEXTS.figure("3", _figure_3, _found_3),
    *ABLATIONS,
    TEXTS.figure("7", _figure_7, columns=1, height=1.9),
    TEXTS.figure("8", _figure_8, _found_8, columns=2, height=2.5),
    TEXTS.figure("9", _figure_9, _found_9, columns=2),
)
