"""PATE-FM: teachers on slices of the labels, all images as unlabelled data, Confident-GNMax, a FixMatch student.

Malek, Mironov, Prasad, Shilov, Tramer, "Antipodes of Label Differential Privacy: PATE and ALIBI", NeurIPS 2021
(arXiv:2106.03408). Images are public: each teacher sees all of them, but only the labels of its own slice. Teachers
vote on some of the images; an image passes if its largest count, with noise, reaches the threshold, and gets the class
of the largest noisy count. A student learns from the answers and all images. With ``teacher_training=ridge``, ours,
teachers are ridge regressions on the images' principal components, thousands of times faster than FixMatch.

The authors' code differs, and its epsilon is not claimed here: it is data-dependent, not sanitised, and read when the
expected number of answers is reached; its threshold tests the largest count after noise on each, and a tied teacher
casts several votes (``noisy_threshold_labels`` and ``teachers_votes`` in ``lib/pate/utils.py``). Claimed and proven
here: the data-independent cost of every test and of the maximum number of answers.

Threat model: the attacker holds the student and the answers, all images and all labels but one. Private: labels.
Public: the images of the private records. Released: the student, the choice of queries and their answers. Unit label,
adjacency replace: a label changes one teacher, whose vote moves two counts by 1, so the largest by 1, and all counts of
a query by sqrt(2) in L2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from bench.interface import (
    Budget,
    ConfidentGNMax,
    Context,
    Facts,
    Ledger,
    PrivateData,
    PublicData,
    Released,
    make_student,
    partition,
    predict,
    register_method,
    setting,
    smallest_noise,
)
from bench.methods.label.cluster_rr import principal
from bench.methods.label.family import Ints, LabelMethod, true_labels
from bench.methods.label.fixmatch import FixMatchSettings, fixmatch
from bench.methods.shared.calibration import ClaimedBy
from bench.methods.shared.settings_checks import check_parts, student_depends

README = "Malek et al. 2021, authors' code: README, CIFAR-10"
CODE = "Malek et al. 2021, authors' code: FixMatch's settings"


@dataclass(frozen=True)
class PATEFMConfig:
    """Settings of teachers, aggregator and student."""

    teachers: int = setting(800, README, ge=1)
    teacher_training: Literal["fixmatch", "ridge"] = setting(
        "fixmatch", "Malek et al. 2021, section on PATE-FM; ridge: ours"
    )
    teacher_steps: int = setting(31_200, f"{README}: 40 epochs of 50,000 images in batches of 64, rounded", ge=1)
    queries: int = setting(10_000, "Malek et al. 2021, authors' code: student_dataset_max_size", ge=1)
    max_answers: int = setting(250, README, ge=1)
    threshold: float = setting(400.0, README, ge=0)
    sigma1: float = setting(800.0, f"{README}; 1.6 times sigma2 when calibrated to the budget", gt=0)
    sigma2: float = setting(500.0, f"{README}; calibrated to the budget", gt=0)
    student: str = setting("small_cnn", "ours: the paper's wide residual net is for CIFAR")
    student_steps: int = setting(156_000, f"{README}: 200 epochs of 50,000 images in batches of 64", ge=1)
    batch_size: int = setting(64, CODE, ge=1)
    unlabelled: int = setting(7, f"{CODE}: unlabelled images per labelled one in a batch", ge=1)
    lr: float = setting(0.03, CODE + "; ours: falling as a cosine to 0", gt=0)

    def fixmatch(self, steps: int) -> FixMatchSettings:
        """Return the settings for `steps` training steps."""
        return FixMatchSettings(steps, self.batch_size, self.unlabelled, lr=self.lr)


@register_method("pate-fm")
class PATEFM(ClaimedBy, LabelMethod):
    """Votes of teachers who share all images and no label."""

    config: PATEFMConfig
    citation = "Malek et al. 2021"
    claimed_by = "proven"
    claimed_in = "ours: the data-independent cost; the paper's figure depends on the votes and is itself private"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        teachers = max(2, min(800, facts.private_records // 30))
        quick = {
            "teachers": teachers, "teacher_training": "ridge", "queries": 1000, "threshold": teachers / 2,
            "student_steps": 1500, "batch_size": 32, "unlabelled": 3,
        }  # fmt: skip
        tiny = {"teachers": min(20, teachers), "threshold": 5.0, "student_steps": 20}
        return {"quick": quick, "tiny": {**quick, **tiny, "queries": 200, "max_answers": 100}}

    def calibrate(self, budget: Budget) -> PATEFMConfig:
        """Return `config` with the least noise within `budget`, keeping the ratio of sigma1 to sigma2."""
        check_parts(self)
        ratio = self.config.sigma1 / self.config.sigma2

        def noisy(sigma2: float) -> PATEFMConfig:
            return dataclasses.replace(self.config, sigma1=ratio * sigma2, sigma2=sigma2)

        return noisy(smallest_noise(lambda sigma2: [self.event(noisy(sigma2))], budget, start=100.0, tolerance=1e-6))

    def charges(self) -> list[ConfidentGNMax]:
        return [self.event(self.config)]

    @staticmethod
    def event(config: PATEFMConfig) -> ConfidentGNMax:
        """Return the event that the ledger will record."""
        most = min(config.max_answers, config.queries)
        return ConfidentGNMax(config.threshold, config.sigma1, config.sigma2, config.queries, most)

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Train the teachers, release their answers, and train the student on those and all images."""
        config = self.config
        student, options = make_student(config.student, private.facts, context.streams.torch("student/start"))
        order = context.streams.numpy("queries").permutation(len(private))
        asked = np.resize(order, config.queries)  # wraps around if there are fewer images
        answers = ledger.confident_noisy_max(
            self.votes(private, asked, context), teachers=config.teachers, threshold=config.threshold,
            sigma1=config.sigma1, sigma2=config.sigma2, max_answers=config.max_answers,
        )  # fmt: skip
        known = np.flatnonzero(answers >= 0)
        images, labels = private.images[asked[known]], torch.from_numpy(answers[known])
        if not len(known):
            context.note("no query passed the threshold: the student stays untrained. Lower it, or use less noise.")
        steps = config.student_steps
        with context.stage("student", student_depends(config, context), steps) as (checkpoint, stage):
            fixmatch(
                student, images, labels, private.images, config.fixmatch(steps),
                context.streams.torch("student/order"), device=context.device, stage=stage, checkpoint=checkpoint,
            )  # fmt: skip
        extras = {"query_images": torch.from_numpy(asked[known]), "query_answers": labels}
        return Released(student, config.student, options, extras=extras)

    def votes(self, private: PrivateData, asked: Ints, context: Context) -> Ints:
        """Return the teachers' votes on the images `asked` (queries,), (queries, classes)."""
        facts, labels = private.facts, torch.from_numpy(true_labels(private))
        parts = partition(len(private), self.config.teachers, f"{facts.dataset}/labels/{context.streams.seed}")
        votes = np.zeros((len(asked), facts.classes), dtype=np.int64)
        points = with_constant(principal(private.images, 50)) if self.config.teacher_training == "ridge" else None
        with context.progress.stage("teachers", len(parts)) as stage:
            for number, rows in enumerate(map(torch.from_numpy, parts)):
                if points is not None:
                    scores = points[asked] @ ridge(points[rows], labels[rows], facts.classes)
                else:
                    streams = context.streams.child(f"teacher {number}")
                    net, _ = make_student(self.config.student, facts, streams.torch("weights"))
                    settings, images = self.config.fixmatch(self.config.teacher_steps), private.images
                    order = streams.torch("order")
                    fixmatch(net, images[rows], labels[rows], images, settings, order, device=context.device)
                    scores = predict(net, private.images[asked], device=context.device)
                # One vote per teacher, even with ties.
                votes[np.arange(len(asked)), scores.argmax(1).numpy()] += 1
                stage.advance()
        return votes


def with_constant(points: torch.Tensor) -> torch.Tensor:
    """Return `points` (n, d) scaled to a mean squared norm of 1, with a last column of ones."""
    scaled = points / points.square().sum(1).mean().sqrt().clamp_min(1e-12)
    return torch.cat([scaled, torch.ones(len(points), 1)], dim=1)


def ridge(points: torch.Tensor, labels: torch.Tensor, classes: int, penalty: float = 0.1) -> torch.Tensor:
    """Return weights (d, classes) of ridge regression from `points` (n, d) to one-hot `labels` (n,)."""
    targets = torch.nn.functional.one_hot(labels, classes).float()
    inner = points @ points.T + penalty * torch.eye(len(points))
    weights: torch.Tensor = points.T @ torch.linalg.solve(inner, targets)
    return weights
