"""The baseline without privacy: the same student, trained on all private records with their true labels.

Private: images and labels. Public: nothing. Released: the student. There is no threat model: the weights may reveal
anything about the records, and the proven epsilon is infinite. Data, split and test records are as for all methods. The
paper preset is PATE 2017's non-private MNIST baseline (99.18%, section 4): the teachers' net on all records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from bench.data.own_arrays import FEATURE_NETS, is_features
from bench.interface import (
    Budget,
    Claim,
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
    register_method,
    setting,
)
from bench.methods.shared.settings_checks import check_records, some_records, student_depends


@dataclass(frozen=True)
class NonPrivateConfig:
    """Settings of the baseline."""

    student: str = setting("pate_mnist", "PATE 2017, section 4 (net); layer sizes: its published code, deep_cnn.py")
    epochs: float = setting(10.0, "ours: enough for the accuracy that PATE 2017 states, 99.18%", gt=0)
    batch_size: int = setting(128, "PATE 2017's published code, deep_cnn.py", ge=1)
    lr: float = setting(0.05, "PATE 2017's published code, deep_cnn.py", gt=0)
    momentum: float = setting(0.9, "ours", ge=0, lt=1)
    records: int | None = setting(
        None, "TrPATE (IEEE Access 2019), figures 1 and 5: number of private records, steps as for all; none: all",
        later=True, ge=1,
    )  # fmt: skip


@register_method("nonprivate")
class NonPrivate(Method[NonPrivateConfig]):
    """Train on all private records: an upper bound for every private student."""

    citation = "baseline"
    bypass = "the student is trained on all private records without noise"
    private: ClassVar[bool] = False

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        student = FEATURE_NETS[0] if is_features(facts.shape) else "small_cnn"
        return {
            "quick": {"student": student, "epochs": 4.0 if facts.private_records > 10_000 else 30.0},
            "tiny": {"student": student, "epochs": 2.0},
        }

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` unchanged."""
        check_records(self.config.records, self.facts)
        return self.config

    def claimed(self, delta: float) -> Claim:
        return Claim(math.inf, delta, "no privacy is claimed")

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Train the student on all private records, or the config's number, declared as a bypass."""
        ledger.bypass(self.bypass)
        student, options = make_student(self.config.student, private.facts, context.streams.torch("student/start"))
        self.fit_net(student, private.images, private, context)
        return Released(student, self.config.student, options)

    def fit_net(self, net: nn.Module, inputs: Tensor, private: PrivateData, context: Context) -> None:
        """Train `net` on the `inputs` (n, ...) of all private records, or of the config's number."""
        config = self.config
        steps = FitSettings(epochs=config.epochs, batch_size=config.batch_size).total_steps(len(private))
        settings = FitSettings(steps=steps, batch_size=config.batch_size, lr=config.lr, momentum=config.momentum)
        chosen = some_records(config.records, private, context)
        with context.stage("student", student_depends(config, context), steps) as (checkpoint, stage):
            fit(
                net, inputs[chosen], private.labels[chosen], settings, context.streams.torch("student/order"),
                device=context.device, stage=stage, checkpoint=checkpoint,
            )  # fmt: skip
