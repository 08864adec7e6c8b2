"""TrPATE's figures next to our records, and the cells shared with its tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.privacy.accounting.claims import pate_closed_form
from bench.reports.papers.evidence import WantedCell, cell
from bench.reports.papers.spec import Material, Ours, Panel, PaperPoint, Picture, PicturePanel, Series, curve
from bench.reports.papers.texts import Texts
from bench.reports.reported.numbers import Reported
from bench.results.text import epsilon_text

DELTA = 1e-5
WHOLE = (0.0, 102.0)
TSNE = (
    "a t-SNE needs 5,000 images and their features, which records do not contain: they are private and stay in a run's "
    "cache. bench.training.features.features_of computes them, and scikit-learn's TSNE the embedding"
)
TEXTS = Texts("trpate", lambda material: {"tsne": TSNE})
Settings = dict[str, Any]
SMALL_NETS: Settings = {"teachers": 200, "gamma": 0.05, "least_queries": 1, "claim": "closed-form"}
"""PATE with small nets; the paper states only the number of teachers, 200."""


def asked_for(gamma: float, queries: int) -> float:
    """Return the epsilon of `queries` by Theorem 1, rounded up to two decimals."""
    return math.ceil(100 * pate_closed_form(gamma, queries, DELTA).epsilon) / 100


def transferred(method: str, dataset: str, gamma: float, queries: int, settings: Settings | None = None) -> WantedCell:
    """Return the paper-preset cell that answers `queries` with Laplace noise of scale 1 / `gamma`."""
    changed: Settings = {**({} if gamma == 0.05 else {"gamma": gamma}), **(settings or {})}
    return cell(method, dataset, asked_for(gamma, queries), preset="paper", **changed)


def plain_pate(dataset: str, gamma: float, queries: int, **settings: Any) -> WantedCell:
    """Return the cell of PATE with :data:`SMALL_NETS`."""
    changed: Settings = {**SMALL_NETS, "gamma": gamma, **settings}
    return cell("pate", dataset, asked_for(gamma, queries), preset="quick", **changed)


def measured(material: Material, one: WantedCell, measure: str = "accuracy") -> float | None:
    """Return the mean of a measure of a cell, or None if it was not run."""
    value = material.value(Ours(one, measure))
    return None if value is None else value.mean


SIZES = (100, 250, 500, 1000, 2500, 5000, 10_000, 20_000)
FULL = {"mnist": 60_000, "cifar10": 40_000}
"""Our numbers of private records; the paper's CIFAR-10 curve ends at 50,000."""
PRINTED_FULL = {"mnist": 60_000, "cifar10": 50_000}
"""Sizes of the official training sets ("full" in the paper)."""


def _by_size(
    material: Material, table: str, dataset: str, here: tuple[str, str, str], theirs: str, slot: int
) -> list[Series]:
    label, method, preset = here
    printed: dict[float, Reported] = {}
    for number in material.printed(table=table, dataset=dataset):
        records = number.setting.split()[0] if "records" in number.setting else PRINTED_FULL[dataset]
        printed[float(records)] = number
    points = [(float(n), cell(method, dataset, preset=preset, records=n), float(n)) for n in SIZES]
    points.append((float(FULL[dataset]), cell(method, dataset, preset=preset), float(PRINTED_FULL[dataset])))
    ours = tuple(PaperPoint(x, Ours(one, beside=printed.get(size))) for x, one, size in points)
    there = [(size, printed[size]) for size in sorted(printed)]
    return [Series(label, ours, slot), *([curve(theirs, slot, there, "theirs")] if there else [])]


def _figure_1(material: Material) -> Sequence[Panel]:
    series = [
        one
        for slot, (name, dataset) in enumerate([("MNIST", "mnist"), ("CIFAR-10", "cifar10")])
        for one in _by_size(
            material, "fig 1", dataset, (f"{name}, small net", "nonprivate", "quick"), f"{name}, printed", slot
        )
    ]
    return [Panel("", "training records", "accuracy (%)", tuple(series), x_scale="log", y_limits=WHOLE)]


def _figure_5(material: Material) -> Sequence[Panel]:
    scratch = ("from scratch, small net", "nonprivate", "quick")
    transfer = ("transferred, ResNet-50", "nonprivate-transfer", "paper")
    series = (
        *_by_size(material, "fig 1", "cifar10", scratch, "from scratch, VGG13, printed", 0),
        *_by_size(material, "fig 5", "cifar10", transfer, "transferred, VGG13, printed", 1),
    )
    return [Panel("CIFAR-10", "training records", "accuracy (%)", series, x_scale="log", y_limits=WHOLE)]


def _figure_4(material: Material) -> Sequence[PicturePanel]:
    kinds = (("(a) raw pixels", "nonprivate"), ("(b) transferred features", "nonprivate-transfer"))
    return [PicturePanel("", tuple(Picture(title, cell(method, "cifar10", cannot=TSNE)) for title, method in kinds))]


GAMMAS = (10.0, 0.2, 0.1, 0.05, 0.025, 0.0125)
"""Noise scale is 1 / gamma; 10 is almost no noise."""


def _figure_7(material: Material) -> Sequence[Panel]:
    curves = (
        ("TrPATE", 1, [(1 / gamma, transferred("trpate", "cifar10", gamma, 1000)) for gamma in GAMMAS]),
        ("PATE", 0, [(1 / gamma, plain_pate("cifar10", gamma, 1000)) for gamma in GAMMAS]),
    )
    labels, students = (
        tuple(curve(name, slot, points, measure=measure) for name, slot, points in curves)
        for measure in ("labels", "accuracy")
    )
    return [
        Panel("1,000 labels", "noise scale 1/γ", "labels right (%)", labels, y_limits=WHOLE),
        Panel("student trained on these labels", "noise scale 1/γ", "accuracy (%)", students, y_limits=WHOLE),
    ]


def _found_7(material: Material) -> Mapping[str, str]:
    cells = {"TrPATE": transferred("trpate", "cifar10", 0.05, 1000), "PATE": plain_pate("cifar10", 0.05, 1000)}
    right = {name: measured(material, one, "labels") for name, one in cells.items()}
    gain = material.one(table="fig 7", measure="gain")
    least, most = (f"{epsilon_text(asked_for(g, 1000))} at γ {g:g}" for g in (min(GAMMAS), max(GAMMAS)))
    return {
        "found": ", ".join(f"{name} {share:.1f}%" for name, share in right.items() if share is not None),
        "gain": "" if gain is None else f"{gain.value:g}",
        "least": least,
        "most": most,
    }


FIGURES = (
    TEXTS.figure("1", _figure_1),
    TEXTS.figure("4", _figure_4),
    TEXTS.figure("5", _figure_5),
    TEXTS.figure("7", _figure_7, _found_7),
)
