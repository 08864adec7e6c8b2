"""TrPATE's figures beside records, and the cells that its tables and figures share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.results.text import epsilon_text
from reports.papers.evidence import Cell, Setting
from reports.papers.spec import FigureSpec, Material, Ours, Panel, Picture, PicturePanel, Point, Series, Theirs
from reports.reported.numbers import Reported

DELTA = 1e-5
WHOLE = (0.0, 102.0)
Settings = dict[str, Setting]
SMALL_NETS: Settings = {"teachers": 200, "gamma": 0.05, "least_queries": 1, "claim": "closed-form"}
"""PATE with small nets, of which the paper says no more than that there are 200 teachers."""


def asked_for(gamma: float, queries: int) -> float:
    """Return the epsilon to ask for so that Theorem 1 pays for so many queries: its figure, with two digits, up."""
    from bench.privacy.claims import pate_closed_form

    return math.ceil(100 * pate_closed_form(gamma, queries, DELTA).epsilon) / 100


def transferred(method: str, dataset: str, gamma: float, queries: int, settings: Settings | None = None) -> Cell:
    """Return the cell of the paper's preset that answers so many queries with Laplacian noise of scale 1 / `gamma`."""
    changed = {**({} if gamma == 0.05 else {"gamma": gamma}), **(settings or {})}
    return Cell(method, dataset, asked_for(gamma, queries), settings=tuple(changed.items()), preset="paper")


def plain_pate(dataset: str, gamma: float, queries: int, **settings: Setting) -> Cell:
    """Return the cell of PATE with small nets; the paper's own teachers for PATE are not described."""
    changed = {**SMALL_NETS, "gamma": gamma, **settings}
    return Cell("pate", dataset, asked_for(gamma, queries), settings=tuple(changed.items()), preset="quick")


def measured(material: Material, one: Cell, measure: str = "accuracy") -> float | None:
    """Return the mean of a measure of a cell; None where it was not run."""
    value = material.value(Ours(one, measure))
    return None if value is None else value.mean


def why_lower(material: Material, one: Cell) -> str:
    """Return what Theorem 1's figure for a cell is proven to be, as a sentence; nothing where it was not run."""
    found = material.find(one)
    if found is None:
        return ""
    return (
        f"What Theorem 1 puts at {epsilon_text(found.row.claimed)} is proven to be at most "
        f"{epsilon_text(found.row.proven, 'up')}: the claim holds, and is loose."
    )


def said(*sentences: str) -> list[str]:
    """Return those that are not empty."""
    return [sentence for sentence in sentences if sentence]


# --- Figures 1 and 5: size of the training set ------------------------------------------------------------------------

SIZES = (100, 250, 500, 1000, 2500, 5000, 10_000, 20_000)
FULL = {"mnist": 60_000, "cifar10": 40_000}
"""Private records here; the paper's CIFAR-10 curve goes to 50,000."""


def _by_size(method: str, dataset: str, preset: str, printed: dict[float, Reported]) -> tuple[Point, ...]:
    """Return the accuracies by size, each with the printed one beside it where the text has one."""
    points = []
    for n in (*SIZES, FULL[dataset]):
        whole = n == FULL[dataset]
        one = Cell(method, dataset, settings=() if whole else (("records", n),), preset=preset)
        beside = printed.get(float(PRINTED_FULL[dataset] if whole else n))
        points.append(Point(float(n), Ours(one, beside=beside)))
    return tuple(points)


def _printed_sizes(material: Material, table: str, **wanted: str) -> dict[float, Reported]:
    """Return what the text of the paper has of a curve, by the number of records."""
    sizes = {}
    for number in material.printed(table=table, **wanted):
        records = number.setting.split()[0] if "records" in number.setting else PRINTED_FULL[number.dataset]
        sizes[float(records)] = number
    return dict(sorted(sizes.items()))


def _theirs(label: str, printed: dict[float, Reported], slot: int) -> tuple[Series, ...]:
    points = tuple(Point(size, Theirs(number)) for size, number in printed.items())
    return (Series(label, points, slot, "theirs"),) if points else ()


PRINTED_FULL = {"mnist": 60_000, "cifar10": 50_000}
"""Records of the official training sets, which the paper's caption calls full."""


def _figure_1(material: Material) -> Sequence[Panel]:
    series: list[Series] = []
    for slot, (name, dataset) in enumerate([("MNIST", "mnist"), ("CIFAR-10", "cifar10")]):
        printed = _printed_sizes(material, "fig 1", dataset=dataset)
        series.append(Series(f"{name}, small net", _by_size("nonprivate", dataset, "quick", printed), slot))
        series += _theirs(f"{name}, printed", printed, slot)
    return [Panel("", "training records", "accuracy (%)", tuple(series), x_scale="log", y_limits=WHOLE)]


def _figure_5(material: Material) -> Sequence[Panel]:
    scratch, transfer = _printed_sizes(material, "fig 1", dataset="cifar10"), _printed_sizes(material, "fig 5")
    series = (
        Series("from scratch, small net", _by_size("nonprivate", "cifar10", "quick", scratch), 0),
        *_theirs("from scratch, VGG13, printed", scratch, 0),
        Series("transferred, ResNet-50", _by_size("nonprivate-transfer", "cifar10", "paper", transfer), 1),
        *_theirs("transferred, VGG13, printed", transfer, 1),
    )
    return [Panel("CIFAR-10", "training records", "accuracy (%)", series, x_scale="log", y_limits=WHOLE)]


def _shows_sizes(material: Material) -> Sequence[str]:
    return [
        "Ours are small nets of the quick preset, trained for as many steps on a part of the records as on all "
        "(`--set records=N`), where the paper has a net of two convolutions and VGG13. None of this has privacy. Of "
        "its curves the paper prints the points that are drawn, in its text and caption.",
    ]


# --- Figures 4 and 7 --------------------------------------------------------------------------------------------------

_TSNE = (
    "a t-SNE needs 5,000 images and their features, which no record holds; they are private, and are in a run's cache "
    "only. bench.training.features.features_of makes them, scikit-learn's TSNE the embedding"
)


def _figure_4(material: Material) -> Sequence[PicturePanel]:
    return [
        PicturePanel(
            "",
            (
                Picture("(a) raw pixels", Cell("nonprivate", "cifar10", cannot=_TSNE)),
                Picture("(b) transferred features", Cell("nonprivate-transfer", "cifar10", cannot=_TSNE)),
            ),
        )
    ]


GAMMAS = (10.0, 0.2, 0.1, 0.05, 0.025, 0.0125)
"""The scale of the noise is 1 / gamma; 10 is next to none."""


def _figure_7(material: Material) -> Sequence[Panel]:
    curves = (
        ("TrPATE", 1, [transferred("trpate", "cifar10", gamma, 1000) for gamma in GAMMAS]),
        ("PATE", 0, [plain_pate("cifar10", gamma, 1000) for gamma in GAMMAS]),
    )
    labels = [
        Series(
            name, tuple(Point(1 / gamma, Ours(one, "labels")) for gamma, one in zip(GAMMAS, cells, strict=True)), slot
        )
        for name, slot, cells in curves
    ]
    students = [
        Series(name, tuple(Point(1 / gamma, Ours(one)) for gamma, one in zip(GAMMAS, cells, strict=True)), slot)
        for name, slot, cells in curves
    ]
    return [
        Panel("1,000 labels", "noise scale 1/γ", "labels right (%)", tuple(labels), y_limits=WHOLE),
        Panel("the student of these labels", "noise scale 1/γ", "accuracy (%)", tuple(students), y_limits=WHOLE),
    ]


def _shows_7(material: Material) -> Sequence[str]:
    told = []
    for name, one in (
        ("TrPATE", transferred("trpate", "cifar10", 0.05, 1000)), ("PATE", plain_pate("cifar10", 0.05, 1000)),
    ):  # fmt: skip
        right = measured(material, one, "labels")
        if right is not None:
            told.append(f"{name} {right:.1f}%")
    gain = material.one(table="fig 7", measure="gain")
    printed = (
        ""
        if gain is None
        else f" The paper prints one number: without noise TrPATE is nearly {gain.value:g} points ahead."
    )
    return said(
        "What ours shows. Labels right at γ 0.05: " + ", ".join(told) + "." if told else "",
        "The noise has the scale 1/γ on each count of 200 teachers. The right panel is ours: what such labels are "
        "worth." + printed,
        "A point at γ is asked for by the ε that Theorem 1 gives it for 1,000 queries: "
        f"{epsilon_text(asked_for(min(GAMMAS), 1000))} at γ {min(GAMMAS):g}, "
        f"{epsilon_text(asked_for(max(GAMMAS), 1000))} at γ {max(GAMMAS):g}, which is next to no noise.",
    )


FIGURES = (
    FigureSpec(
        "1",
        "Accuracy by the size of the training set.",
        "With 500 records a net is still good on MNIST, and bad on CIFAR-10: PATE's parts are too small for a "
        "complex task.",
        _figure_1,
        _shows_sizes,
    ),
    FigureSpec(
        "4",
        "t-SNE of CIFAR-10: pixels, and transferred features.",
        "Instances of one class lie together in the features, and not in the pixels.",
        _figure_4,
        lambda material: ["No record holds what this figure is made of: " + _TSNE + "."],
    ),
    FigureSpec(
        "5",
        "Accuracy by the size of the training set, with and without transferred features.",
        "With transferred features 500 records give about twice the accuracy that they give from scratch.",
        _figure_5,
        _shows_sizes,
    ),
    FigureSpec(
        "7",
        "Labels that the noisy ensemble gets right, by the noise.",
        "TrPATE is ahead of PATE by a large margin at every noise scale.",
        _figure_7,
        _shows_7,
    ),
)
