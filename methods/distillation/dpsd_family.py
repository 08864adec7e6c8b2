"""Algorithm 1, shared by the DPSD methods; only subclasses' annotation queries a teacher, hence private data."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.core.seeds import seeded
from bench.interface import Context, Facts, FitSettings, Ledger, PrivateData, PublicData, Released, fit
from bench.methods.distillation.alternation import Alternating
from bench.methods.distillation.alternation_config import AlternationConfig
from bench.methods.shared.given_teacher import TakesTeacher, given_net
from bench.methods.shared.settings_checks import student_depends
from bench.methods.shared.starts_public import public_start
from bench.models.feature_net import OnFixedMap
from bench.models.generators import DataFreeGenerator
from bench.storage.cache import digest_of
from bench.training.data_parallel import fit_on_devices

Annotate = Callable[[Tensor, Tensor], Tensor]  # images, student probabilities -> soft labels (n, classes)

CITATION = (
    "Liu, Ge, Wang, Li, Liu, Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation"
)


def quick_settings(facts: Facts) -> dict[str, Any]:
    """Return the changes of ``quick``: without random images the student gets 20% on MNIST, even without noise."""
    # Teachers with this many classes are slow: query few images and reuse each answer in thirty batches.
    many = {"amount": 4096, "iterations": 500} if facts.classes >= 1000 else {}
    return {
        "teacher": "small_cnn", "teacher_epochs": 3.0 if facts.private_records > 10_000 else 30.0, "student_lr": 0.002,
        "generator_lr": 0.001, "generator_width": 32, "random_share": 0.75, "iterations": 300, **many,
    }  # fmt: skip


def tiny_settings(facts: Facts) -> dict[str, Any]:
    """Return the changes of ``tiny``."""
    return {**quick_settings(facts), "teacher_epochs": 1.0, "iterations": 3, "batch": 16, "generator_width": 8}


class Alternation(TakesTeacher):
    """DPSD's loop: the student and the generator take turns, and the teacher annotates through the ledger."""

    citation = CITATION
    releases_generator: ClassVar[bool] = True

    def shares(self, seed: int) -> tuple[str, ...]:
        meant = [self.config.teacher, self.config.teacher_epochs, self.config.teacher_lr]
        return (f"teacher of {self.facts.dataset}, seed {seed}, {digest_of(meant)}",)

    @abc.abstractmethod
    def annotator(self, private: PrivateData, ledger: Ledger, context: Context) -> Annotate:
        """Return the function that annotates a batch: it queries the teacher through the ledger."""

    @abc.abstractmethod
    def charge(self, ledger: Ledger) -> None:
        """Charge `ledger` for one annotated batch of a stopped run, without querying a teacher."""

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        first = context.streams.torch("student/start")
        student, options = public_start.make_public_student(self.config, private.facts, context, first)
        with seeded(context.streams.torch("generator/start")):
            generator = DataFreeGenerator(*private.facts.shape, self.config.latent_size, self.config.generator_width)
            start_at_zero(student) if isinstance(student, OnFixedMap) else xavier(student)
            xavier(generator)
        annotate = self.annotator(private, ledger, context)

        def charge(batches: int) -> None:
            with ledger.charging_again():
                for _ in range(batches):
                    self.charge(ledger)

        depends = {"method": self.name, **student_depends(self.config, context)}
        with context.checkpoint("alternation", depends) as checkpoint:
            images = Alternating(
                self.config, student.to(context.device), generator.to(context.device),
                self.discriminator(private, student, ledger, context), annotate, private.facts, context, checkpoint,
                charge,
            ).alternate()  # fmt: skip
        return Released(
            student.eval(), self.config.student, options,
            generator=generator.eval() if self.releases_generator else None,
            extras={"synthetic_images": images} if self.releases_generator else {},
        )  # fmt: skip

    def discriminator(self, private: PrivateData, student: nn.Module, ledger: Ledger, context: Context) -> nn.Module:
        """Return the classifier that drives the generator: the student, which depends only on released answers."""
        return student


def start_at_zero(student: OnFixedMap) -> None:
    """Make the first predictions of `student`, which Eq. 2 divides by, uniform: its last layer starts at zero."""
    last = student.get_classifier()
    if any(isinstance(layer, (nn.Linear, nn.Conv2d)) and layer is not last for layer in student.head.modules()):
        xavier(student.head)
    else:
        last = student.head
    for weight in last.parameters():
        nn.init.zeros_(weight)


def xavier(net: nn.Module) -> None:
    """Initialise dense and convolutional layers of `net` as in Algorithm 1, line 1, with torch's global generator."""
    for layer in net.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def train_teacher(
    config: AlternationConfig, private: PrivateData, context: Context, part: NDArray[np.int64] | None = None,
    name: str = "teacher",
) -> nn.Module:  # fmt: skip
    """Return the given teacher, or one trained on the records `part` (default: all), cached under `name`. Private."""
    if (given := given_net(config, private.facts, context)) is not None:
        return given
    facts, streams = private.facts, context.streams.child(name)
    start, model, trained = public_start.fresh_teacher(config, facts, context, streams.torch("weights"))
    settings = FitSettings(epochs=config.teacher_epochs, batch_size=128, lr=config.teacher_lr)
    depends = {
        "name": name, "net": config.teacher, "settings": repr(settings), "seed": context.streams.seed,
        "device": context.device.type, **public_start.start_depends(config, facts, context),
    }  # fmt: skip
    if len(context.devices) > 1:
        depends["devices"] = len(context.devices)

    def make() -> dict[str, NDArray[Any]]:
        # Train a copy: training changes the weights' memory layout, hence rounding; a cached teacher would differ.
        inputs = private.images if start is None else start.inputs(private.images, context)
        net = copy.deepcopy(trained)
        rows = torch.arange(len(private)) if part is None else torch.from_numpy(part)
        images, labels, order = inputs[rows], private.labels[rows], streams.torch("order")
        # Report a single step: their number would reveal a client's record count, which depends on labels.
        with context.stage("teacher", depends, 1, name) as (checkpoint, stage):
            # Use a diverged teacher too, since an error would let one record decide whether a student is released.
            if len(context.devices) > 1:
                fit_on_devices(net, images, labels, settings, order, context.devices)
            else:
                fit(
                    net, images, labels, settings, order, device=context.device, must_converge=False,
                    checkpoint=checkpoint,
                )  # fmt: skip
            stage.advance()
        return {key: value.cpu().numpy() for key, value in net.state_dict().items()}

    arrays = context.cache.get("teacher", depends, make)
    trained.load_state_dict({key: torch.from_numpy(value) for key, value in arrays.items()})
    return model.to(context.device).eval().requires_grad_(False)
