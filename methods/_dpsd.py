"""What the DPSD methods share: the alternation of Algorithm 1 between teacher, student and generator.

A subclass says how a batch of generated images is annotated; that is the only place where a teacher, and so private
data, is asked. Student, generator and latent inputs are updated from the annotations alone.
"""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bench.cache import digest_of
from bench.config import setting
from bench.context import Context
from bench.errors import BenchError
from bench.interface import Method
from bench.student import make_student
from bench.types import Facts, PrivateData, PublicData, Released
from methods._students import student_depends

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from bench.privacy.ledger import Ledger

    Annotate = Callable[[Tensor, Tensor], Tensor]
    """From images (n, channels, height, width) and student probabilities (n, classes) to soft labels (n, classes)."""

CITATION = (
    "Liu, Ge, Wang, Li, Liu, Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation"
)


@dataclass(frozen=True)
class AlternationConfig:
    """Settings of Algorithm 1; annotation has its own in each method."""

    teacher: str = setting("resnet34", "section IV-A: ResNet34 for all but ImageNet")
    teacher_epochs: float = setting(10.0, "ours: the paper does not print how teachers are trained")
    teacher_lr: float = setting(0.05, "ours: the paper does not print how teachers are trained")
    student: str = setting("small_cnn", "ours: III-D says a three-layer CNN, IV-A that of DataLens, unprinted")
    iterations: int = setting(200, "section IV-A: T")
    batch: int = setting(256, "section IV-A: b")
    k: int | None = setting(None, "section IV-A: 3 for 3 to 10 classes, 2 for 2, 50 for CIFAR100, 300 for ImageNet")
    amount: int | None = setting(None, "Fig. 5, amount of synthetic data: queries asked, then used again; all b T")
    student_lr: float = setting(0.1, "section IV-A: gamma_s")
    generator_lr: float = setting(0.01, "section IV-A: gamma_g")
    optimizer: Literal["adam", "sgd"] = setting("adam", "section IV-A; Algorithm 1 writes plain gradient steps")
    latent_size: int = setting(100, "ours: not printed; that of DAFL")
    generator_width: int = setting(128, "ours: not printed; that of DAFL")
    train_latents: bool = setting(True, "Algorithm 1, line 6: the random vectors are trained")
    one_hot_loss: bool = setting(True, "Eq. 8, first term; Table VI leaves it out")
    entropy_loss: bool = setting(True, "Eq. 8, second term; Table VI leaves it out")
    activation_loss: bool = setting(True, "Eq. 8, third term; Table VI leaves it out")
    generator_loss: Literal["dafl", "printed"] = setting("dafl", "Eq. 8 as its text says; its formula says otherwise")
    random_share: float = setting(0.0, "ours: share of a batch made by random processes, not the generator")

    def __post_init__(self) -> None:
        for name in ("iterations", "batch", "generator_width"):
            if getattr(self, name) < 1:
                raise BenchError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("teacher_epochs", "teacher_lr", "student_lr", "generator_lr"):
            positive(name, getattr(self, name))
        if self.amount is not None and self.amount < 1:
            raise BenchError(f"amount must be at least 1, or none for all queries, not {self.amount}.")
        if not 1 <= self.latent_size <= 4096:
            raise BenchError(f"latent_size must lie in 1..4096, which the generator takes, not {self.latent_size}.")
        if not 0 <= self.random_share < 1:
            raise BenchError(f"random_share must be at least 0 and below 1, not {self.random_share}.")
        if self.generated < 2:
            raise BenchError(
                f"a batch of {self.batch} with random_share {self.random_share} leaves {self.generated} generated "
                "images; the generator's batch normalisation needs 2. Raise batch."
            )

    @property
    def generated(self) -> int:
        """Images of a batch that the generator makes."""
        return self.batch - round(self.batch * self.random_share)

    @property
    def asked(self) -> int:
        """Batches that a teacher is asked about: all, or the first that reach `amount`."""
        return self.iterations if self.amount is None else min(self.iterations, -(-self.amount // self.batch))

    def top_k(self, facts: Facts) -> int:
        """Return k, the paper's where none is set. Raises :class:`BenchError` for one outside 2..classes."""
        classes = facts.classes
        printed = 300 if classes >= 1000 else 50 if classes >= 100 else min(3, classes)
        k = printed if self.k is None else self.k
        if not 2 <= k <= classes:
            raise BenchError(f"k must lie in 2..{classes}, the number of classes of {facts.dataset}, not {k}.")
        return k


def positive(name: str, value: float) -> None:
    """Raise :class:`BenchError` unless `value` is positive and finite."""
    if not (math.isfinite(value) and value > 0):
        raise BenchError(f"{name} must be positive and finite, not {value}.")


def quick_settings(facts: Facts) -> dict[str, Any]:
    """Return what ``quick`` changes: small nets, a slower optimiser, and mostly images of random processes.

    On the generator's images alone the student stays near 20% on MNIST, without any noise: it sees what it already
    believes. See the reproduction notes.
    """
    return {
        "teacher": "small_cnn",
        "teacher_epochs": 3.0 if facts.private_records > 10_000 else 30.0,
        "student_lr": 0.002,
        "generator_lr": 0.001,
        "generator_width": 32,
        "random_share": 0.75,
        "iterations": 300,
    }


def tiny_settings(facts: Facts) -> dict[str, Any]:
    """Return what ``tiny`` changes."""
    return {**quick_settings(facts), "teacher_epochs": 1.0, "iterations": 3, "batch": 16, "generator_width": 8}


class Alternation(Method):
    """A method that runs Algorithm 1."""

    public_data: ClassVar[str] = "none"
    releases_generator: ClassVar[bool] = True

    @classmethod
    def shares(cls, config: Any, facts: Facts, seed: int) -> tuple[str, ...]:
        """Return the teacher, whom cells of other epsilons and annotations ask too."""
        meant = [config.teacher, config.teacher_epochs, config.teacher_lr]
        return (f"teacher of {facts.dataset}, seed {seed}, {digest_of(meant)}",)

    @abc.abstractmethod
    def annotator(self, config: Any, private: PrivateData, ledger: Ledger, context: Context) -> Annotate:
        """Return what annotates a batch: it asks the teacher, through the ledger."""

    @abc.abstractmethod
    def charge(self, config: Any, facts: Facts, ledger: Ledger) -> None:
        """Charge `ledger` for one annotated batch, asking nobody: for answers that a stopped run had."""

    def train_student(
        self, config: Any, private: PrivateData, public: PublicData, ledger: Ledger, context: Context
    ) -> Released:
        """Run the alternation and release student, generator and some of its images."""
        from bench.models.generators import DataFreeGenerator
        from bench.seeds import seeded
        from methods._alternation import Alternating, Resumption

        config.top_k(private.facts)
        student, options = make_student(config.student, private.facts, context.streams.torch("student/start"))
        with seeded(context.streams.torch("generator/start")):
            generator = DataFreeGenerator(*private.facts.shape, config.latent_size, config.generator_width)
            xavier(student)
            xavier(generator)
        annotate = self.annotator(config, private, ledger, context)

        def charge(batches: int) -> None:
            with ledger.charging_again():
                for _ in range(batches):
                    self.charge(config, private.facts, ledger)

        with context.checkpoint("alternation", {"method": self.name, **student_depends(config, context)}) as checkpoint:
            run = Alternating(
                config,
                student.to(context.device),
                generator.to(context.device),
                self.discriminator(config, private, student, ledger, context),
                annotate,
                private.facts,
                context,
                Resumption(checkpoint, charge, ledger),
            )
            images = run.alternate()
        return Released(
            student.eval(),
            config.student,
            options,
            generator=generator.eval() if self.releases_generator else None,
            extras={"synthetic_images": images} if self.releases_generator else {},
        )

    def discriminator(
        self, config: Any, private: PrivateData, student: nn.Module, ledger: Ledger, context: Context
    ) -> nn.Module:
        """Return the classifier that drives the generator: the student, which knows released answers only."""
        return student


def xavier(net: nn.Module) -> None:
    """Start the dense and convolutional layers of `net` as Algorithm 1, line 1 says; torch's global generator."""
    from torch import nn

    for layer in net.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def train_teacher(
    config: AlternationConfig,
    private: PrivateData,
    context: Context,
    part: NDArray[np.int64] | None = None,
    name: str = "teacher",
) -> nn.Module:
    """Return a teacher trained on the records that `part` numbers (all without it), an artefact. Private.

    `name` names its stream of random numbers, its artefact and its stage.
    """
    import torch

    from bench.distributed import fit_on_devices
    from bench.training import FitSettings, fit

    facts, streams = private.facts, context.streams.child(name)
    model, _ = make_student(config.teacher, facts, streams.torch("weights"))
    settings = FitSettings(epochs=config.teacher_epochs, batch_size=128, lr=config.teacher_lr)
    depends = {
        "name": name,
        "net": config.teacher,
        "settings": repr(settings),
        "seed": context.streams.seed,
        "device": context.device.type,
    }
    if len(context.devices) > 1:
        depends["devices"] = len(context.devices)

    def make() -> dict[str, NDArray[Any]]:
        # Not `model` itself: training lays its weights out in another order in memory, sums then round differently, and
        # a teacher that was just trained would answer otherwise than the same one from the cache.
        net = copy.deepcopy(model)
        rows = torch.arange(len(private)) if part is None else torch.from_numpy(part)
        images, labels, order = private.images[rows], private.labels[rows], streams.torch("order")
        # The number of a client's records follows from their labels; a stage that showed it would print it.
        with context.checkpoint("teacher", depends) as checkpoint, context.progress.stage(name, 1) as stage:
            # One that diverges is still asked: were it an error, one record could decide whether there is a student.
            if len(context.devices) > 1:
                fit_on_devices(net, images, labels, settings, order, context.devices, must_converge=False)
            else:
                fit(
                    net, images, labels, settings, order, device=context.device, must_converge=False,
                    checkpoint=checkpoint,
                )  # fmt: skip
            stage.advance()
        return {key: value.cpu().numpy() for key, value in net.state_dict().items()}

    arrays = context.cache.get("teacher", depends, make)
    model.load_state_dict({key: torch.from_numpy(value) for key, value in arrays.items()})
    return model.to(context.device).eval().requires_grad_(False)
