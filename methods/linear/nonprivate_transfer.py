"""The baseline without privacy on transferred features: one head, trained on all private records with their labels.

TrPATE (IEEE Access 2019), table 2: 92.34% on CIFAR-10, with the net of the teachers and the student: a frozen backbone
trained on public data and a fully connected head with one hidden layer. Private: images and labels. Public: the
backbone and its weights. Released: the student, a head on the named backbone. There is no threat model: the head may
reveal anything about the records, and the proven epsilon is infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.interface import Budget, Context, Facts, Ledger, PrivateData, PublicData, Released, register_method, setting
from bench.methods.nonprivate import NonPrivate
from bench.methods.shared.transfer import PAPER, OnBackbone, TransferConfig, make_transfer, with_digest
from bench.training.features import features_of


@dataclass(frozen=True)
class NonPrivateTransferConfig(TransferConfig):
    """Settings of the baseline."""

    hidden: int = setting(256, f"{PAPER}, section V.A.1: one hidden layer of 256 units; 0 leaves it out", ge=0)
    epochs: float = setting(50.0, f"{PAPER}, section V.A.1", gt=0)
    batch_size: int = setting(32, f"{PAPER}, section V.A.1", ge=1)
    lr: float = setting(0.01, "ours: the paper does not say; falls to zero along a cosine", gt=0)
    momentum: float = setting(0.9, "ours: the paper does not say", ge=0, lt=1)
    records: int | None = setting(
        None, f"{PAPER}, figure 5: number of private records, steps as for all; none: all", later=True, ge=1
    )  # fmt: skip


@register_method("nonprivate-transfer")
class NonPrivateTransfer(OnBackbone, NonPrivate):
    """Train a head on all features; an upper bound for every private student on the same backbone."""

    config: NonPrivateTransferConfig
    citation = "baseline of TrPATE (IEEE Access 2019), table 2"
    bypass = "the head is trained on all private records without noise"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        given, epochs = OnBackbone.presets(facts), 5.0 if facts.private_records > 10_000 else 30.0
        return {**given, "quick": {**given["quick"], "epochs": epochs}, "tiny": {**given["tiny"], "epochs": 2.0}}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with its weights' digest; there is no noise to calibrate."""
        return with_digest(super().calibrate(budget), self.facts)

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Train the head on the features of all private records, or the config's number, declared as a bypass."""
        ledger.bypass(self.bypass)
        backbone = self.backbone(public, context)
        features = features_of(private.images, backbone, context, "private")
        start = context.streams.torch("student/start")
        student, options = make_transfer(backbone, private.facts, self.config.hidden, start)
        self.fit_net(student.head, features, private, context)
        return Released(student.eval(), "frozen_transfer", options)
