"""What the methods of the PATE family share: the ensemble, its votes, the choice of queries, the student.

Private records reach the outside through one place only: the votes that a subclass hands to the ledger in
:meth:`PATEFamily.answer`. Queries are chosen by a public stream of random numbers, never by looking at votes.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from bench.core.config import as_dict
from bench.interface import (
    BenchError,
    Context,
    Facts,
    Method,
    PrivateData,
    PublicData,
    PublicKind,
    Released,
    make_student,
    setting,
)
from bench.storage.cache import digest_of
from methods._students import student_depends

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    import torch
    from numpy.typing import NDArray

    from bench.interface import FitSettings, Ledger
    from bench.training.checkpoint import Checkpoint
    from bench.training.ensemble import Ensemble
    from bench.training.self_training import SelfTrainingSettings

CODE = "published code of PATE 2017 (deep_cnn.py, train_teachers.py)"
GAN = "published code of Salimans et al. 2016 (train_mnist_fm_custom_labels.py)"
CHUNK = 10
"""Teachers per artefact: a killed run loses the training of so many at most."""
LARGE = 10_000_000
"""Parameters from which a net is an artefact by itself: then a shard can be one teacher."""
WATCHED = 1000
"""Public images that tell when a teacher has settled."""


class TeacherConfig(Protocol):
    """What of a method's config says how its teachers are trained."""

    @property
    def teachers(self) -> int: ...
    @property
    def teacher(self) -> str: ...
    def teacher_settings(self, part: int, facts: Facts) -> FitSettings:
        """Return how a teacher of `part` records of data of `facts` is trained."""


@dataclass(frozen=True)
class PATEFamilyConfig:
    """Settings of teachers and student. Defaults are those of the MNIST experiment of PATE 2017."""

    teachers: int = setting(250, "PATE 2017, section 4.1")
    queries: int = setting(100, "PATE 2017, section 4.2: labels of the MNIST student; calibrated to the budget")
    teacher: str = setting("pate_mnist", f"PATE 2017, section 4; layer sizes: {CODE}")
    teacher_recipe: Literal["published", "augmented"] = setting(
        "published", f"{CODE}: batches in order, plain SGD, staircase, averaged weights, decayed dense layers"
    )
    teacher_steps: int = setting(3000, CODE)
    teacher_batch: int = setting(128, CODE)
    teacher_lr: float = setting(0.05, CODE)
    teacher_settle: int | None = setting(
        None, "ours: a teacher is done when its labels of public images stay in so many looks, 100 steps apart; none: "
        "it takes all its steps", later=True
    )  # fmt: skip
    student: str = setting("salimans_mlp", f"PATE 2017, section 4.2, through the {GAN}")
    student_training: Literal["improved-gan", "self-training", "supervised"] = setting(
        "improved-gan", "PATE 2017, sections 2.2 and 4.2; self-training is ours, for the quick preset"
    )
    student_lr: float = setting(
        0.0006, f"ours: at the 0.003 of the {GAN} our student wins over the generator at once and stays at 76%"
    )
    student_epochs: int = setting(600, "PATE 2017's published code, README: the MNIST student; passes over public data")

    def __post_init__(self) -> None:
        for name in ("teachers", "queries", "teacher_steps", "teacher_batch", "student_epochs"):
            if getattr(self, name) < 1:
                raise BenchError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.teacher_settle is not None and self.teacher_settle < 1:
            raise BenchError(f"teacher_settle must be at least 1 look, or none, not {self.teacher_settle}.")
        for name in ("teacher_lr", "student_lr"):
            if not getattr(self, name) > 0:
                raise BenchError(f"{name} must be positive, not {getattr(self, name)}.")

    def teacher_settings(self, part: int, facts: Facts) -> FitSettings:
        """Return how a teacher of `part` records of data of `facts` is trained."""
        from bench.interface import FitSettings
        from bench.training.early_stopping import Settle

        settle = None if self.teacher_settle is None else Settle(self.teacher_settle)
        if self.teacher_recipe == "augmented":
            made = augmented_settings(self.teacher_steps, self.teacher_batch, self.teacher_lr, facts)
            return replace(made, settle=settle)
        return FitSettings(
            steps=self.teacher_steps,
            batch_size=self.teacher_batch,
            lr=self.teacher_lr,
            momentum=0.0,
            schedule="staircase",
            # The published code lowers the rate tenfold every 350 epochs of the teacher's own part.
            decay_steps=max(1, 350 * part // self.teacher_batch),
            order="sequential",
            ema=0.9999,
            dense_decay=0.004,
            settle=settle,
        )


def augmented_settings(steps: int, batch_size: int, lr: float, facts: Facts) -> FitSettings:
    """Return our way to train a teacher in few steps: momentum, a cosine to zero, random shifts, smoothed labels."""
    from bench.interface import FitSettings

    return FitSettings(
        steps=steps,
        batch_size=batch_size,
        lr=lr,
        momentum=0.9,
        schedule="cosine",
        shift=largest_shift(facts),
        label_smoothing=0.1,
    )


def largest_shift(facts: Facts) -> int:
    """Return by how many pixels training images are moved at most: one where two would cut a small image."""
    return 2 if min(facts.shape[1:]) >= 16 else 1


def quick_settings(facts: Facts) -> dict[str, Any]:
    """Return what ``quick`` changes for data of `facts`: small nets, fewer teachers where records are few."""
    teachers = min(250, max(2, facts.private_records // 25))
    return {
        "teachers": teachers,
        "teacher": "small_cnn",
        "teacher_recipe": "augmented",
        "teacher_steps": 240,
        "teacher_batch": min(60, max(4, facts.private_records // teachers * 4 // 5)),
        "teacher_lr": 0.1,
        "student": "small_cnn",
        "student_training": "self-training",
    }


def tiny_settings(facts: Facts) -> dict[str, Any]:
    """Return what ``tiny`` changes for data of `facts`."""
    return {
        **quick_settings(facts),
        "teachers": min(10, max(2, facts.private_records // 4)),
        "teacher_steps": 5,
        "student_training": "supervised",
        "student_epochs": 1,
    }


class PATEFamily(Method):
    """Teachers on disjoint parts, a noisy aggregate of their votes on public images, a student on the answers."""

    public_data: ClassVar[str] = "unlabelled images of the target's distribution"
    public_data_kinds: ClassVar[tuple[PublicKind, ...]] = (PublicKind.UNLABELLED,)
    votes_for_unseen: ClassVar[bool] = False
    """Whether a teacher may vote for a class of which it has no record, by its prior."""

    @classmethod
    def check_facts(cls, config: Any, facts: Facts) -> None:
        """Raise :class:`BenchError` where the data set has too few records or no public images."""
        if config.teachers > facts.private_records:
            raise BenchError(
                f"more teachers than records: {config.teachers} teachers, {facts.private_records} private records of "
                f"{facts.dataset}. Use --set {cls.name}.teachers=N with N at most {facts.private_records}."
            )
        if facts.public_records == 0:
            raise BenchError(
                f"{cls.name} asks its teachers about unlabelled public images, and the split of {facts.dataset} has "
                "none. Choose a data set with public images, or a data-free method."
            )

    @classmethod
    def payable(cls, queries: int, facts: Facts) -> int:
        """Return `queries`, cut to the number of public images that there are."""
        return min(queries, facts.public_records)

    @classmethod
    def shares(cls, config: Any, facts: Facts, seed: int) -> tuple[str, ...]:
        """Return the ensemble, which cells of other epsilons, aggregators and methods ask too."""
        return (shared_ensemble(config, facts, seed),)

    shardable: ClassVar[bool] = True

    def make_shard(
        self, config: Any, private: PrivateData, public: PublicData, context: Context, shard: int, shards: int
    ) -> None:
        """Train a shard of the ensemble."""
        train_shard(config, private, context, shard, shards, watched_images(config, public))

    @abc.abstractmethod
    def answer(self, config: Any, votes: NDArray[np.int64], ledger: Ledger) -> NDArray[np.int64]:
        """Return the released label of each query, negative where none was given; `votes` is (queries, classes)."""

    def check_models(self, config: Any, facts: Facts, context: Context) -> None:
        """Raise :class:`BenchError` where a net cannot be made: before minutes of training, and before any charge."""
        for model in (config.teacher, config.student):
            make_student(model, facts, context.streams.torch("unused"))

    def votes(self, config: Any, private: PrivateData, public: PublicData, context: Context) -> NDArray[np.int64]:
        """Return the teachers' votes (public records, classes) on the whole public pool. Private: for the ledger only.

        One record may change one teacher's votes.
        """
        return ensemble_votes(config, private, public, context)

    def student(
        self, config: Any, public: PublicData, asked: torch.Tensor, labels: torch.Tensor, facts: Facts, context: Context
    ) -> tuple[torch.nn.Module, str, dict[str, Any]]:
        """Return a student trained on the answers, its timm name and its options. Sees nothing private.

        `asked` (k,) are positions in the public pool, `labels` (k,) the answers, int64 both.
        """
        student, options = train_on_answers(config, public, asked, labels, facts, context)
        return student, config.student, options

    def train_student(
        self, config: Any, private: PrivateData, public: PublicData, ledger: Ledger, context: Context
    ) -> Released:
        """Train the ensemble, ask it, train the student on the answers."""
        import torch

        self.check_facts(config, private.facts)
        self.check_models(config, private.facts, context)
        if not self.votes_for_unseen:
            say_missing_classes(config, private.facts, context)
        queries = context.streams.numpy("queries").permutation(len(public))[: config.queries].astype(np.int64)
        votes = self.votes(config, private, public, context)[queries]
        answers = self.answer(config, votes, ledger)
        given = answers >= 0
        if not given.any():
            raise BenchError(
                "the aggregator answered none of the queries: the student has no label. Lower the threshold, or ask "
                "for a larger epsilon."
            )
        asked, labels = torch.from_numpy(queries[given]), torch.from_numpy(answers[given])
        student, name, options = self.student(config, public, asked, labels, private.facts, context)
        return Released(student, name, options, extras={"query_indices": asked, "query_labels": labels})


def say_missing_classes(config: Any, facts: Facts, context: Context) -> None:
    """Note how many teachers will lack a class: what public numbers let one expect, never what the labels say."""
    part = facts.private_records // config.teachers
    lacking = config.teachers * (1 - (1 - (1 - 1 / facts.classes) ** part) ** facts.classes)
    if lacking >= 0.5:
        context.note(
            f"with {part} records each, about {lacking:.0f} of {config.teachers} teachers lack a class, were all "
            "classes equally common; such a teacher does not vote for it"
        )


def ensemble_votes(
    config: PATEFamilyConfig, private: PrivateData, public: PublicData, context: Context
) -> NDArray[np.int64]:
    """Return the ensemble's votes (public records, classes) on the whole public pool. Private: for the ledger only.

    The labels are an artefact, and so are the teachers: cells that differ in epsilon, aggregator or student share them.
    """
    from bench.training.ensemble import count_votes

    asked = {**ensemble_depends(config, private, context), "public": len(public)}

    def make() -> dict[str, NDArray[np.generic]]:
        with teacher_pool(config, context) as pool:
            teachers = train_ensemble(config, private, context, pool, watched=watched_images(config, public))
            with context.progress.stage("votes", config.teachers) as stage:
                return {"labels": teachers.labels(public.images, pool, stage).astype(np.int16)}

    labels = context.cache.get("teacher-labels", asked, make)["labels"].astype(np.int64)
    return count_votes(labels, private.facts.classes)


def train_ensemble(
    config: TeacherConfig,
    private: PrivateData,
    context: Context,
    pool: ProcessPoolExecutor | None = None,
    only: range | None = None,
    watched: torch.Tensor | None = None,
) -> Ensemble:
    """Return the teachers, each trained on its own part of the records. Private: only the ledger lets answers out.

    Chunks of teachers are artefacts; the processes of `pool` (see :func:`teacher_pool`) share the training. With `only`
    those of some numbers are trained, in whole chunks. `watched` are the images of :func:`watched_images`.
    """
    from bench.interface import partition
    from bench.training.ensemble import train_teachers
    from bench.training.teacher import TeacherTask

    depends = ensemble_depends(config, private, context)
    chunk = teachers_per_artefact(config, private.facts, context.device)
    parts = partition(len(private), config.teachers, depends["partition"])
    settings = config.teacher_settings(len(private) // config.teachers, private.facts)
    task = TeacherTask(
        config.teacher, private.facts.classes, settings, device=str(context.device), precision=context.precision,
        devices=context.devices,
    )  # fmt: skip
    streams = context.streams.child("teachers")

    def keep(first: int, last: int, make: Callable[[], dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        return context.cache.get("teachers", {**depends, "first": first, "last": last}, make)

    def find(first: int, last: int) -> dict[str, NDArray[Any]] | None:
        return context.cache.find("teachers", {**depends, "first": first, "last": last})

    def checkpoint(kind: str, number: int) -> Checkpoint:
        return context.checkpoint(kind, {**depends, "chunk": chunk, "number": number})

    wanted = range(config.teachers) if only is None else only
    with contextlib.ExitStack() as open_until_done:
        if task.together:  # many chunks are made at once, before any is kept: another process must not do the same
            open_until_done.enter_context(
                context.cache.making("ensemble", {**depends, "of": [wanted.start, wanted.stop]})
            )
        stage = open_until_done.enter_context(context.progress.stage("teachers", len(wanted)))
        return train_teachers(
            task, private.images, private.labels, parts, streams, chunk=chunk, keep=keep, find=find, pool=pool,
            stage=stage, say=context.progress.say, only=wanted, watched=watched,
            checkpoint=checkpoint,
        )  # fmt: skip


def watched_images(config: Any, public: PublicData) -> torch.Tensor | None:
    """Return the public images (at most 1,000) whose labels tell when a teacher has settled; None without that rule."""
    return None if config.teacher_settle is None else public.images[:WATCHED]


def teachers_per_artefact(config: TeacherConfig, facts: Facts, device: torch.device) -> int:
    """Return how many teachers are stored together: by the size of the net, which is public."""
    import torch

    from bench.models.build import build

    if device.type == "cpu":  # where a chunk is what several processes train side by side
        return CHUNK
    with torch.device("meta"):
        net = build(config.teacher, facts.classes, facts.shape[0], facts.shape[1:])
    return 1 if sum(parameter.numel() for parameter in net.parameters()) >= LARGE else CHUNK


def train_shard(
    config: TeacherConfig,
    private: PrivateData,
    context: Context,
    shard: int,
    shards: int,
    watched: torch.Tensor | None = None,
) -> None:
    """Train part number `shard` of `shards` of an ensemble: whole chunks, which the cells that need it then find."""
    from bench.training.ensemble import shard_range

    numbers = shard_range(config.teachers, shard, shards, teachers_per_artefact(config, private.facts, context.device))
    if numbers:
        with teacher_pool(config, context) as pool:
            train_ensemble(config, private, context, pool, numbers, watched)


def shared_ensemble(config: TeacherConfig, facts: Facts, seed: int) -> str:
    """Return the name of an ensemble for :meth:`bench.interface.Method.shares`; imports no torch."""
    meant = {name: value for name, value in as_dict(config).items() if name.startswith("teacher")}
    if meant.get("teacher_recipe") != "augmented":  # then each method has a recipe of its own
        meant["recipe"] = type(config).teacher_settings.__qualname__
    return f"teachers of {facts.dataset}, seed {seed}, {digest_of(meant)}"


def ensemble_depends(config: TeacherConfig, private: PrivateData, context: Context) -> dict[str, Any]:
    """Return everything that an ensemble depends on besides the data set, for keys of artefacts.

    What rounds otherwise than the loop in float32 on a CPU is named only where it is so: older artefacts stay valid.
    """
    arithmetic: dict[str, Any] = {}
    if context.precision != "float32":
        arithmetic["precision"] = context.precision
    if len(context.devices) > 1:
        arithmetic["devices"] = len(context.devices)
    elif context.device.type == "cuda":
        from bench.training.vectorised import VERSION

        arithmetic["batched"] = VERSION
    return {
        "partition": f"{private.facts.dataset}/teachers/{context.streams.seed}",
        "teachers": config.teachers,
        "net": config.teacher,
        "settings": repr(config.teacher_settings(len(private) // config.teachers, private.facts)),
        "seed": context.streams.seed,
        # The same stream of random numbers is another one on another kind of device.
        "device": context.device.type,
        **arithmetic,
    }


@contextlib.contextmanager
def teacher_pool(config: TeacherConfig, context: Context) -> Iterator[ProcessPoolExecutor | None]:
    """Open the processes that share the work on teachers: none for a handful, as starting one costs seconds."""
    from bench.training.processes import worker_pool

    workers = context.workers if config.teachers > 2 * CHUNK and len(context.devices) < 2 else 1
    with worker_pool(workers, context.device.type) as pool:
        yield pool


def _self_training(facts: Facts) -> SelfTrainingSettings:
    from bench.interface import FitSettings
    from bench.training.self_training import SelfTrainingSettings

    if largest_shift(facts) > 1:
        return SelfTrainingSettings()
    labelled = FitSettings(steps=200, batch_size=60, lr=0.05, shift=1, label_smoothing=0.1)
    return SelfTrainingSettings(
        labelled=labelled, pool=FitSettings(steps=300, batch_size=100, lr=0.05, shift=1), graph_below=10
    )


def train_on_answers(
    config: PATEFamilyConfig,
    public: PublicData,
    asked: torch.Tensor,
    labels: torch.Tensor,
    facts: Facts,
    context: Context,
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return a student trained on the answered queries, and its timm options. Sees nothing private."""
    from bench.core.seeds import seeded
    from bench.interface import FitSettings, fit
    from bench.models.generators import generator_for
    from bench.training.improved_gan import ImprovedGANSettings, train_improved_gan
    from bench.training.self_training import train_self_trained

    start, order = context.streams.torch("student/start"), context.streams.torch("student/order")
    student, options = make_student(config.student, facts, start)
    images, shift = public.images[asked], largest_shift(facts)
    checkpoint = context.checkpoint("student", student_depends(config, context))
    if config.student_training == "self-training":
        training = _self_training(facts)
        total = training.total_steps(len(images), len(public), facts.classes)
        with checkpoint, context.progress.stage("student", total) as stage:
            student = train_self_trained(
                lambda: make_student(config.student, facts, start)[0],
                images,
                labels,
                public.images,
                facts.classes,
                training,
                order,
                device=context.device,
                stage=stage,
                checkpoint=checkpoint,
            )
        return student, options
    if config.student_training == "supervised":
        fitting = FitSettings(
            epochs=config.student_epochs, batch_size=32, optimizer="adam", lr=1e-3, shift=shift, label_smoothing=0.1
        )
        with checkpoint, context.progress.stage("student", fitting.total_steps(len(images))) as stage:
            fit(student, images, labels, fitting, order, device=context.device, stage=stage, checkpoint=checkpoint)
        return student, options
    settings = ImprovedGANSettings(epochs=config.student_epochs, lr=config.student_lr)
    with seeded(context.streams.torch("generator/start")):
        generator = generator_for(*facts.shape)
    with checkpoint, context.progress.stage("student", settings.total_steps(len(public))) as stage:
        train_improved_gan(
            student, generator, images, labels, public.images, settings, order, device=context.device, stage=stage,
            checkpoint=checkpoint,
        )  # fmt: skip
    return student, options
