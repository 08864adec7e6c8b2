"""DP-SGD: the standard baseline.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, with the small tanh CNN and the settings of Tramer
and Boneh, "Differentially Private Learning Needs Better Features (or Much More Data)", ICLR 2021.

Threat model: the attacker holds the released weights and may know all records but one. Private: images and labels.
Public: the number of records. Released: the student. Unit record, adjacency add-remove, as zero-out: one record is
absent, while steps, sampling rate and divisor still use the public number. Replacing a record moves a batch's sum by up
to twice as much and costs more, as the leaderboard shows. Poisson batches, each gradient clipped to `max_grad_norm` in
L2, Gaussian noise of `noise_multiplier` times that on the sum, calibrated to the budget. Another `sampling` draws
batches as published code does, and the proof is for these batches; the claim remains that for Poisson batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench.core.progress import Stage
from bench.core.types import Sampling
from bench.data.own_arrays import FEATURE_NETS, is_features
from bench.interface import (
    Adjacency,
    BenchError,
    Budget,
    Claim,
    Context,
    Event,
    Facts,
    Ledger,
    Method,
    PrivateData,
    PublicData,
    Released,
    make_student,
    register_method,
    setting,
)
from bench.methods.shared.calibration import PoissonBatches, with_least_noise
from bench.methods.shared.settings_checks import check_batch, student_depends
from bench.privacy.accounting.claims import dp_sgd, dp_sgd_improved
from bench.privacy.dpsgd.clipping import Clipping, Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.privacy.events.batch_events import Training, steps_of_epoch, training_event
from bench.storage.checkpoint import Checkpoint


@dataclass(frozen=True)
class DPSGDConfig(PoissonBatches):
    """Settings of DP-SGD; `steps` follow from epochs and the expected batch.

    They are MNIST's on every data set. Tramer and Boneh have others for Fashion-MNIST (batches of 2,048, rate 4) and
    for CIFAR-10 (batches of 1,024, rate 1, 30 epochs, the net ``tanh_cnn_cifar``).
    """

    student: str = setting("tanh_cnn_mnist", "Tramer and Boneh 2021, appendix C: MNIST and Fashion-MNIST")
    epochs: float = setting(40.0, "Tramer and Boneh 2021, appendix C", gt=0)
    batch_size: int = setting(512, "Tramer and Boneh 2021, appendix C: MNIST", ge=1)
    lr: float = setting(0.5, "Tramer and Boneh 2021, appendix C: MNIST", gt=0)
    momentum: float = setting(0.9, "Tramer and Boneh 2021, appendix C", ge=0, lt=1)
    max_grad_norm: float = setting(0.1, "Tramer and Boneh 2021, appendix C", gt=0)
    noise_multiplier: float = setting(
        1.23, "Tramer and Boneh 2021, appendix C: epsilon 3; calibrated to the budget", gt=0
    )
    scale_lr: bool = setting(
        False, "ours: divides lr by noise over stated noise if above 1; chosen on Fashion-MNIST's training records",
        later=True,
    )  # fmt: skip
    sampling: Literal["poisson", "random-allocation", "fixed", "shuffled"] = setting(
        "poisson", "Abadi et al. 2016, section 3.1; the others: docs/mechanisms.md, How batches are drawn", later=True
    )

    def steps(self, records: int) -> int:
        """Return the number of batches; each record takes part `epochs` times, exactly if epochs are whole."""
        if self.sampling in ("poisson", "fixed"):
            return super().steps(records)
        return max(1, round(self.epochs * steps_of_epoch(self.sampling_rate(records))))


def continued(make: Callable[[Any], Optimizer]) -> Callable[[Any], Optimizer]:
    """Return `make` such that each new optimiser takes over the momentum of the last one."""
    made: list[Optimizer] = []

    def optimizer(parameters: Any) -> Optimizer:
        made.append(make(parameters))
        if len(made) > 1:
            made[-1].load_state_dict(made.pop(0).state_dict())
        return made[-1]

    return optimizer


def processed(make: Callable[[Any], Optimizer], change: Callable[[Tensor], Tensor]) -> Callable[[Any], Optimizer]:
    """Return `make` for optimisers that apply `change` to each parameter's noisy gradient before every step."""

    def before_step(optimizer: Optimizer, *_: Any) -> None:
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            if parameter.grad is not None:
                parameter.grad = change(parameter.grad)

    def optimizer(parameters: Any) -> Optimizer:
        made = make(parameters)
        made.register_step_pre_hook(before_step)
        return made

    return optimizer


@register_method("dp-sgd")
class DPSGD(Method[DPSGDConfig]):
    """Poisson batches, per-example clipping, Gaussian noise; through the ledger."""

    version = 2
    adjacency = Adjacency.ADD_REMOVE
    citation = "Abadi et al. 2016; Tramer and Boneh 2021"
    claimed_by: ClassVar[str] = "moments"
    """The accountant of :meth:`claimed`; see :func:`bench.methods.shared.calibration.least_noise`."""
    samplings: ClassVar[tuple[str, ...]] = tuple(Sampling)

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`; quick's learning rate was chosen on Fashion-MNIST.

        With 10,000 of its training records held out, 10 epochs: at noise 0.9, rates 0.5 and 2 gave 79.6% and 84.5%; at
        1.4, rates 1 and 2 both gave 82.3%; at 1.8, these gave 82.0% and 81.2%.
        """
        batch = min(512, max(8, facts.private_records // 8))
        many = facts.private_records > 10_000
        rate = {"epochs": 10.0, "lr": 2.0, "noise_multiplier": 0.9, "scale_lr": True} if many else {"epochs": 30.0}
        student = {"student": FEATURE_NETS[0]} if is_features(facts.shape) else {}
        return {
            "quick": {**rate, "batch_size": batch, **student},
            "tiny": {"epochs": 1.0, "batch_size": min(32, batch), **student},
        }

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the least noise that keeps the claim or the PLD (proven) within `budget`.

        With `scale_lr` the learning rate is divided by the ratio of that noise to the stated noise, if above 1.
        """
        check_batch(self)
        if self.config.sampling not in self.samplings:
            raise BenchError(
                f"{self.name} is accounted for sampling={' or '.join(self.samplings)}, not {self.config.sampling}. Use "
                "dp-sgd for the others."
            )
        found = with_least_noise(self, budget, self.claimed_by, tolerance=1e-4)
        if getattr(found, "scale_lr", False):  # not every subclass's config has this setting
            ratio = self.config.noise_multiplier / found.noise_multiplier
            return dataclasses.replace(found, lr=found.lr * min(1.0, ratio))
        return found

    def claimed(self, delta: float) -> Claim:
        config, records = self.config, self.facts.private_records
        formula = dp_sgd_improved if self.claimed_by == "rdp" else dp_sgd
        return formula(config.batch_share(records), config.noise_multiplier, config.steps(records), delta)

    def claimed_charges(self) -> Sequence[Event]:
        """Return the events that the paper's analysis charges for: all of them, as if batches were Poisson samples."""
        config, records = self.config, self.facts.private_records
        if config.sampling == "poisson":
            return self.charges()
        rate, steps = config.batch_share(records), config.steps(records)
        trained = training_event(Sampling.POISSON, rate, config.noise_multiplier, steps)
        return [trained if isinstance(event, Training) else event for event in self.charges()]

    def charges(self) -> Sequence[Event]:
        config, records = self.config, self.facts.private_records
        sampling, rate = Sampling(config.sampling), config.sampling_rate(records)
        return [training_event(sampling, rate, config.noise_multiplier, config.steps(records))]

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        start = context.streams.torch("student/start")
        student, options = make_student(self.config.student, private.facts, start, **self.student_options())
        self.train_net(student.to(context.device), private, public, ledger, context)
        return Released(student, self.config.student, options)

    def train_net(
        self, net: nn.Module, private: PrivateData, public: PublicData, ledger: Ledger, context: Context
    ) -> None:
        """Train the student's `net` in place, through the ledger."""
        self.fit(net, private.images, private.labels, ledger, context)

    def fit(
        self, net: nn.Module, inputs: Tensor, labels: Tensor, ledger: Ledger, context: Context, *,
        what: str = "student", **changes: Any,
    ) -> None:  # fmt: skip
        """Train `net` in place by DP-SGD on `inputs` (n, ...) with `labels` (n,); `changes` replace fields of the run.

        `what` names the net in the progress display. A stopped run resumes from its checkpoint.
        """
        depends = {**student_depends(self.config, context), "opacus": version("opacus")}
        steps = self.config.steps(self.facts.private_records)
        with context.stage(what, depends, steps) as (checkpoint, stage):
            ledger.dp_sgd(net, inputs, labels, dataclasses.replace(self.dp_sgd_run(stage, checkpoint), **changes))

    def student_options(self) -> dict[str, Any]:
        """Return the timm options of the student beyond its sizes."""
        return {}

    def clipping(self) -> Clipping:
        """Return how each record's gradient is clipped."""
        return Flat(self.config.max_grad_norm)

    def dp_sgd_run(self, stage: Stage, checkpoint: Checkpoint | None = None) -> DPSGDRun:
        """Return the run's settings for the ledger."""
        return DPSGDRun(
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=self.config.lr, momentum=self.config.momentum),
            loss=torch.nn.functional.cross_entropy, noise_multiplier=self.config.noise_multiplier,
            clipping=self.clipping(), expected_batch_size=self.config.batch_size,
            steps=self.config.steps(self.facts.private_records), records=self.facts.private_records,
            sampling=Sampling(self.config.sampling), stage=stage, checkpoint=checkpoint,
        )  # fmt: skip
