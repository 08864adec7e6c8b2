"""DP-SGD: the standard baseline.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, with the small tanh CNN and the settings of Tramer
and Boneh, "Differentially Private Learning Needs Better Features (or Much More Data)", ICLR 2021.

Threat model: the attacker holds the released weights and may know all records but one. Private: images and labels.
Public: the number of records. Released: the student. Unit record, adjacency add-remove, as zero-out: one record is
absent; steps, sampling rate and divisor stay those of the public number. One replaced record moves a batch's sum by up
to twice as much and costs more, as the board shows. Poisson batches, each gradient clipped to `max_grad_norm` in L2,
Gaussian noise of `noise_multiplier` times that on the sum, calibrated to the budget.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar

from bench.interface import (
    Adjacency,
    Basis,
    BenchError,
    Budget,
    Claim,
    Context,
    Facts,
    Method,
    PrivateData,
    PublicData,
    Released,
    register_method,
    setting,
)
from bench.methods.shared.calibration import PoissonBatches, least_noise
from bench.methods.shared.settings_checks import student_depends

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from bench.core.progress import Stage
    from bench.interface import Event, Ledger
    from bench.privacy.accounting.accountants import AccountantFunction
    from bench.privacy.dpsgd.dp_sgd import DPSGDRun
    from bench.storage.checkpoint import Checkpoint


@dataclass(frozen=True)
class DPSGDConfig(PoissonBatches):
    """Settings of DP-SGD; `steps` follow from epochs and the expected batch."""

    student: str = setting("tanh_cnn_mnist", "Tramer and Boneh 2021, appendix C: MNIST and Fashion-MNIST")
    epochs: float = setting(40.0, "Tramer and Boneh 2021, appendix C")
    batch_size: int = setting(512, "Tramer and Boneh 2021, appendix C: MNIST")
    lr: float = setting(0.5, "Tramer and Boneh 2021, appendix C: MNIST")
    momentum: float = setting(0.9, "Tramer and Boneh 2021, appendix C")
    max_grad_norm: float = setting(0.1, "Tramer and Boneh 2021, appendix C")
    noise_multiplier: float = setting(1.23, "Tramer and Boneh 2021, appendix C: epsilon 3; calibrated to the budget")
    scale_lr: bool = setting(
        False, "ours: divides lr by the noise above the stated one; chosen on Fashion-MNIST's training records",
        later=True,
    )  # fmt: skip


def continued(make: Callable[[Any], Optimizer]) -> Callable[[Any], Optimizer]:
    """Return `make` for calls one after the other, each optimiser with the momentum that the one before had."""
    made: list[Optimizer] = []

    def optimizer(parameters: Any) -> Optimizer:
        made.append(make(parameters))
        if len(made) > 1:
            made[-1].load_state_dict(made.pop(0).state_dict())
        return made[-1]

    return optimizer


def processed(make: Callable[[Any], Optimizer], change: Callable[[Tensor], Tensor]) -> Callable[[Any], Optimizer]:
    """Return `make` for optimisers that pass each parameter's noisy gradient through `change` before every step."""

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
class DPSGD(Method):
    """Poisson batches, per-example clipping, Gaussian noise; through the ledger."""

    Config: ClassVar[type] = DPSGDConfig
    version = 2
    adjacency = Adjacency.ADD_REMOVE
    citation = "Abadi et al. 2016; Tramer and Boneh 2021"
    public_data = "none"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`; the quick one's rate was chosen on Fashion-MNIST.

        With 10,000 of its training records held out, 10 epochs: noise 0.9, rates 0.5 and 2 gave 79.6% and 84.5%; noise
        1.4, rates 1 and 2 82.3% both; noise 1.8, 82.0% and 81.2%.
        """
        batch = min(512, max(8, facts.private_records // 8))
        many = facts.private_records > 10_000
        rate = {"epochs": 10.0, "lr": 2.0, "noise_multiplier": 0.9, "scale_lr": True} if many else {"epochs": 30.0}
        return {
            "quick": {**rate, "batch_size": batch},
            "tiny": {"epochs": 1.0, "batch_size": min(32, batch)},
        }

    @classmethod
    def calibrate(cls, config: Any, budget: Budget, facts: Facts) -> Any:
        """Return `config` with the least noise that keeps the claim or the PLD (proven) within `budget`.

        With `scale_lr` the rate is divided by that noise over the stated one where it is above.
        """
        records = facts.private_records
        if not 1 <= config.batch_size <= records:
            raise BenchError(
                f"batch_size {config.batch_size} must lie between 1 and the {records} private records. Change it with "
                f"--set {cls.name}.batch_size=N."
            )
        charged = cls.claimed_charges if budget.basis is Basis.CLAIMED else cls.charges

        def events(noise: float) -> Sequence[Event]:
            return charged(dataclasses.replace(config, noise_multiplier=noise), facts)

        # The exact figure replaces the PLD where every record is in every batch.
        sound = "proven" if config.sampling_rate(records) == 1 else "pld"
        noise = least_noise(events, budget, cls.accountant(), sound, tolerance=1e-4)
        found = dataclasses.replace(config, noise_multiplier=noise)
        if getattr(config, "scale_lr", False):  # not a setting of all that are calibrated here
            found = dataclasses.replace(found, lr=config.lr * min(1.0, config.noise_multiplier / noise))
        return found

    @classmethod
    def accountant(cls) -> AccountantFunction | str:
        """Return the accountant of :meth:`claimed`."""
        from bench.privacy.accounting.claims import moments_accountant

        return moments_accountant

    @classmethod
    def claimed(cls, config: Any, facts: Facts, delta: float) -> Claim:
        """Return the moments accountant's figure, as in the paper."""
        from bench.privacy.accounting.claims import dp_sgd

        records = facts.private_records
        return dp_sgd(config.sampling_rate(records), config.noise_multiplier, config.steps(records), delta)

    @classmethod
    def claimed_charges(cls, config: Any, facts: Facts) -> Sequence[Event]:
        """Return the events that the paper's own analysis charges for; all of them unless a subclass says otherwise."""
        return cls.charges(config, facts)

    @classmethod
    def charges(cls, config: Any, facts: Facts) -> Sequence[Event]:
        """Return all steps."""
        from bench.privacy.events.events import DPSGD as Steps

        records = facts.private_records
        return [Steps(config.sampling_rate(records), config.noise_multiplier, config.steps(records))]

    def train_student(
        self, config: Any, private: PrivateData, public: PublicData, ledger: Ledger, context: Context
    ) -> Released:
        """Train the student by DP-SGD."""
        from bench.interface import make_student

        start = context.streams.torch("student/start")
        student, options = make_student(config.student, private.facts, start, **self.student_options(config))
        student.to(context.device)
        steps = config.steps(private.facts.private_records)
        depends = {**student_depends(config, context), "opacus": version("opacus")}
        with context.checkpoint("student", depends) as checkpoint, context.progress.stage("student", steps) as stage:
            run = self.dp_sgd_run(config, private.facts, stage, checkpoint)
            ledger.dp_sgd(student, private.images, private.labels, run)
        return Released(student, config.student, options)

    def student_options(self, config: Any) -> dict[str, Any]:
        """Return the timm options of the student beyond its sizes."""
        return {}

    def dp_sgd_run(self, config: Any, facts: Facts, stage: Stage, checkpoint: Checkpoint | None = None) -> DPSGDRun:
        """Return the run's settings for the ledger."""
        import torch

        from bench.privacy.dpsgd.dp_sgd import DPSGDRun

        return DPSGDRun(
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum),
            loss=torch.nn.functional.cross_entropy,
            noise_multiplier=config.noise_multiplier,
            max_grad_norm=config.max_grad_norm,
            expected_batch_size=config.batch_size,
            steps=config.steps(facts.private_records),
            records=facts.private_records,
            stage=stage,
            checkpoint=checkpoint,
        )
