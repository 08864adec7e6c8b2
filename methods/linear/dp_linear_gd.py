"""Differentially private full-batch gradient descent on the last layer over a frozen public backbone.

A linear head's clipped per-example gradients have a closed form (``methods/linear/family.py``), so a full step is as
fast as a non-private one. Without sampling, each step is one Gaussian release, and these compose exactly (Dong, Roth,
Su, "Gaussian Differential Privacy", 2019): T steps of noise multiplier sigma cost as much as one of sigma / sqrt(T). De
et al., arXiv:2204.13650, find that larger batches are more accurate at the same epsilon.

Threat model: the attacker holds the released weights, even every iterate, and may know all records but one. Private:
images and labels. Public: the number of records, which divides the noisy sum; the backbone and its weights. Released:
the student, a linear head on the named backbone. Unit record, adjacency add-remove, as zero-out (see
:mod:`bench.methods.dpsgd.dp_sgd`): each example's gradient is clipped to `max_grad_norm` in L2; the noise is calibrated
to the budget. Records in the public source have no guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bench.interface import (
    Adjacency,
    Budget,
    Claim,
    Context,
    Facts,
    Gaussian,
    Ledger,
    PrivateData,
    PublicData,
    Released,
    register_method,
    setting,
)
from bench.methods.linear.family import OURS, LinearConfig, begin, clipped_sum, finish, layer_of
from bench.methods.shared.calibration import with_least_noise
from bench.methods.shared.transfer import OnBackbone, with_digest
from bench.privacy.accounting.claims import dp_sgd_improved


@dataclass(frozen=True)
class DPLinearGDConfig(LinearConfig):
    """Settings of gradient descent on a linear head; the batch is the private set."""

    steps: int = setting(100, OURS, ge=1)


@register_method("dp-linear-gd")
class DPLinearGD(OnBackbone):
    """The sum of all clipped gradients with Gaussian noise, once a step, through the ledger."""

    config: DPLinearGDConfig
    adjacency = Adjacency.ADD_REMOVE
    citation = "after De et al. 2022"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        given = super().presets(facts)
        return {**given, "tiny": {**given["tiny"], "steps": 5}}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the least noise that keeps RDP (claimed) or the exact figure (proven) in `budget`."""
        return with_digest(with_least_noise(self, budget, "rdp", "exact-gaussian", tolerance=1e-6), self.facts)

    def claimed(self, delta: float) -> Claim:
        return dp_sgd_improved(1.0, self.config.noise_multiplier, self.config.steps, delta)

    def charges(self) -> list[Gaussian]:
        return [Gaussian(self.config.noise_multiplier, self.config.steps, adjacency=self.adjacency)]

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Train the head on noisy sums of the clipped gradients of all private records."""
        config = self.config
        features, student, options = begin(config, private, public, context)
        shape = (private.facts.classes, features.shape[1])
        weights = torch.zeros(shape, dtype=torch.float64, device=context.device)
        speed = torch.zeros_like(weights)
        with context.progress.stage("student", config.steps) as stage:
            for _ in range(config.steps):
                total = clipped_sum(weights, features, private.labels, config.max_grad_norm).cpu().numpy()
                noisy = ledger.gaussian(
                    total, sensitivity=config.max_grad_norm, noise_multiplier=config.noise_multiplier
                )
                # Divide by the public count in `facts`; the actual count is private under add/remove.
                mean = torch.from_numpy(noisy).to(weights) / private.facts.private_records
                speed = config.momentum * speed + mean
                weights = weights - config.lr * speed
                stage.advance()
        with torch.no_grad():
            layer_of(student).weight.copy_(weights)
        return Released(finish(student), "frozen_transfer", options)
