"""DPSD's figures 4 to 6 (teachers, annotation, distillation), and code shared by DPSD's modules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.privacy.accounting.accountants import proven
from bench.privacy.accounting.claims import dpsd, dpsd_events, dpsd_smallest_sigma
from bench.reports.papers.evidence import WantedCell, cell
from bench.reports.papers.spec import Material, Panel, Series, curve, curves, number_text
from bench.reports.papers.texts import Texts
from bench.results.text import epsilon_text

NAMES = {
    "mnist": "MNIST", "fmnist": "FMNIST", "celeba-g": "CelebA-G", "celeba-h": "CelebA-H", "cifar10": "CIFAR10",
    "cifar100": "CIFAR100", "imagenet": "ImageNet", "covidx": "COVIDx", "medmnist": "MedMNIST",
    "medmnist-pathmnist": "PathMNIST",
}  # fmt: skip
TWO = ("mnist", "fmnist")
WHOLE = (0.0, 102.0)


def why_not() -> str:
    """Return the readings of Eq. 3 with their proven epsilons at the printed settings."""
    image, batch = (epsilon_text(proven(dpsd_events(images, 200, 100.0), 1e-5).epsilon, "up") for images in (256, 1))
    claims = " and ".join(f"{dpsd(beta, 10, 256, 200, 100.0, 1e-5).epsilon:.3f}" for beta in (1e-3, 5e-3))
    return (
        "Why claimed and proven differ: Theorem 1 relies on a small beta, but Eq. 3 scales the noise by beta as well, "
        "so beta cancels. At the printed settings, for any beta, the proven epsilon is "
        f"{image} if each image's gradient is normalised, as here, and {batch} if the whole batch's is. With noise of "
        f"deviation sigma, as in Theorem 5, Theorem 1 holds and gives {claims}. The paper says at most 1 and at most "
        "10."
    )


TEXTS = Texts("dpsd", lambda material: {"why_not": why_not()})


def shown(material: Material, one: WantedCell, between: str = ", proven ") -> str:
    """Return accuracy and proven epsilon (one replaced record) of a cell, or "" if it was not run."""
    found = material.find(one)
    if found is None:
        return ""
    return f"{number_text(found.row.accuracy)}{between}{epsilon_text(found.row.replace_one, 'up')}"


# --- Figure 4: teachers on ImageNet -----------------------------------------------------------------------------------

TEACHERS: tuple[tuple[str, str], ...] = (
    ("AlexNet", "torchvision_alexnet"), ("VGGNet", "vgg19_bn"), ("ResNet", "resnet50"),
    ("WideResNet", "wide_resnet50_2"), ("DenseNet", "densenet161"), ("MobileNet", "mobilenetv2_100"),
    ("ShuffleNet", "torchvision_shufflenet"), ("GoogleNet", "torchvision_googlenet"), ("ViT", "vit_base_patch16_224"),
)  # fmt: skip
"""The paper's teachers and their names here."""


def _figure_4(material: Material) -> Sequence[Panel]:
    panels = []
    for title, method in (("data-sensitive", "dpsd"), ("label-sensitive", "dpsd-label")):
        series = curves({
            f"ε {epsilon:g}": [
                (name, cell(method, "imagenet", epsilon, preset="paper", teacher=teacher, student="resnet34"))
                for name, teacher in TEACHERS
            ]
            for epsilon in (1.0, 5.0, 10.0)
        })  # fmt: skip
        theirs = material.one(table="fig 4", column="eps 1") if method == "dpsd" else None
        if theirs is not None:
            series += (curve("ε 1, printed", 0, [(theirs.row, theirs)], "theirs"),)
        panels.append(Panel(title, "teacher", "accuracy (%)", series, form="bars", y_limits=WHOLE))
    return panels


# --- Figure 5: operations and settings of the annotation --------------------------------------------------------------

BETAS = (1e-5, 1e-4, 1e-3, 5e-3)
SIGMAS = (20.0, 60.0, 100.0, 140.0, 180.0)
ITERATIONS = (40, 80, 160, 320)
TOP = (2, 3, 5, 7, 10)
SHARES = (0.1, 0.3, 1.0)
"""Fractions of the number of synthetic images above which accuracy no longer rises in the paper."""
FOUR = ("mnist", "fmnist", "cifar10", "cifar100")


def _figure_5(material: Material) -> Sequence[Panel]:
    def betas(**settings: Any) -> list[tuple[float, WantedCell]]:
        return [(beta, cell("dpsd", "mnist", 10.0, beta=beta, **settings)) for beta in BETAS]

    bounding = (curve("normalised", 0, betas()), curve("clipped", 1, betas(bounding="clip")))
    costs = (
        curve("proven", 0, betas(), measure="proven"),
        curve("claimed", 1, betas(), measure="claimed"),
        curve("by accounting, T 200", 6, [(beta, _proven_at(beta)) for beta in BETAS], "formula", dashed=True),
    )
    sigmas = curves({NAMES[d]: [(s, cell("dpsd", d, 10.0, sigma=s, calibrate="printed")) for s in SIGMAS] for d in TWO})
    rounds = curves({
        NAMES[d]: [(float(n), cell("dpsd-label", d, 10.0, iterations=n)) for n in ITERATIONS] for d in FOUR
    })  # fmt: skip
    tops = [
        curve(f"{NAMES[d]}, {name}", slot, [(k, cell(method, d, 10.0, k=k)) for k in TOP], dashed=method == "dpsd")
        for slot, (d, method, name) in enumerate(
            [("mnist", "dpsd-label", "L"), ("mnist", "dpsd", "D"), ("fmnist", "dpsd-label", "L")]
        )
    ]
    ticks = tuple(map(float, ITERATIONS))
    return [
        Panel("(a) bounding, D, claimed ε 10", "β", "accuracy (%)", bounding, x_scale="log", y_limits=WHOLE),
        Panel("(b) proven ε at the same claims", "β", "ε", costs, x_scale="log", y_scale="log"),
        Panel("(c) noise scale, D", "σ", "accuracy (%)", sigmas, y_limits=WHOLE),
        Panel("(d) iterations, L, ε 10", "T", "accuracy (%)", rounds, x_scale="log", x_ticks=ticks,
              y_limits=WHOLE),
        Panel("(e) top k, ε 10", "k", "accuracy (%)", tuple(tops), x_ticks=tuple(map(float, TOP)), y_limits=WHOLE),
        Panel("(f) synthetic images, L, ε 10", "images (thousands)", "accuracy (%)", tuple(_amounts(material)),
              x_scale="log", y_limits=WHOLE),
    ]  # fmt: skip


def _proven_at(beta: float) -> float:
    """Return the proven epsilon at a claim of 10: the paper's batch and iterations, ten classes, delta 1e-5."""
    sigma = dpsd_smallest_sigma(beta, 10, 256, 200, 10.0, 1e-5)
    return proven(dpsd_events(256, 200, sigma), 1e-5).epsilon


def _amounts(material: Material) -> list[Series]:
    series = []
    for slot, dataset in enumerate(FOUR):
        enough = material.one(table="fig 5", dataset=dataset, measure="records")
        if enough is not None:
            rounds = math.ceil(enough.value / 256)
            amounts = [round(share * enough.value) for share in SHARES]
            cells = [(n / 1000, cell("dpsd-label", dataset, 10.0, amount=n, iterations=rounds)) for n in amounts]
            series.append(curve(NAMES[dataset], slot, cells))
    return series


def _found_5(material: Material) -> Mapping[str, str]:
    found = [(beta, shown(material, cell("dpsd", "mnist", 10.0, beta=beta))) for beta in BETAS]
    return {"found": "; ".join(f"{beta:g}: {text}" for beta, text in found if text)}


# --- Figure 6: kinds of distillation ----------------------------------------------------------------------------------

KINDS = (("KD", "plain"), ("DKD as printed (Eq. 2)", "decoupled"), ("DKD as its own paper has it", "dkd"))


def _figure_6(material: Material) -> Sequence[Panel]:
    series = curves({name: [(NAMES[d], cell("dpsd", d, 10.0, distillation=kind)) for d in TWO] for name, kind in KINDS})
    return [Panel("claimed ε 10", "", "accuracy (%)", series, form="bars", y_limits=WHOLE)]


def _found_6(material: Material) -> Mapping[str, str]:
    found = []
    for dataset in TWO:
        plain, decoupled = (
            material.find(cell("dpsd", dataset, 10.0, distillation=kind)) for kind in ("plain", "decoupled")
        )
        if plain is not None and decoupled is not None:
            found.append(f"{NAMES[dataset]} {decoupled.row.accuracy - plain.row.accuracy:+.2f} points")
    return {"found": ", ".join(found)}


ABLATIONS = (
    TEXTS.figure("4", _figure_4, columns=1),
    TEXTS.figure("5", _figure_5, _found_5, columns=3),
    TEXTS.figure("6", _figure_6, _found_6),
)
