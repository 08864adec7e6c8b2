"""Teachers on disjoint parts of the private records: training, cache, shards. One record changes one teacher."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.config import as_dict
from bench.interface import Context, Facts, FitSettings, Method, PrivateData, PublicData, partition
from bench.methods.shared.settings_checks import check_parts
from bench.methods.shared.starts_public import public_start
from bench.models.build import build
from bench.storage.cache import digest_of
from bench.storage.checkpoint import Checkpoint, input_digest
from bench.training.ensemble import Ensemble, shard_range, train_teachers
from bench.training.processes import worker_pool
from bench.training.teacher import TeacherTask
from bench.training.vectorised import VERSION

Arrays = dict[str, NDArray[Any]]

CHUNK = 10  # teachers per artefact; a killed run loses at most this many
LARGE = 10_000_000  # parameters from which each net is its own artefact, so that a shard can be one teacher
WATCHED = 1000  # public images whose labels show when a teacher has settled


class TeacherConfig(Protocol):
    """The fields that the config of an ensemble method must have."""

    @property
    def teachers(self) -> int:
        """Number of teachers."""

    @property
    def teacher(self) -> str:
        """Name of the teachers' net."""

    def teacher_settings(self, part: int, facts: Facts) -> FitSettings:
        """Return how a teacher of `part` records is trained."""


class EnsembleMethod(Method):
    """A method with an ensemble that is shared across epsilons, aggregators and methods."""

    shardable = True

    def check_facts(self) -> None:
        """Raise :class:`BenchError` if there are more teachers than records."""
        check_parts(self)

    def shares(self, seed: int) -> tuple[str, ...]:
        meant = {name: value for name, value in as_dict(self.config).items() if name.startswith("teacher")}
        if meant.get("teacher_recipe") != "augmented":  # then recipes differ by method
            meant["recipe"] = type(self.config).teacher_settings.__qualname__
        return (f"teachers of {self.facts.dataset}, seed {seed}, {digest_of(meant)}",)

    def make_shard(self, private: PrivateData, public: PublicData, context: Context, shard: int, shards: int) -> None:
        if self.given_teacher() is not None:
            return
        chunk = teachers_per_artefact(self.config, private.facts, context.device)
        numbers = shard_range(self.config.teachers, shard, shards, chunk)
        if numbers:
            with teacher_pool(self.config, context) as pool:
                watched = watched_images(self.config, public)
                teachers = train_ensemble(self.config, private, context, pool, numbers, watched)
                self.label_in_shard(teachers, numbers, private, public, context, pool)

    def label_in_shard(
        self, teachers: Ensemble, numbers: range, private: PrivateData, public: PublicData, context: Context,
        pool: ProcessPoolExecutor | None,
    ) -> None:  # fmt: skip
        """Store a shard's labels of public images if the method needs nothing else. For the ledger only."""


def quick_teachers(facts: Facts) -> int:
    """Return the number of teachers in ``quick``: one per 25 records, at most 250."""
    return min(250, max(2, facts.private_records // 25))


def tiny_teachers(facts: Facts) -> int:
    """Return the number of teachers in ``tiny``: one per 4 records, at most 10."""
    return min(10, max(2, facts.private_records // 4))


def augmented_settings(steps: int, batch_size: int, lr: float, facts: Facts) -> FitSettings:
    """Return our few-step training of a teacher: momentum, cosine decay to zero, random shifts, smoothed labels."""
    return FitSettings(
        steps=steps, batch_size=batch_size, lr=lr, momentum=0.9, schedule="cosine", shift=largest_shift(facts),
        label_smoothing=0.1,
    )  # fmt: skip


def largest_shift(facts: Facts) -> int:
    """Return the largest shift of training images: 2 pixels, or 1 if the image is small."""
    return 2 if min(facts.shape[1:]) >= 16 else 1


def say_missing_classes(teachers: int, facts: Facts, context: Context) -> None:
    """Note how many teachers are expected to lack a class, computed from public numbers, not from labels."""
    part = facts.private_records // teachers
    lacking = teachers * (1 - (1 - (1 - 1 / facts.classes) ** part) ** facts.classes)
    if lacking >= 0.5:
        context.note(
            f"with {part} records each, about {lacking:.0f} of {teachers} teachers lack a class, were all "
            "classes equally common; such a teacher does not vote for it"
        )


def watched_images(config: object, public: PublicData) -> torch.Tensor | None:
    """Return the public images (at most 1,000) whose labels show when a teacher has settled; None without that rule."""
    return None if getattr(config, "teacher_settle", None) is None else public.images[:WATCHED].clone()


def train_ensemble(
    config: TeacherConfig, private: PrivateData, context: Context, pool: ProcessPoolExecutor | None = None,
    only: range | None = None, watched: torch.Tensor | None = None,
) -> Ensemble:  # fmt: skip
    """Return the teachers (or `only` some), each trained on its own part, cached by chunk. For the ledger only."""
    depends = ensemble_depends(config, private, context)
    if watched is not None:
        depends["watched"] = input_digest([watched])()
    chunk = teachers_per_artefact(config, private.facts, context.device)
    parts = partition(len(private), config.teachers, depends["partition"])
    settings = config.teacher_settings(len(private) // config.teachers, private.facts)
    start = public_start.start_of(config, private.facts, context)
    task = TeacherTask(
        config.teacher if start is None else "above_frozen", private.facts.classes,
        settings if start is None else start.settings(settings), {} if start is None else start.options,
        device=str(context.device), precision=context.precision, devices=context.devices,
        batch_statistics=getattr(config, "batch_statistics", False),
        standardised=getattr(config, "teacher_votes", "plain") == "standardised",
    )  # fmt: skip
    # Frozen layers run once for all teachers; each teacher still trains only on its own records.
    images = private.images if start is None else start.inputs(private.images, context)
    if start is not None and watched is not None:
        watched = start.see(watched, context)

    def keep(first: int, last: int, make: Callable[[], Arrays]) -> Arrays:
        return context.cache.get("teachers", {**depends, "first": first, "last": last}, make)

    def find(first: int, last: int) -> Arrays | None:
        return context.cache.find("teachers", {**depends, "first": first, "last": last})

    def checkpoint(kind: str, number: int) -> Checkpoint:
        return context.checkpoint(kind, {**depends, "chunk": chunk, "number": number})

    wanted = range(config.teachers) if only is None else only
    with contextlib.ExitStack() as open_until_done:
        if task.together:  # many chunks train before any is cached: keep other processes from repeating this
            making = context.cache.making("ensemble", {**depends, "of": [wanted.start, wanted.stop]})
            open_until_done.enter_context(making)
        stage = open_until_done.enter_context(context.progress.stage("teachers", len(wanted)))
        ensemble = train_teachers(
            task, images, private.labels, parts, context.streams.child("teachers"), chunk=chunk, keep=keep,
            find=find, pool=pool, stage=stage, say=context.progress.say, only=wanted, watched=watched,
            checkpoint=checkpoint,
        )  # fmt: skip
    return ensemble if start is None else replace(ensemble, see=lambda asked: start.see(asked, context))


@contextlib.contextmanager
def labelling(
    config: TeacherConfig, private: PrivateData, context: Context, watched: torch.Tensor | None = None
) -> Iterator[Callable[[torch.Tensor], NDArray[np.int64]]]:
    """Yield a function that returns the ensemble's labels (teachers, n) for n images. Private: for the ledger only.

    Its first call starts the workers and trains or loads the teachers, which takes seconds.
    """
    with contextlib.ExitStack() as until_done:

        @functools.cache
        def trained() -> tuple[Ensemble, ProcessPoolExecutor | None]:
            pool = until_done.enter_context(teacher_pool(config, context))
            return train_ensemble(config, private, context, pool, watched=watched), pool

        def labels(images: torch.Tensor) -> NDArray[np.int64]:
            teachers, pool = trained()
            with context.progress.stage("votes", config.teachers) as stage:
                return teachers.labels(images, pool, stage)

        yield labels


def teachers_per_artefact(config: TeacherConfig, facts: Facts, device: torch.device) -> int:
    """Return how many teachers share an artefact, from the net's size, which is public."""
    if device.type == "cpu":  # several processes train one chunk each
        return CHUNK
    with torch.device("meta"):
        net = build(config.teacher, facts.classes, facts.shape[0], facts.shape[1:])
    return 1 if sum(parameter.numel() for parameter in net.parameters()) >= LARGE else CHUNK


def ensemble_depends(config: TeacherConfig, private: PrivateData, context: Context) -> dict[str, Any]:
    """Return an ensemble's cache-key dependencies; default arithmetic adds none, so old artefacts stay valid."""
    arithmetic: dict[str, Any] = {}
    if context.precision != "float32":
        arithmetic["precision"] = context.precision
    if len(context.devices) > 1:
        arithmetic["devices"] = len(context.devices)
    elif context.device.type == "cuda":
        arithmetic["batched"] = VERSION
    return {
        "partition": f"{private.facts.dataset}/teachers/{context.streams.seed}",
        "teachers": config.teachers,
        "net": config.teacher,
        "settings": repr(config.teacher_settings(len(private) // config.teachers, private.facts)),
        "seed": context.streams.seed,
        # Random streams differ between device types.
        "device": context.device.type,
        **arithmetic,
        **public_start.start_depends(config, private.facts, context),
    }


@contextlib.contextmanager
def teacher_pool(config: TeacherConfig, context: Context) -> Iterator[ProcessPoolExecutor | None]:
    """Open worker processes for training teachers; none for a few teachers, because starting one takes seconds."""
    workers = context.workers if config.teachers > 2 * CHUNK and len(context.devices) < 2 else 1
    with worker_pool(workers, context.device.type) as pool:
        yield pool


def quick_settings(facts: Facts) -> dict[str, Any]:
    """Return the changes of ``quick``: small nets, and fewer teachers if records are few."""
    teachers = quick_teachers(facts)
    return {
        "teachers": teachers, "teacher": "small_cnn", "teacher_recipe": "augmented", "teacher_steps": 240,
        "teacher_batch": min(60, max(4, facts.private_records // teachers * 4 // 5)), "teacher_lr": 0.1,
        "student": "small_cnn", "student_training": "self-training",
    }  # fmt: skip


def tiny_settings(facts: Facts) -> dict[str, Any]:
    """Return the changes of ``tiny``: ``quick`` with few teachers and short training."""
    return {
        **quick_settings(facts), "teachers": tiny_teachers(facts), "teacher_steps": 5, "student_training": "supervised",
        "student_epochs": 1,
    }  # fmt: skip
