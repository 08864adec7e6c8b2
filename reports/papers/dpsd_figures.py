"""DPSD's figures 3 and 7 to 9 beside records, what of them no record can show, and the specs of all its figures."""

from __future__ import annotations

from collections.abc import Sequence

from bench.core.types import Basis
from bench.results.text import epsilon_text
from reports.papers.dpsd_ablations import (
    NAMES,
    TWO,
    WHOLE,
    figure_4,
    figure_5,
    figure_6,
    shows_4,
    shows_5,
    shows_6,
    why_not,
)
from reports.papers.evidence import Cell, cell, proven_cell
from reports.papers.spec import (
    Attacked,
    FigureSpec,
    Material,
    Ours,
    Panel,
    Picture,
    PicturePanel,
    Point,
    Series,
    Theirs,
    number_text,
)

# --- Figure 3: a drawing ----------------------------------------------------------------------------------------------

LEARNT_FROM = (
    ("private data, no noise", Cell("nonprivate", "mnist")),
    ("public data (PATE, GNMax)", cell("pate-gnmax", "mnist", 10.0)),
    ("synthetic data (DPSD), claimed ε 10", cell("dpsd", "mnist", 10.0)),
    ("synthetic data (DPSD-sound), proven ε 10", proven_cell("dpsd-sound", "mnist", 10.0)),
)
FAR = (1.0, 1e9)
"""The proven epsilons that are shown."""


def _figure_3(material: Material) -> Sequence[Panel]:
    (name, whole), *others = LEARNT_FROM
    # What a student without noise costs is infinite: its accuracy is a line across.
    series = [Series(f"{name} (ε ∞)", tuple(Point(x, Ours(whole)) for x in FAR), 6, "formula", dashed=True)]
    series += [
        Series(label, (Point(Ours(one, "proven"), Ours(one)),), slot) for slot, (label, one) in enumerate(others)
    ]
    return [
        Panel("MNIST", "proven ε", "accuracy (%)", tuple(series), x_scale="log", y_limits=(93.0, 100.0), x_limits=FAR)
    ]


def _shows_3(material: Material) -> Sequence[str]:
    drawn = [f"{name}: {_shown(material, one)}" for name, one in LEARNT_FROM]
    return [
        "The paper's figure is a drawing, not a measurement: arrows from a student to a teacher above, pictures of "
        "t-SNE below, without numbers. Records hold neither gradients nor features: it cannot be redrawn. What they "
        "can say of its claim is where a student ends, and what that is proven to cost. " + "; ".join(drawn) + ".",
        why_not(),
    ]


def _shown(material: Material, one: Cell) -> str:
    found = material.find(one)
    if found is None:
        return "not run"
    return f"{number_text(found.row.accuracy)} at proven {epsilon_text(found.row.proven, 'up')}"


# --- Figure 7: synthetic images ---------------------------------------------------------------------------------------

CORNER = (0.0, 0.0, 0.5, 0.5)
"""The part of an image grid, ten images wide, that is shown: five rows of five."""


def _figure_7(material: Material) -> Sequence[PicturePanel]:
    panels = []
    for dataset in ("mnist", "fmnist", "celeba-g"):
        cells = (
            ("D, ε 1", cell("dpsd", dataset, 1.0)),
            ("D, ε 10", cell("dpsd", dataset, 10.0)),
            ("L, ε 1", cell("dpsd-label", dataset, 1.0)),
            ("repaired, ε 10", proven_cell("dpsd-sound", dataset, 10.0)),
        )
        panels.append(
            PicturePanel(NAMES[dataset], tuple(Picture(name, one, crop=CORNER, square=True) for name, one in cells))
        )
    return panels


def _shows_7(material: Material) -> Sequence[str]:
    return [
        "Each picture is a corner of the sheet beside a record: images that left with the student, in the order that "
        "they were drawn. D and L are the claimed epsilons of a record and of a query's label; repaired is a proven "
        "one.",
        "Those of the quick preset do not look like the data at any epsilon: the student alone drives the generator, "
        "and three quarters of each batch come from random processes. How an image looks says nothing of privacy.",
        why_not(),
    ]


# --- Figure 8: inversion attacks --------------------------------------------------------------------------------------

TARGETS = (
    ("no privacy", Cell("nonprivate", "mnist")),
    ("DPSD(D)", cell("dpsd", "mnist", 1.0)),
    ("DPSD(L)", cell("dpsd-label", "mnist", 1.0)),
    ("PATE", cell("pate", "mnist", 1.0)),
    ("DGD", cell("dgd", "mnist", 1.0)),
)
ROLES = (("student", "the student"), ("counterfactual", "a target that saw other records"), ("prior", "no target"))
TRIES = (0.0, 0.045, 0.33, 0.53)
CONTROLS = (0.355, 0.045, 0.76, 0.53)
"""Parts of an attack's image grid: the tries on the student, and its controls; the first five classes."""


def _figure_8(material: Material) -> Sequence[Panel | PicturePanel]:
    def bars(metric: str, scale: float) -> tuple[Series, ...]:
        return tuple(
            Series(label, tuple(Point(name, Attacked(one, "gmi", metric, role, scale)) for name, one in TARGETS), slot)
            for slot, (role, label) in enumerate(ROLES)
        )

    tries = tuple(Picture(name, one, attack="gmi", crop=TRIES) for name, one in TARGETS[:3])
    controls = Picture("controls of DPSD(D)", TARGETS[1][1], attack="gmi", crop=CONTROLS)
    return [
        Panel("Inception score", "student at ε 1", "[IS] (millions)", bars("[IS]", 1e-6), form="bars",
              y_limits=(0.0, 10.0)),
        Panel("Named by three evaluators", "student at ε 1", "images (%)", bars("committee top-1", 100.0), form="bars",
              y_limits=WHOLE),
        PicturePanel("", tries[:2]),
        PicturePanel("", (tries[2], controls)),
    ]  # fmt: skip


def _shows_8(material: Material) -> Sequence[str]:
    told = []
    for name, one in TARGETS:
        score = material.value(Attacked(one, "gmi", "[IS]", "student", 1e-6))
        gap = material.value(Attacked(one, "gmi", "committee top-1 above counterfactual"))
        if score is not None:
            above = "" if gap is None else f", named {gap.mean:+.1f} points against the control"
            told.append(f"{name} {score.mean:.2f} million{above}")
    found = ["What ours shows. [IS] = (IS - 1) * 10^6: " + "; ".join(told) + "."] if told else []
    return [
        *found,
        "The paper compares Inception scores alone and calls a lower one more private. But the score asks whether "
        "pictures look like some digit, and any good classifier brings that about, with the attacker's own public "
        "images. The control is a target that was trained on other records: only what is above it can come from the "
        "private ones.",
        "The paper's other two models, DataLens and ALIBI, are no methods here, and its text holds no number of this "
        "figure. The private students are at a claimed ε 1; the table of records says what is proven of them.",
    ]


# --- Figure 9: privacy against accuracy -------------------------------------------------------------------------------

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def _figure_9(material: Material) -> Sequence[Panel]:
    panels = []
    for dataset in TWO:
        printed = [
            number
            for table in ("fig 9", "I")
            for number in material.printed(table=table, dataset=dataset, system="DPSD", measure="accuracy")
        ]
        theirs = tuple(
            Point(number.epsilon, Theirs(number))
            for number in sorted(printed, key=lambda n: n.epsilon or 0.0)
            if number.epsilon is not None
        )
        methods = (
            ("DPSD", "dpsd", Basis.CLAIMED, 0),
            ("DPSD-sound", "dpsd-sound", Basis.PROVEN, 1),
            ("DP-SGD", "dp-sgd", Basis.CLAIMED, 2),
        )
        cells = {label: [Cell(m, dataset, e, basis) for e in EPSILONS] for label, m, basis, _ in methods}
        for axis, title in (("claimed", "by what is claimed"), ("proven", "by what is proven")):
            series = [
                Series(label, tuple(Point(_x(one, axis), Ours(one)) for one in cells[label]), slot)
                for label, _, _, slot in methods
            ]
            if axis == "claimed":
                series.insert(0, Series("DPSD, printed", theirs, 0, "theirs"))
            panels.append(
                Panel(f"{NAMES[dataset]}, {title}", f"{axis} ε", "accuracy (%)", tuple(series), x_scale="log",
                      y_limits=WHOLE, x_limits=(0.07, 14.0) if axis == "claimed" else (0.05, 1e8))
            )  # fmt: skip
    return panels


def _x(one: Cell, axis: str) -> float | Ours:
    if axis == "claimed":
        assert one.epsilon is not None
        return one.epsilon
    return Ours(one, "proven")


def _shows_9(material: Material) -> Sequence[str]:
    told = []
    for dataset in TWO:
        low, high = (material.find(cell("dpsd", dataset, epsilon)) for epsilon in (EPSILONS[0], EPSILONS[-1]))
        for found in (low, high):
            if found is not None:
                told.append(
                    f"{NAMES[dataset]} at claimed {found.cell.epsilon:g} has {number_text(found.row.accuracy)}, proven "
                    f"{epsilon_text(found.row.proven, 'up')}, audited {epsilon_text(found.row.audited, 'down')}"
                )
    plain, first = material.find(cell("dp-sgd", "mnist", 1.0)), material.find(cell("dpsd", "mnist", 1.0))
    beside = ""
    if plain is not None and first is not None:
        beside = (
            f"At a claimed 1 on MNIST DP-SGD has {number_text(plain.row.accuracy)}, proven "
            f"{epsilon_text(plain.row.proven, 'up')}, and DPSD {number_text(first.row.accuracy)}, proven "
            f"{epsilon_text(first.row.proven, 'up')}."
        )
    found_text = ["What ours shows. DPSD on " + "; on ".join(told) + "."] if told else []
    return [
        *found_text,
        *([beside] if beside else []),
        "On the left the students stand where their papers claim to be. On the right the same students stand at what "
        "is proven of them: DPSD's fall comes at an ε of thousands and more, where nothing is promised, so it is no "
        "price of privacy. DPSD-sound (calibrated to proven ε) and DP-SGD show what that price is.",
        why_not(),
    ]


FIGURES = (
    FigureSpec(
        "3",
        "Where a student ends that learns from private, public or synthetic data (the paper's figure is a drawing).",
        "With public data a student stays away from its teacher, with private data it reaches it and leaks; with "
        "synthetic data it reaches it and keeps privacy.",
        _figure_3,
        _shows_3,
    ),
    FigureSpec(
        "4",
        "Nine teachers on ImageNet, transcribed to a ResNet34.",
        "Accuracy drops sharply at ε 1 and gently at 10; at 1 the student of ShuffleNet is the best, at 5 a better "
        "teacher makes a better student.",
        figure_4,
        shows_4,
        columns=1,
    ),
    FigureSpec(
        "5",
        "Operations and settings of the annotation.",
        "Normalising beats clipping for small bounds; σ is best near 100; more iterations and more synthetic images "
        "help up to a point; k has two good regions.",
        figure_5,
        shows_5,
        columns=3,
    ),
    FigureSpec(
        "6",
        "Classic (KD) and decoupled (DKD) distillation.",
        "Students of decoupled distillation are more accurate on MNIST and FMNIST.",
        figure_6,
        shows_6,
    ),
    FigureSpec(
        "7",
        "Synthetic images at several epsilons.",
        "The images look better at larger epsilon and are noisy anyway; under label protection they are noisy too.",
        _figure_7,
        _shows_7,
        columns=1,
        height=1.9,
    ),
    FigureSpec(
        "8",
        "Generative model inversion (GMI) of MNIST students at ε 1, beside its controls.",
        "DPSD's models have lower Inception scores under the attack than DataLens and ALIBI, so they protect better.",
        _figure_8,
        _shows_8,
        columns=2,
        height=2.5,
    ),
    FigureSpec(
        "9",
        "Accuracy against epsilon, claimed and proven.",
        "Accuracy falls sharply below ε 1; around 1 is a balance for MNIST, around 5 for FMNIST.",
        _figure_9,
        _shows_9,
        columns=2,
    ),
)
