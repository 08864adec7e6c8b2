"""Shared by the generative methods: a private generator makes labelled images, and a student learns only from them.

A method trains its generator on private records through the ledger (:meth:`Generative.fit_generator`). The rest is
post-processing: :class:`Source` draws labelled images from public randomness, :func:`usable` checks them, and every
method's student is trained in the same way. Released: the generator's weights, some of its images with their labels,
the student. Unusable images end the cell; its failed row shows their image grid.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.interface import (
    Context,
    Facts,
    FitSettings,
    Ledger,
    Method,
    PrivateData,
    PublicData,
    Released,
    fit,
    make_student,
    setting,
)
from bench.methods.shared.settings_checks import SHOWN, student_depends
from bench.methods.shared.teachers import largest_shift
from bench.models.generators import ConditionalGenerator
from bench.training.divergence import CollapsedError

SAME = "ours: the same student for all generative methods"
LEAST_SPREAD = 0.01  # mean standard deviation of a pixel over the images; MNIST's is 0.19
LEAST_BETWEEN = 1.5  # between-class over within-class variance, 1 on average for images that ignore their label
LOOKED_AT = 5000  # maximum number of images to check
ENOUGH = 50  # images per class


@dataclass(frozen=True)
class GenerativeConfig:
    """Settings shared by all generative methods; the student's are ours."""

    synthetic: int = setting(
        60_000, "DP-MERF's code, gen_balanced.py: as many images as MNIST has private records", ge=1
    )
    student: str = setting("small_cnn", SAME)
    student_epochs: float = setting(10.0, SAME, gt=0)
    student_batch: int = setting(128, SAME, ge=1)
    student_lr: float = setting(0.05, SAME, gt=0)


@dataclass(frozen=True)
class Source:
    """A sampler of labelled images.

    `draw` takes a count and a random generator, and returns at most that many images, uint8 or float in [0, 1] (n,
    channels, height, width), with their labels, int64 (n,). `net`, if any, is released.
    """

    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
    net: nn.Module | None = None


class Generative(Method):
    """A private generator and a student of its images; a subclass trains the generator."""

    groups = ("generative",)

    @abc.abstractmethod
    def fit_generator(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Source:
        """Train the generator through the ledger; the result may depend on private data only through it."""

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {
            "quick": {"synthetic": 20_000, "student_epochs": 5.0},
            "tiny": {"synthetic": 200, "student_epochs": 2.0, "student_batch": 20},
        }

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        facts = private.facts
        # Build the student first, so that a wrong name fails before minutes of training.
        student, options = make_student(self.config.student, facts, context.streams.torch("student/start"))
        source = self.fit_generator(private, public, ledger, context)
        images, labels = source.draw(self.config.synthetic, context.streams.torch("synthetic"))
        images, labels = as_bytes(images, labels).cpu(), labels.cpu()
        usable(images, labels, facts.classes, context)
        self.learn(student, images, labels, context)
        most = max(1, SHOWN // facts.classes)
        shown = torch.cat([(labels == label).nonzero().flatten()[:most] for label in range(facts.classes)])
        extras = {"synthetic_images": images[shown], "synthetic_labels": labels[shown]}
        return Released(student, self.config.student, options, source.net, extras)

    def student_settings(self) -> FitSettings:
        """Return how a student is trained on the images."""
        return FitSettings(
            epochs=self.config.student_epochs, batch_size=self.config.student_batch, lr=self.config.student_lr,
            momentum=0.9, schedule="cosine", shift=largest_shift(self.facts), label_smoothing=0.1,
        )  # fmt: skip

    def learn(self, student: nn.Module, images: Tensor, labels: Tensor, context: Context) -> None:
        """Train `student` on `images` and `labels`; the same for all generative methods with many images."""
        settings = self.student_settings()
        steps = settings.total_steps(len(images))
        with context.stage("student", student_depends(self.config, context), steps) as (checkpoint, stage):
            fit(
                student, images, labels, settings, context.streams.torch("student/order"), device=context.device,
                stage=stage, checkpoint=checkpoint,
            )  # fmt: skip


def drawn(
    net: ConditionalGenerator, labels: Tensor, draws: torch.Generator, device: torch.device | str = "cpu"
) -> Tensor:
    """Return images, uint8 (n, channels, height, width), of classes `labels`, from `net` in evaluation mode."""
    net.eval()
    with torch.no_grad():
        parts = [as_bytes(net(net.codes(some, draws, device)).cpu(), some) for some in torch.split(labels, 1000)]
    return torch.cat(parts)


def source_of(
    net: ConditionalGenerator, labels_of: Callable[[int, torch.Generator], Tensor], device: torch.device | str
) -> Source:
    """Return the source that draws images from `net`, of as many classes as it asks `labels_of` for."""

    def draw(count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = labels_of(count, draws)
        return drawn(net, labels, draws, device), labels

    return Source(draw, net)


def balanced(net: ConditionalGenerator, classes: int, device: torch.device | str) -> Source:
    """Return the source that draws equally many images of each class from `net`."""
    return source_of(net, lambda count, _: torch.arange(count) % classes, device)


def as_bytes(images: Tensor, labels: Tensor) -> Tensor:
    """Return `images` as uint8; raise :class:`CollapsedError` if a pixel is not finite."""
    if images.dtype == torch.uint8:
        return images
    if not bool(images.isfinite().all()):
        raise CollapsedError("the generator diverged: its images have pixels that are not finite.", images, labels)
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def usable(images: Tensor, labels: Tensor, classes: int, context: Context) -> None:
    """Raise :class:`CollapsedError` unless `images` (uint8) and `labels` can teach a student; all are public.

    Identical images, images of a single class, and images whose pixels do not depend on the label are useless; the last
    is tested only with at least `ENOUGH` per class. Classes without images are noted.
    """
    counts = labels.bincount(minlength=classes)
    missing = (counts == 0).nonzero().flatten().tolist()
    if len(missing) >= classes - 1:
        raise CollapsedError("the generator collapsed: its images have one label only.", images, labels)
    if missing:
        context.note(f"the generator makes no images of the classes {', '.join(map(str, missing))}")
    rows = torch.randperm(len(labels), generator=context.streams.torch("synthetic/looked-at"))[:LOOKED_AT]
    pixels, own = images[rows].flatten(1).float() / 255, torch.nn.functional.one_hot(labels[rows], classes).float()
    spread = float(pixels.std(0).mean())
    if not spread >= LEAST_SPREAD:
        raise CollapsedError(
            f"the generator collapsed: its images are almost equal (deviation of a pixel {spread:.2g} of the range).",
            images, labels,
        )  # fmt: skip
    sizes = own.sum(0)
    found = int((sizes > 0).sum())
    means = own.T @ pixels / sizes.clamp_min(1)[:, None]
    between = float((sizes[:, None] * (means - pixels.mean(0)).square()).sum()) / (found - 1)
    within = float((pixels - own @ means).square().sum()) / max(1, len(pixels) - found)
    if len(pixels) >= ENOUGH * classes and between < LEAST_BETWEEN * within:
        raise CollapsedError("the generator collapsed: its images do not depend on their labels.", images, labels)
