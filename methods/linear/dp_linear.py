"""DP-SGD on the last layer over a frozen public backbone: the baseline of methods on transferred features.

De et al., "Unlocking High-Accuracy Differentially Private Image Classification through Scale", arXiv:2204.13650 (last
layer of ImageNet nets); Tramer and Boneh, "Differentially Private Learning Needs Better Features (or Much More Data)",
ICLR 2021 (linear layer on fixed features).

Threat model: the attacker holds the released weights and may know all records but one. Private: images and labels.
Public: the number of records, the backbone and its weights. Released: the student, a linear head on the named backbone.
Unit record, adjacency add-remove, as zero-out (see :mod:`bench.methods.dpsgd.dp_sgd`): Poisson batches, each gradient
clipped to `max_grad_norm` in L2, Gaussian noise of `noise_multiplier` times that on the sum, calibrated to the budget.
Records in the public source have no guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.interface import Budget, Context, Facts, Ledger, PrivateData, PublicData, Released, register_method, setting
from bench.methods.dpsgd.dp_sgd import DPSGD
from bench.methods.linear.family import OURS, LinearConfig, begin, finish
from bench.methods.shared.calibration import PoissonBatches
from bench.methods.shared.transfer import OnBackbone, with_digest


@dataclass(frozen=True)
class DPLinearConfig(PoissonBatches, LinearConfig):
    """Settings of DP-SGD on a linear head; steps follow from epochs and the expected batch."""

    lr: float = setting(80.0, OURS, gt=0)
    epochs: float = setting(30.0, OURS, gt=0)
    batch_size: int = setting(
        8_192, "Tramer and Boneh 2021, appendix C: linear layer on fixed features of CIFAR-10", ge=1
    )


@register_method("dp-linear")
class DPLinear(OnBackbone, DPSGD):
    """Poisson batches, per-example clipping, Gaussian noise on one layer; through the ledger."""

    config: DPLinearConfig
    version = 1
    citation = "De et al. 2022; Tramer and Boneh 2021"
    claimed_by = "rdp"  # the improved conversion, as in De et al.

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        batch = min(8_192, max(8, facts.private_records // 6))
        fits = {"batch_size": batch} if batch < 8_192 else {}
        given = OnBackbone.presets(facts)
        tiny = {**given["tiny"], "epochs": 2.0, "batch_size": min(32, batch)}
        return {**given, "quick": {**given["quick"], **fits}, "tiny": tiny}

    def calibrate(self, budget: Budget) -> Any:
        return DPSGD.calibrate(type(self)(with_digest(self.config, self.facts), self.facts), budget)

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Train the head by DP-SGD on the features of the private records."""
        features, student, options = begin(self.config, private, public, context)
        self.fit(student.head, features, private.labels, ledger, context)
        return Released(finish(student), "frozen_transfer", options)
