"""The differentially private part of a two-party protocol: images with one party, labels with the other.

After Yuan, Shen, Mironov, Nascimento, "Practical, Label Private Deep Learning Training based on Secure Multiparty
Computation and Differential Privacy", 2021 (ePrint 2021/835). There the parties compute gradients together and noise
limits what the party with the images learns about labels. No secure computation runs here; only the release and its
noise follow such a protocol.

Labels enter a linear last layer's gradient in one term, the sum of each class's features x: the cross-entropy's
gradient is ``sum_i x_i (p_i - e_{y_i})``. With full batches this term is the same at every step, so here it is released
once, with Gaussian noise, which is cheaper than noise at every step. Weights are then the posterior mean of linear
regression on the classes given the noisy sums and the features' exact second moments, which are public; the variances
of weights and residuals maximise the likelihood of the noisy sums.

Threat model: the attacker holds the student and the noisy sums, all images and all labels but one. Private: labels.
Public: the images of the private records, the fixed map to features. Released: the student and the noisy sums. Unit
label, adjacency replace: features have norm 1, and a label moves one from one sum to another, sqrt(2) in L2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.core import margins
from bench.interface import (
    BenchError,
    Budget,
    Context,
    Facts,
    Gaussian,
    Ledger,
    PrivateData,
    PublicData,
    Released,
    make_student,
    register_method,
    setting,
    smallest_noise,
)
from bench.methods.label.family import LabelMethod, true_labels
from bench.methods.shared.calibration import ClaimedBy
from bench.models.feature_net import OnFixedMap
from bench.training.features import features_of

SENSITIVITY = math.sqrt(2)  # L2, of the class sums of features of norm 1
ROWS = 4096


@dataclass(frozen=True)
class LabelProtocolConfig:
    """Settings of the protocol's released part."""

    student: str = setting("scatter_linear", "ours: a linear layer on scattering coefficients (Tramer and Boneh 2021)")
    directions: int = setting(4096, "ours: features with more dimensions are projected at random to this many", ge=1)
    noise_multiplier: float = setting(3.73, "ours: epsilon 1 at delta 1e-5; calibrated to the budget", gt=0)


@register_method("label-protocol")
class LabelProtocol(ClaimedBy, LabelMethod):
    """One noisy release of class sums of public features."""

    config: LabelProtocolConfig
    citation = "after Yuan et al. 2021"
    claimed_by = "proven"
    claimed_in = "ours: the exact cost of Gaussian noise"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`: it runs in minutes as it is."""
        return {"quick": {}, "tiny": {"directions": 100}}

    def calibrate(self, budget: Budget) -> LabelProtocolConfig:
        noise = smallest_noise(lambda noise: self.changed(noise_multiplier=noise).charges(), budget, tolerance=1e-6)
        return dataclasses.replace(self.config, noise_multiplier=noise)

    def charges(self) -> list[Gaussian]:
        return [Gaussian(self.config.noise_multiplier, unit=self.unit, adjacency=self.adjacency)]

    def shares(self, seed: int) -> tuple[str, ...]:
        return (f"scattering of {self.facts.dataset}",)

    def worst_pairs(self) -> list[tuple[str, PrivateData, PrivateData]]:
        """Return pairs in which a single record's label flips; the record needs features, which blank images lack."""
        shape = (self.facts.shape[0], 8, 8)
        small = dataclasses.replace(self.facts, private_records=1, shape=shape, public_benchmark=True)
        image = torch.randint(0, 256, (1, *small.shape), generator=torch.Generator().manual_seed(0)).byte()
        one, other = (PrivateData(image.clone(), torch.tensor([label]), small) for label in (0, 1))
        return [("a single record with features, its label flips", one, other)]

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Release the noisy class sums and compute the student's linear layer."""
        facts = private.facts
        student, options = make_student(self.config.student, facts, context.streams.torch("student/start"))
        if not isinstance(student, OnFixedMap) or not isinstance(student.head, torch.nn.Linear):
            raise BenchError(
                f"{self.name} computes a linear layer on fixed features, and {self.config.student} has none. "
                "Accepted as student: scatter_linear."
            )
        features = features_of(private.images, student.fixed, context, "private").flatten(1)
        labels = torch.from_numpy(true_labels(private))
        width = features.shape[1]
        project = torch.eye(width) if width <= self.config.directions else torch.randn(
            width, self.config.directions, generator=context.streams.torch("directions")
        )  # fmt: skip
        directions = project.shape[1]
        moments, sums = torch.zeros(directions, directions).double(), torch.zeros(facts.classes, directions).double()
        total = torch.zeros(directions).double()
        with context.progress.stage("features", len(features)) as stage:
            for rows, own in zip(torch.split(features, ROWS), torch.split(labels, ROWS), strict=True):
                x = unit_rows(rows.float().nan_to_num(0, 0, 0) @ project)
                moments += (x.T @ x).double()
                sums += torch.nn.functional.one_hot(own, facts.classes).double().T @ x.double()
                total += x.double().sum(0)
                stage.advance(len(rows))
        noisy = ledger.gaussian(sums.numpy(), sensitivity=SENSITIVITY, noise_multiplier=self.config.noise_multiplier)
        about_mean = torch.from_numpy(noisy) - total / facts.classes
        weights = posterior_mean(moments, about_mean.T, SENSITIVITY * self.config.noise_multiplier)
        with torch.no_grad():
            student.head.weight.copy_((project.double() @ weights).T)
            student.head.bias.zero_()
        return Released(student, self.config.student, options, extras={"noisy_sums": torch.from_numpy(noisy)})


def unit_rows(rows: Tensor) -> Tensor:
    """Return `rows` (n, d), float32, scaled to L2 norms of at most 1; rows of zeros stay."""
    # In float32, the sum of thousands of squares would be short by more than any fixed margin.
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64).clamp_min(1e-30)
    scaled: Tensor = rows / (norms * margins.FLOAT32).float()
    return scaled


def posterior_mean(moments: Tensor, sums: Tensor, deviation: float) -> Tensor:
    """Return linear regression weights (d, classes) from second `moments` (d, d) and noisy `sums` (d, classes).

    Along an eigenvector of the moments, with eigenvalue g, a sum is ``g w + sqrt(g) r + deviation n`` with normal w, r
    and n; the variances of w and r maximise the likelihood on a grid.
    """
    values, vectors = torch.linalg.eigh(moments)
    g, seen = values.clamp_min(0)[:, None], vectors.T @ sums
    weight = torch.logspace(-4, 4, 33, dtype=torch.float64)
    residual = torch.tensor([0.003, 0.01, 0.03, 0.09], dtype=torch.float64)
    best, result = -math.inf, torch.zeros_like(seen)
    for tau in weight:
        for rest in residual:
            variance = g**2 * tau + g * rest + deviation**2
            likelihood = float(-(variance.log() * seen.shape[1]).sum() - (seen**2 / variance).sum())
            if likelihood > best:
                best, result = likelihood, tau * g / variance * seen
    weights: Tensor = vectors @ result
    return weights
