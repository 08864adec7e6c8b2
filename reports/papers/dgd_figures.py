"""DGD's figures: Ge et al., IEEE TIP 2023."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.reports.papers.evidence import WantedCell, cell
from bench.reports.papers.spec import Attacked, Material, Ours, Panel, Picture, PicturePanel, curve, curves
from bench.reports.papers.texts import Texts
from bench.reports.papers.vote_accounting import noise_panel, queries_panel
from bench.reports.reported.numbers import Reported

QUERIES = (27, 750, 1000, 3000)
"""Section IV-B, label query."""
QUERY_TICKS = (27, 100, 300, 1000, 3000)
GENERATORS = {"data-free": "data-free", "acgan": "ACGAN", "wgan": "WGAN", "infogan": "InfoGAN", "private": "RAW"}
"""Names that Fig. 4 gives to the values of our setting `images`."""
AMOUNTS = (1000, 2000, 5000, 6000, 10_000, 20_000, 40_000, 60_000, 80_000)
"""Our choice: the paper states only 60,000 of its 8 amounts. The quick preset uses 6,000."""
EPSILONS = (1.0, 2.0, 4.0, 8.0, 10.0)
"""Our choice: the paper does not state it for Fig. 7 and 8."""
TEACHERS = (50, 100, 150, 200, 250, 300)
"""Our choice: the paper does not state it for Fig. 8."""
ATTACKS = {"data-free": "data-free [62]", "mi-face": "MI-Face [7]", "inversion-network": "inversion network [8]"}
ROLES = {
    "student": "student",
    "non-private": "same net without privacy",
    "counterfactual": "trained on other records",
    "prior": "not trained",
}
IMAGE_GRID = (0.0, 0.045, 0.77, 0.52)
"""Crop of an attack's image grid: the first five classes, without the private records."""
NAMES = {"mnist": "MNIST", "fmnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}
LIMITS = (0, 105)
TEXTS = Texts("dgd")


def _count(number: Reported) -> float:
    return float(number.setting.partition(" ")[0])


def _figure_3(material: Material) -> Sequence[Panel]:
    cells = [(float(n), cell("dgd", "mnist", 10.0, count="given", queries=n)) for n in QUERIES]
    printed = [n for n in material.printed(table="text", system="DGD", measure="accuracy") if "queries" in n.setting]
    # The preset's numbers of queries at other epsilons, with the same noise.
    others = [cell("dgd", "mnist", epsilon) for epsilon in EPSILONS[1:]]
    points: list[tuple[float | str | Ours, WantedCell]] = [*cells, *((Ours(c, "queries"), c) for c in others)]
    accuracy = (curve("DGD, here", 0, points), curve("DGD, printed", 0, [(_count(n), n) for n in printed], "theirs"))
    cost = queries_panel(QUERIES, scale=40.0)
    ran = curve("claimed of our runs", 3, points, measure="claimed")
    return [
        Panel("after training", "label queries", "accuracy (%)", accuracy, x_scale="log", x_ticks=QUERY_TICKS),
        replace(cost, title="cost of the queries alone", series=(*cost.series, ran), x_ticks=QUERY_TICKS),
    ]


def _images(images: str) -> dict[str, Any]:
    """Return the settings for images of this kind; GAN images are not mixed with random ones."""
    return {"images": images, **({"random_share": 0.0} if images.endswith("gan") else {})}


def _figure_4(material: Material) -> Sequence[Panel]:
    def cells(dataset: str) -> list[tuple[str, WantedCell]]:
        extra: dict[str, Any] = {"teachers": 100} if dataset == "cifar10" else {}
        return [(name, cell("dgd", dataset, 10.0, **_images(kind), **extra)) for kind, name in GENERATORS.items()]

    series = curves({NAMES[dataset]: cells(dataset) for dataset in ("mnist", "fmnist", "cifar10")})
    return [Panel("", "images from", "accuracy (%)", series, form="bars", y_limits=LIMITS)]


def _figure_5(material: Material) -> Sequence[PicturePanel]:
    part = (0.0, 0.0, 0.5, 0.5)  # 25 of 100 images, so that they are large enough in print
    # No images of random processes, because the figure compares generators.
    kinds = [(kind, name) for kind, name in GENERATORS.items() if kind != "private"]
    return [
        PicturePanel(NAMES[d], tuple(
            Picture(name, cell("dgd", d, 10.0, images=kind, random_share=0.0), crop=part) for kind, name in kinds
        ))
        for d in ("mnist", "fmnist")
    ]  # fmt: skip


def _figure_6(material: Material) -> Sequence[Panel]:
    baseline = material.one(table="I", system="Baseline", dataset="mnist", measure="accuracy")
    printed = material.one(table="I", system="DGD", dataset="mnist", measure="accuracy", epsilon=10.0)
    series = (
        curve("DGD, here", 0, [(float(n), cell("dgd", "mnist", 10.0, synthetic=n)) for n in AMOUNTS]),
        curve("DGD, printed (Table I)", 0, [(60_000.0, printed)], "theirs"),
        curve("baseline, here", 1, [(float(n), cell("nonprivate", "mnist")) for n in (AMOUNTS[0], AMOUNTS[-1])]),
        curve("baseline, printed", 1, [(60_000.0, baseline)], "theirs"),
    )
    ticks = (1000, 6000, 20_000, 60_000)
    return [Panel("", "synthetic images", "accuracy (%)", series, x_scale="log", x_ticks=ticks, y_limits=LIMITS)]


def _figure_7(material: Material) -> Sequence[Panel]:
    private: dict[str, Any] = {"images": "private"}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "PATE": ("pate", {}), "PATE+": ("pate-gnmax", {}), "DGD": ("dgd", private), "DGD+": ("dgd-plus", private),
    }  # fmt: skip
    panels = []
    for dataset in ("mnist", "svhn"):
        series = curves({
            f"{name}, here": [(f"{e:g}", cell(method, dataset, e, **extra)) for e in EPSILONS]
            for name, (method, extra) in kinds.items()
        })  # fmt: skip
        for number in material.printed(table="fig 7", dataset=dataset, measure="accuracy"):
            slot = [*kinds, number.system].index(number.system)
            series += (curve(f"{number.system}, printed", slot, [("printed", number)], "theirs"),)
        panels.append(Panel(NAMES[dataset], "claimed ε", "accuracy (%)", series, form="bars", y_limits=LIMITS))
    return panels


def _figure_8(material: Material) -> Sequence[Panel]:
    teachers = {
        NAMES[d]: [(float(n), cell("pate", d, 10.0, teachers=n)) for n in TEACHERS] for d in ("mnist", "fmnist", "svhn")
    }
    students = curves({
        f"{name}, {NAMES[d]}": [(e, cell(method, d, e)) for e in EPSILONS]
        for d in ("mnist", "fmnist")
        for method, name in (("dgd", "DGD"), ("dgd-plus", "DGD+"))
    })  # fmt: skip
    costs = material.printed(table="fig 8", measure="epsilon")
    printed = [
        curve(f"printed, {kind}", slot, [(_count(n), n) for n in costs if n.setting.endswith(kind)], "theirs")
        for slot, kind in enumerate(("advanced composition", "moments accountant"))
    ]
    by_queries = queries_panel((10, 27, 50, 100, 200, 400, 750, 1000, 2000, 3000), scale=40.0)
    return [
        Panel("answers of the ensemble", "teachers", "answers right (%)", curves(teachers, measure="labels"),
              y_limits=LIMITS),
        Panel("student", "claimed ε", "accuracy (%)", students, y_limits=LIMITS),
        noise_panel(1000),
        replace(by_queries, series=(*by_queries.series, *(series for series in printed if series.points))),
    ]  # fmt: skip


def _figure_9(material: Material) -> Sequence[Panel | PicturePanel]:
    whole, two = (WantedCell("dgd", dataset, 10.0, seeds=(0,)) for dataset in ("mnist", "mnist-01"))
    panels: list[Panel | PicturePanel] = []
    for wanted, title in ((whole, "DGD on MNIST, ε 10"), (two, "DGD on MNIST 0 and 1, ε 10")):
        names = [
            (a, name.replace(" [", "\n[")) for a, name in ATTACKS.items() if wanted is whole or a.endswith("network")
        ]
        series = curves({
            what: [(name, Attacked(wanted, attack, "committee top-1", role)) for attack, name in names]
            for role, what in ROLES.items()
        })  # fmt: skip
        panels.append(Panel(title, "attack", "recognised (%)", series, form="bars", y_limits=LIMITS))
    pictures = [Picture(name, whole, attack, IMAGE_GRID) for attack, name in ATTACKS.items()]
    there = tuple(picture for picture in pictures if material.picture(picture) is not None)
    return [*panels, PicturePanel("", there)] if there else panels


FIGURES = (
    TEXTS.figure("3", _figure_3),
    TEXTS.figure("4", _figure_4),
    TEXTS.figure("5", _figure_5, columns=1, height=1.9, wide=True),
    TEXTS.figure("6", _figure_6),
    TEXTS.figure("7", _figure_7),
    TEXTS.figure("8", _figure_8, columns=2),
    TEXTS.figure("9", _figure_9, columns=2, height=2.6),
)
