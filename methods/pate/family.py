"""Shared by the PATE family: the ensemble, its votes, the choice of queries, and the student.

Only :meth:`PATEFamily.answer` releases private data; queries come from a public random stream, never from votes.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.seeds import seeded
from bench.interface import (
    BenchError,
    Context,
    Facts,
    FitSettings,
    Ledger,
    PrivateData,
    PublicData,
    PublicKind,
    Released,
    fit,
    make_student,
    setting,
)
from bench.methods.shared.settings_checks import student_depends
from bench.methods.shared.start_config import PublicStartConfig
from bench.methods.shared.starts_public import StartsPublic, public_start
from bench.methods.shared.teachers import (
    EnsembleMethod,
    augmented_settings,
    ensemble_depends,
    labelling,
    largest_shift,
    quick_settings,
    say_missing_classes,
    teachers_per_artefact,
    tiny_settings,
    watched_images,
)
from bench.models.feature_net import OnFixedMap
from bench.models.generators import generator_for
from bench.training.early_stopping import Settle
from bench.training.ensemble import Ensemble, count_votes
from bench.training.improved_gan import ImprovedGANSettings, train_improved_gan
from bench.training.self_training import SelfTrainingSettings, train_self_trained

CODE = "published code of PATE 2017 (deep_cnn.py, train_teachers.py)"
GAN = "published code of Salimans et al. 2016 (train_mnist_fm_custom_labels.py)"

Ints = NDArray[np.int64]
Student = tuple[torch.nn.Module, str, dict[str, Any]]  # the net, its timm name and options
BLOCK = 500  # queries per batch of teacher predictions


@dataclass(frozen=True)
class PATEFamilyConfig(PublicStartConfig):
    """Settings of teachers and student. The defaults are those of PATE 2017's MNIST experiment."""

    teachers: int = setting(250, "PATE 2017, section 4.1", ge=1)
    queries: int = setting(100, "PATE 2017, section 4.2: labels of the MNIST student; calibrated to the budget", ge=1)
    teacher: str = setting("pate_mnist", f"PATE 2017, section 4; layer sizes: {CODE}")
    teacher_recipe: Literal["published", "augmented"] = setting(
        "published", f"{CODE}: batches in order, plain SGD, staircase, averaged weights, decayed dense layers"
    )
    teacher_steps: int = setting(3000, CODE, ge=1)
    teacher_batch: int = setting(128, CODE, ge=1)
    teacher_lr: float = setting(0.05, CODE, gt=0)
    teacher_settle: int | None = setting(
        None, "ours: stop a teacher whose labels of public images stay the same at this many checks, 100 steps apart; "
        "none: never", later=True, ge=1
    )  # fmt: skip
    student: str = setting("salimans_mlp", f"PATE 2017, section 4.2, through the {GAN}")
    student_training: Literal["improved-gan", "self-training", "supervised"] = setting(
        "improved-gan", "PATE 2017, sections 2.2 and 4.2; self-training is ours, for the quick preset"
    )
    student_lr: float = setting(0.0006, f"ours: the 0.003 of the {GAN} needs 100 more epochs, and is then better", gt=0)
    student_epochs: int = setting(
        600, "PATE 2017's published code, README: the MNIST student; passes over public data", ge=1
    )

    def teacher_settings(self, part: int, facts: Facts) -> FitSettings:
        """Return how a teacher of `part` records is trained."""
        settle = None if self.teacher_settle is None else Settle(self.teacher_settle)
        if self.teacher_recipe == "augmented":
            made = augmented_settings(self.teacher_steps, self.teacher_batch, self.teacher_lr, facts)
            return replace(made, settle=settle)
        # The published code divides the learning rate by ten every 350 epochs of the teacher's own part.
        return FitSettings(
            steps=self.teacher_steps, batch_size=self.teacher_batch, lr=self.teacher_lr, momentum=0.0,
            schedule="staircase", decay_steps=max(1, 350 * part // self.teacher_batch), order="sequential", ema=0.9999,
            dense_decay=0.004, settle=settle,
        )  # fmt: skip


class PATEFamily(StartsPublic, EnsembleMethod):
    """Teachers on disjoint parts, a noisy aggregate of their votes on public images, a student on the answers."""

    groups = ("pate-family",)  # `pate` is already a method's name
    public_data: ClassVar[str] = "unlabelled images of the target's distribution"
    public_data_kinds: ClassVar[tuple[PublicKind, ...]] = (PublicKind.UNLABELLED,)
    votes_for_unseen: ClassVar[bool] = False  # whether priors let teachers vote for classes they have no records of

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {"quick": cls.scaled(quick_settings(facts), facts), "tiny": cls.scaled(tiny_settings(facts), facts)}

    @classmethod
    @abc.abstractmethod
    def scaled(cls, settings: dict[str, Any], facts: Facts) -> dict[str, Any]:
        """Return the preset `settings` with an aggregator that suits their number of teachers."""

    def check_facts(self) -> None:
        """Raise :class:`BenchError` if the data set has too few records or no public images."""
        super().check_facts()
        if self.facts.public_records == 0:
            raise BenchError(
                f"{self.name} asks its teachers about unlabelled public images, and the split of "
                f"{self.facts.dataset} has none. Choose a data set with public images, or a data-free method."
            )

    @abc.abstractmethod
    def answer(self, votes: Ints, ledger: Ledger) -> Ints:
        """Return the released label of each query, negative where unanswered; `votes` is (queries, classes)."""

    def check_models(self, context: Context) -> None:
        """Raise :class:`BenchError` if a net cannot be built; runs before minutes of training and any charge."""
        unused = context.streams.torch("unused")
        student, _ = public_start.make_public_student(self.config, self.facts, context, unused)
        if isinstance(student, OnFixedMap) and self.config.student_training != "supervised":
            raise BenchError(
                f"the student {self.config.student} is a head on fixed features and learns from the answers alone, not "
                f"by {self.config.student_training}. Give --set {self.name}.student_training=supervised; "
                "student_epochs is the number of passes over the answers."
            )
        if public_start.start_of(self.config, self.facts, context) is None:
            make_student(self.config.teacher, self.facts, unused)

    def query_source(self, public: PublicData) -> dict[str, Any]:
        """Return what identifies the public images and how teachers label them, for cache keys."""
        return {"public": len(public)}

    def votes(self, private: PrivateData, public: PublicData, order: Ints, context: Context) -> Ints:
        """Return the votes (queries, classes) on the first queries in `order`, positions in the pool.

        Private: one record changes one teacher. Cached in blocks that cells with other query counts share. If shards
        kept labels, votes are assembled from them without loading weights.
        """

        def labels_of(block: Ints) -> Ints:
            depends = self._labels_depend(private, public, block, context)

            def make() -> dict[str, NDArray[Any]]:
                parts = [context.cache.find("teacher-labels", {**depends, **part}) for part in chunks]
                kept = [part["labels"] for part in parts if part is not None]
                if len(kept) == len(parts):
                    return {"labels": np.concatenate(kept)}
                return {"labels": labels(public.images[block]).astype(np.int16)}

            return context.cache.get("teacher-labels", depends, make)["labels"].astype(np.int64)

        chunks = self._chunks(private, context, range(self.config.teachers))
        with labelling(self.config, private, context, watched_images(self.config, public)) as labels:
            blocks = [labels_of(block) for block in query_blocks(self.config.queries, order)]
        return count_votes(np.concatenate(blocks, axis=1)[:, : self.config.queries], private.facts.classes)

    def label_in_shard(
        self, teachers: Ensemble, numbers: range, private: PrivateData, public: PublicData, context: Context,
        pool: ProcessPoolExecutor | None,
    ) -> None:  # fmt: skip
        chunks = self._chunks(private, context, numbers)
        blocks = query_blocks(self.config.queries, query_order(public, context))
        with context.progress.stage("votes", len(blocks) * len(numbers)) as stage:
            for block in blocks:
                depends = self._labels_depend(private, public, block, context)
                for part in chunks:

                    def make(part: dict[str, int] = part, block: Ints = block) -> dict[str, NDArray[Any]]:
                        some = teachers.part(part["first"] - numbers.start, part["last"] - numbers.start)
                        return {"labels": some.labels(public.images[block], pool, stage).astype(np.int16)}

                    context.cache.get("teacher-labels", {**depends, **part}, make)

    def _chunks(self, private: PrivateData, context: Context, numbers: range) -> list[dict[str, int]]:
        """Return the first and the last teacher (exclusive) of each artefact with labels of the teachers `numbers`."""
        chunk = teachers_per_artefact(self.config, private.facts, context.device)
        starts = range(numbers.start, numbers.stop, chunk)
        return [{"first": first, "last": min(first + chunk, numbers.stop)} for first in starts]

    def _labels_depend(self, private: PrivateData, public: PublicData, block: Ints, context: Context) -> dict[str, Any]:
        asked = hashlib.sha256(block.tobytes()).hexdigest()
        return {**ensemble_depends(self.config, private, context), **self.query_source(public), "asked": asked}

    def student(self, public: PublicData, asked: torch.Tensor, labels: torch.Tensor, context: Context) -> Student:
        """Return a student trained on `labels` (k,) of pool positions `asked` (k,), its timm name and options."""
        start, order = context.streams.torch("student/start"), context.streams.torch("student/order")
        student, options = public_start.make_public_student(self.config, self.facts, context, start)
        if isinstance(student, OnFixedMap):
            head, features = public_start.trained_part(student, public.images, context, "public")
            settings = FitSettings(epochs=self.config.student_epochs, batch_size=32, optimizer="adam", lr=1e-3)
            with context.progress.stage("student", settings.total_steps(len(asked))) as stage:
                fit(head, features[asked], labels, settings, order, device=context.device, stage=stage)
            return student, self.config.student, options
        images, pool = public.images[asked], public.images
        checkpoint = context.checkpoint("student", student_depends(self.config, context))
        if self.config.student_training == "self-training":
            training = self_training(self.facts)
            total = training.total_steps(len(images), len(pool), self.facts.classes)
            with checkpoint, context.progress.stage("student", total) as stage:
                student = train_self_trained(
                    lambda: make_student(self.config.student, self.facts, start)[0], images, labels, pool,
                    self.facts.classes, training, order, device=context.device, stage=stage, checkpoint=checkpoint,
                )  # fmt: skip
        elif self.config.student_training == "supervised":
            fitting = FitSettings(
                epochs=self.config.student_epochs, batch_size=32, optimizer="adam", lr=1e-3,
                shift=largest_shift(self.facts), label_smoothing=0.1,
            )  # fmt: skip
            with checkpoint, context.progress.stage("student", fitting.total_steps(len(images))) as stage:
                fit(student, images, labels, fitting, order, device=context.device, stage=stage, checkpoint=checkpoint)
        else:
            gan = ImprovedGANSettings(epochs=self.config.student_epochs, lr=self.config.student_lr)
            with seeded(context.streams.torch("generator/start")):
                generator = generator_for(*self.facts.shape)
            with checkpoint, context.progress.stage("student", gan.total_steps(len(pool))) as stage:
                train_improved_gan(
                    student, generator, images, labels, pool, gan, order, device=context.device, stage=stage,
                    checkpoint=checkpoint,
                )  # fmt: skip
        return student, self.config.student, options

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        self.check_facts()
        self.check_models(context)
        if not self.votes_for_unseen:
            say_missing_classes(self.config.teachers, private.facts, context)
        order = query_order(public, context)
        queries = order[: self.config.queries]
        answers = self.answer(self.votes(private, public, order, context), ledger)
        given = answers >= 0
        if not given.any():
            raise BenchError(
                "the aggregator answered none of the queries: the student has no label. Lower the threshold, or ask "
                "for a larger epsilon."
            )
        asked, labels = torch.from_numpy(queries[given]), torch.from_numpy(answers[given])
        student, name, options = self.student(public, asked, labels, context)
        return Released(student, name, options, extras={"query_indices": asked, "query_labels": labels})


def query_order(public: PublicData, context: Context) -> Ints:
    """Return the positions of the public images (n,) in the order of the queries."""
    return context.streams.numpy("queries").permutation(len(public)).astype(np.int64)


def query_blocks(queries: int, order: Ints) -> list[Ints]:
    """Return the blocks of `order` that hold the queries."""
    return [order[first : first + BLOCK] for first in range(0, queries, BLOCK)]


def self_training(facts: Facts) -> SelfTrainingSettings:
    """Return how ``quick`` trains a student: by fewer and smaller steps on small images."""
    if largest_shift(facts) > 1:
        return SelfTrainingSettings()
    labelled = FitSettings(steps=200, batch_size=60, lr=0.05, shift=1, label_smoothing=0.1)
    pool = FitSettings(steps=300, batch_size=100, lr=0.05, shift=1)
    return SelfTrainingSettings(labelled=labelled, pool=pool, graph_below=10)
