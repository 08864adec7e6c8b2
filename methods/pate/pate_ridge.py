"""PATE with ridge regressions as teachers and student, and images of random processes as queries.

After Papernot et al. 2017 (teachers on disjoint parts) and Tramer and Boneh 2021 (scattering coefficients). Noise on
the sum of answers does not grow with the number of teachers, and ridge regression learns from the few records of each
teacher. A teacher answers with its scores for all queries, scaled jointly to a fixed norm, and the student is fitted to
the noisy sums: at the same cost, votes would be less informative, and the argmax of the sums even less so. The
student's penalty maximises the likelihood of the sums, so it adapts to the noise without further access to the records.

Threat model: the attacker holds the student and the noisy sums, and may know all records but one. Private: images and
labels; each record trains one teacher, chosen by a hash of its index. Public: the number of records, the queries, the
scattering transform. Released: the student, the noisy sums, some queries. Unit record, adjacency replace: one record
changes the answers of one teacher, whose L2 norm over all queries is 1, and so their sum by 2 at most. Claimed and
proven: the exact figure of the Gaussian mechanism.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

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
    partition,
    register_method,
    setting,
    smallest_noise,
)
from bench.methods.shared.calibration import ClaimedBy
from bench.methods.shared.random_images import KINDS, random_images
from bench.methods.shared.settings_checks import SHOWN, check_parts
from bench.methods.shared.teachers import tiny_teachers
from bench.models.feature_net import OnFixedMap
from bench.training.features import features_of

SENSITIVITY = 2.0  # L2 sensitivity of the sum of answers of norm 1
CHOSEN = "ours: chosen on 3,000 records of Fashion-MNIST's test file, at proven epsilon 1; not for rows on that set"


@dataclass(frozen=True)
class PATERidgeConfig:
    """Settings of PATE with ridge regressions."""

    teachers: int = setting(2000, CHOSEN, ge=1)
    queries: int = setting(1000, CHOSEN, ge=1)
    penalty: float = setting(0.05, "ours: of a teacher, in units of the mean squared norm of its features", ge=1e-4)
    student: str = setting("scatter_linear", "Tramer and Boneh 2021, section 3: a linear layer on their features")
    random_kind: Literal["strokes", "objects"] = setting("strokes", KINDS, later=True)
    sigma: float = setting(7.5, "ours: noise on each sum of scores, calibrated to the budget", gt=0)


@register_method("pate-ridge")
class PATERidge(ClaimedBy):
    """Noisy sums of the scores of many small teachers, and a linear student on them."""

    config: PATERidgeConfig
    citation = "after Papernot et al. 2017"
    claimed_by = "proven"
    claimed_in = "the proven figure: no paper claims anything for this method"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        few = min(2000, max(2, facts.private_records // 30))
        return {"quick": {"teachers": few}, "tiny": {"teachers": tiny_teachers(facts), "queries": 60}}

    def calibrate(self, budget: Budget) -> PATERidgeConfig:
        """Return `config` with the least noise that keeps the exact figure within `budget`."""
        check_parts(self)
        multiplier = smallest_noise(lambda noise: [Gaussian(noise)], budget, tolerance=1e-6)
        return dataclasses.replace(self.config, sigma=multiplier * SENSITIVITY)

    def charges(self) -> list[Gaussian]:
        return [Gaussian(self.config.sigma / SENSITIVITY)]

    def shares(self, seed: int) -> tuple[str, ...]:
        return (f"scattering of {self.facts.dataset}",)

    def worst_pairs(self) -> list[tuple[str, PrivateData, PrivateData]]:
        """Return pairs that replace a record by one with opposite answers; blank images give no features or answers."""
        shape = (self.facts.shape[0], 8, 8)
        student, _ = make_student(self.config.student, dataclasses.replace(self.facts, shape=shape), torch.Generator())
        assert isinstance(student, OnFixedMap)
        images = torch.rand(256, *shape, generator=torch.Generator().manual_seed(1)).lt(0.05).byte() * 255  # dots
        asked = student.fixed(random_images(1000, shape, torch.Generator()) / 255).float()
        answers = torch.nn.functional.normalize(asked @ student.fixed(images / 255).float().T, dim=0)
        alike = answers.T @ answers
        small = dataclasses.replace(self.facts, private_records=1, test_records=20, shape=shape)
        label = torch.zeros(1, dtype=torch.int64)
        one, other = (PrivateData(images[[n]], label, small) for n in divmod(int(alike.argmin()), len(images)))
        return [("a single record becomes its opposite", one, other)]

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Ask all teachers about random images, and fit the student to the noisy sums."""
        facts = private.facts
        student, options = make_student(self.config.student, facts, context.streams.torch("student/start"))
        if not isinstance(student, OnFixedMap) or not isinstance(student.head, torch.nn.Linear):
            raise BenchError(
                f"{self.name} fits a linear layer on fixed features, and {self.config.student} has none. Accepted as "
                "student: scatter_linear."
            )
        order = context.streams.torch("queries")
        images = random_images(self.config.queries, facts.shape, order, self.config.random_kind)
        asked = features_of(images, student.fixed, context, "public").float()
        features = features_of(private.images, student.fixed, context, "private")
        parts = partition(len(private), self.config.teachers, f"{facts.dataset}/teachers/{context.streams.seed}")
        total = torch.zeros(len(asked), facts.classes, dtype=torch.float64)
        with context.progress.stage("teachers", len(parts)) as stage:
            for part in map(torch.from_numpy, parts):
                weights = ridge(features[part].float(), private.labels[part], facts.classes, self.config.penalty)
                total += normalised((asked @ weights).double())
                stage.advance()
        noise = self.config.sigma / SENSITIVITY
        sums = torch.from_numpy(ledger.gaussian(total.numpy(), sensitivity=SENSITIVITY, noise_multiplier=noise))
        with torch.no_grad():
            # Scale the answers to order one.
            scale = math.sqrt(len(asked)) / self.config.teachers
            student.head.weight.copy_(most_likely(asked.double(), sums * scale).T)
            student.head.bias.zero_()
        extras = {"noisy_sums": sums, "synthetic_images": images[:SHOWN].clone()}
        return Released(student, self.config.student, options, extras=extras)


def ridge(features: Tensor, labels: Tensor, classes: int, penalty: float) -> Tensor:
    """Return weights (d, classes) from `features` (n, d) to one-hot labels (n,) minus 1 / `classes`."""
    gram = features @ features.T
    gram.diagonal().add_(penalty * gram.diagonal().mean().clamp_min(1e-6))
    targets = functional.one_hot(labels, classes).float() - 1 / classes
    weights: Tensor = features.T @ torch.linalg.solve(gram, targets)
    return weights


def normalised(scores: Tensor) -> Tensor:
    """Return `scores` (n, classes) minus their mean over classes, scaled to norm 1; zero if not finite or zero."""
    centred = scores - scores.mean(1, keepdim=True)
    norm = centred.norm()
    return centred / (norm * margins.FLOAT64) if torch.isfinite(norm) and norm > 0 else torch.zeros_like(scores)


def most_likely(features: Tensor, targets: Tensor) -> Tensor:
    """Return weights (d, classes) from `features` (n, d) to `targets` (n, classes) at the most likely penalty.

    Weights and noise have Gaussian priors; their ratio maximises the marginal (type II) likelihood, on a grid of half
    powers of ten times the features' mean squared norm.
    """
    values, vectors = torch.linalg.eigh(features @ features.T)
    values, turned = values.clamp_min(0), vectors.T @ targets

    def unlikely(penalty: Tensor) -> float:
        spread = values + penalty
        residual = (turned.square() / spread[:, None]).mean().clamp_min(1e-300)
        return float(residual.log() + spread.log().mean())

    penalty = min(values.mean() * torch.logspace(-4, 4, 17, dtype=values.dtype), key=unlikely)
    weights: Tensor = features.T @ (vectors @ (turned / (values + penalty)[:, None]))
    return weights
