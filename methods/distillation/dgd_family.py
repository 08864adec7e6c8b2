"""Images, teachers, triples and the student of discriminative-generative distillation, for DGD and its variants.

Ge, Liu, Wang, Li, Zeng, "Learning Privacy-Preserving Student Networks via Discriminative-Generative Distillation", IEEE
TIP 2023. The student learns from noisy answers of a teacher ensemble on a few images (Eq. 3, 5) and from triples of
many images, reconstructed with and without perturbed codes (Eq. 4, 6).
"""

from __future__ import annotations

import abc
import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.seeds import seeded
from bench.interface import (
    Context,
    Facts,
    FitSettings,
    Ledger,
    PrivateData,
    PublicData,
    Released,
    make_student,
    setting,
)
from bench.methods.distillation.tangent_normal import (
    StudentSettings,
    Triples,
    make_triples,
    train_tangent_normal,
    train_vae,
)
from bench.methods.shared.given_teacher import GivenTeacherConfig, OneTeacher, TakesTeacher, given_net
from bench.methods.shared.random_images import KINDS
from bench.methods.shared.settings_checks import SHOWN, student_depends
from bench.methods.shared.starts_public import public_start
from bench.methods.shared.teachers import (
    EnsembleMethod,
    augmented_settings,
    labelling,
    largest_shift,
    quick_settings,
    say_missing_classes,
    tiny_teachers,
)
from bench.models.autoencoders import VAE
from bench.models.feature_net import OnFixedMap
from bench.storage.cache import digest_of
from bench.training.ensemble import count_votes


@dataclass(frozen=True)
class DGDConfig(GivenTeacherConfig):
    """Settings of DGD. The defaults are the paper's MNIST experiment."""

    teachers: int = setting(250, "DGD, section IV: MNIST, FMNIST and SVHN; 100 for CIFAR-10", ge=1)
    queries: int = setting(1300, "DGD, section IV-A: under epsilon 10; calibrated to the budget", ge=1)
    teacher: str = setting("dgd_cnn", "DGD, section IV: nets of baseline and teachers")
    teacher_recipe: Literal["published", "augmented"] = setting("published", "DGD, section IV: Adam, linear decay to 0")
    teacher_steps: int = setting(3000, "DGD, section IV: iteration rounds of the teachers, read as batches", ge=1)
    teacher_batch: int = setting(128, "DGD, section IV", ge=1)
    teacher_lr: float = setting(0.05, "DGD, section IV", gt=0)
    student: str = setting(
        "dgd_cnn", "DGD, section IV: simple nets 'the same to the benchmarks'; read as the teachers'"
    )
    student_steps: int = setting(
        234_500, "DGD, section IV: 500 rounds, read as epochs of 60,000 images, batch 128", ge=1
    )
    student_batch: int = setting(128, "DGD, section IV", ge=1)
    student_lr: float = setting(0.001, "DGD, section IV; decays linearly to 0", gt=0)
    student_optimizer: Literal["adam", "sgd"] = setting("adam", "DGD, section IV")
    regularise: float = setting(1.0, "DGD, Eq. 6: its terms have no weights; 0 leaves the generative stream out", ge=0)
    vae: bool = setting(True, "DGD, section III-B; without it the student learns from Eq. 5 alone (Fig. 7: PATE)")
    vae_steps: int = setting(234_500, "DGD, section IV: 500 rounds, read as epochs of 60,000 images, batch 128", ge=1)
    vae_lr: float = setting(0.001, "DGD, section IV; decays linearly to 0", gt=0)
    latent: int = setting(32, "DGD, section IV: c", ge=1, le=1024)
    vae_units: int = setting(64, "ours: the paper names no layers", ge=1)
    radius: float = setting(
        1.0, "ours, in deviations of the code's prior; see methods/distillation/tangent_normal.py", gt=0
    )
    teacher_votes: Literal["plain", "standardised"] = setting(
        "plain", "ours: standardised: teachers vote by logits standardised over the queries, class by class", later=True
    )
    perturbation: Literal["directed", "printed"] = setting("directed", "DGD, Eq. 4; printed: Laplace, scale 2 c / eps1")
    synthetic: int = setting(60_000, "DGD, section IV: as many as private records", ge=1)
    random_kind: Literal["strokes", "objects"] = setting("strokes", KINDS, later=True)

    def teacher_settings(self, part: int, facts: Facts) -> FitSettings:
        """Return how a teacher of `part` records is trained."""
        if self.teacher_recipe == "augmented":
            return augmented_settings(self.teacher_steps, self.teacher_batch, self.teacher_lr, facts)
        return FitSettings(
            steps=self.teacher_steps, batch_size=self.teacher_batch, optimizer="adam", lr=self.teacher_lr,
            schedule="linear",
        )  # fmt: skip


def quick_dgd(facts: Facts) -> dict[str, Any]:
    """Return the changes of ``quick``: PATE's quick teachers, small nets, fewer images."""
    shared = quick_settings(facts)
    names = ("teachers", "teacher", "teacher_recipe", "teacher_steps", "teacher_batch", "teacher_lr", "student")
    small = min(facts.shape[1:]) < 16
    return {
        **{name: shared[name] for name in names}, "synthetic": 4000 if small else 6000, "vae_steps": 200,
        "vae_units": 32, "student_steps": 1500, "student_batch": 100, "student_lr": 0.05, "student_optimizer": "sgd",
    }  # fmt: skip


def tiny_dgd(facts: Facts) -> dict[str, Any]:
    """Return the changes of ``tiny``."""
    return {
        **quick_dgd(facts), "teachers": tiny_teachers(facts), "teacher_steps": 5, "synthetic": 120, "vae_steps": 3,
        "vae_units": 8, "student_steps": 5,
    }  # fmt: skip


class DGDFamily(TakesTeacher, EnsembleMethod):
    """Images, noisy answers to a few of them, triples of all of them, and a student trained on both."""

    citation = "Ge et al. 2023"

    def payable(self, queries: int) -> int:
        """Return `queries`, limited to the number of images."""
        return int(min(queries, self.config.synthetic))

    @abc.abstractmethod
    def images(self, private: PrivateData, ledger: Ledger, context: Context) -> torch.Tensor:
        """Return the images that replace public ones, uint8 (synthetic, channels, height, width)."""

    @abc.abstractmethod
    def answer(self, votes: NDArray[np.int64], ledger: Ledger) -> NDArray[np.generic]:
        """Return the release of `votes` (queries, classes): int64 labels (queries,), or soft ones of its shape."""

    def shares(self, seed: int) -> tuple[str, ...]:
        images = f"images of {self.facts.dataset}, seed {seed}, {digest_of(self.images_depend())}"
        return (images, *super().shares(seed))

    def images_depend(self) -> dict[str, Any]:
        """Return what the images depend on, besides data set, seed and device, for cache keys."""
        return {"method": self.name, "synthetic": self.config.synthetic, "random": self.config.random_kind}

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        facts = private.facts
        self.check_facts()
        given = given_net(self.config, facts, context)
        start, unused = public_start.start_of(self.config, facts, context), context.streams.torch("unused")
        public_start.make_public_student(self.config, facts, context, unused)  # fails before minutes of training
        if given is None and start is None:
            make_student(self.config.teacher, facts, unused)
        say_missing_classes(self.config.teachers, facts, context)
        images = self.images(private, ledger, context)
        asked = context.streams.numpy("queries").permutation(len(images))[: self.config.queries]
        queries = images[torch.from_numpy(asked)]
        if given is not None:
            found = OneTeacher(given, context).logits(queries).argmax(2).numpy()
        else:
            with labelling(self.config, private, context) as label:
                found = label(queries)
        votes = count_votes(found, facts.classes)
        labels = torch.from_numpy(self.answer(votes, ledger))
        triples = self.triples(images, context) if self.config.vae and self.config.regularise else None
        student, options = self.learn(queries, labels, triples, context)
        extras = {"query_answers": labels}
        if getattr(self.config, "images", "") != "private":  # private ones are never released
            extras["synthetic_images"] = images[:SHOWN].clone()
        return Released(student, self.config.student, options, extras=extras)

    def triples(self, images: torch.Tensor, context: Context) -> Triples:
        """Return the reconstructed triples of all images (Eq. 4), cached across epsilons."""
        names = ("vae_steps", "vae_units", "latent", "radius", "perturbation", "student_batch", "vae_lr")
        depends = self.images_depend() | {name: getattr(self.config, name) for name in names}
        depends |= {"seed": context.streams.seed, "device": context.device.type}
        depends |= public_start.start_depends(self.config, self.facts, context)

        def make() -> dict[str, NDArray[Any]]:
            with seeded(context.streams.torch("vae/start")):
                vae: VAE = VAE(*self.facts.shape, latent=self.config.latent, units=self.config.vae_units)
            order = context.streams.torch("vae/order")
            printed = self.config.perturbation == "printed"
            radius: float | Literal["printed"] = "printed" if printed else self.config.radius
            # Keep open until the triples are stored: the autoencoder is not cached.
            with context.checkpoint("vae", depends) as checkpoint:
                with context.progress.stage("autoencoder", self.config.vae_steps) as stage:
                    train_vae(
                        vae, images, self.config.vae_steps, self.config.student_batch, self.config.vae_lr, order,
                        device=context.device, stage=stage, checkpoint=checkpoint,
                    )  # fmt: skip
                with context.progress.stage("triples", len(images)) as stage:
                    made = make_triples(vae, images, radius, order, device=context.device, stage=stage)
            return {"plain": made.plain.numpy(), "tangent": made.tangent.numpy(), "normal": made.normal.numpy()}

        found = context.cache.get("triples", depends, make)
        return Triples(*(torch.from_numpy(found[name]) for name in ("plain", "tangent", "normal")))

    def learn(
        self, images: torch.Tensor, labels: torch.Tensor, triples: Triples | None, context: Context
    ) -> tuple[torch.nn.Module, dict[str, Any]]:
        """Return a student trained by Eq. 5 and 6, and its timm options. Uses nothing private."""
        first = context.streams.torch("student/start")
        student, options = public_start.make_public_student(self.config, self.facts, context, first)
        trained = student
        if isinstance(student, OnFixedMap):
            see = functools.partial(
                public_start.uncached_features, student.fixed, context=context, what="synthetic images"
            )
            trained, images = student.head, see(images)
            triples = None if triples is None else triples.mapped(see)
        shift = largest_shift(self.facts) if self.config.teacher_recipe == "augmented" and trained is student else 0
        settings = StudentSettings(
            steps=self.config.student_steps, batch_size=self.config.student_batch, lr=self.config.student_lr,
            optimizer=self.config.student_optimizer, regularise=self.config.regularise, shift=shift,
            reading=getattr(self.config, "reading", "dafl"),
        )  # fmt: skip
        with context.stage("student", student_depends(self.config, context), settings.steps) as (checkpoint, stage):
            train_tangent_normal(
                trained, images, labels, triples, settings, context.streams.torch("student/order"),
                device=context.device, stage=stage, checkpoint=checkpoint,
            )  # fmt: skip
        return student.eval(), options
