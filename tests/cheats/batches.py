"""DP-SGD whose claim says Poisson where batches are drawn otherwise: what audits of the whole method see of it.

All methods here train on gradients of one length and two opposite directions, on a pair in which the one record's is
opposite to all others'. ``python tests/cheats/batches.py`` prints the table of docs/mechanisms.md, in minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from bench.core.progress import Progress
from bench.core.types import Sampling
from bench.evaluation.audit.pair_audit import PairPlan, PairsFound, audit_pairs
from bench.interface import (
    Adjacency,
    Budget,
    Claim,
    Context,
    Event,
    Facts,
    Gaussian,
    Ledger,
    Method,
    PrivateData,
    PublicData,
    Released,
    claim_by,
    make_student,
    proven,
)
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.privacy.events.batch_events import steps_of_epoch, training_event
from bench.privacy.events.events import DPSGD
from bench.storage.cache import Cache

DELTA = 1e-5
FACTS = Facts("digits", 40, 40, 40, 10, (1, 8, 8), public_benchmark=True)


@dataclass(frozen=True)
class BatchesConfig:
    sampling: str = "poisson"
    batch_size: int = 4
    noise_multiplier: float = 1.0
    epochs: int = 2


class Batches(Method):
    """The ledger's DP-SGD, by any sampler; the claim is Poisson's."""

    name, citation = "batches", "none"
    Config = BatchesConfig
    adjacency = Adjacency.ADD_REMOVE
    public_data = "none"

    @classmethod
    def presets(cls, facts: Facts) -> dict[str, dict[str, object]]:
        return {"quick": {}, "tiny": {}}

    @property
    def rate(self) -> float:
        return self.config.batch_size / self.facts.private_records

    @property
    def steps(self) -> int:
        return self.config.epochs * steps_of_epoch(self.rate)

    def calibrate(self, budget: Budget) -> BatchesConfig:
        return self.config

    def claimed(self, delta: float) -> Claim:
        poisson = DPSGD(self.rate, self.config.noise_multiplier, self.steps)
        return claim_by("pld", [poisson], delta, "each record is in each batch by its own coin")

    def charges(self) -> list[Event]:
        return [training_event(Sampling(self.config.sampling), self.rate, self.config.noise_multiplier, self.steps)]

    def worst_pairs(self) -> list[tuple[str, PrivateData, PrivateData]]:
        images = torch.full((self.facts.private_records, *self.facts.shape), 255, dtype=torch.uint8)
        labels = torch.zeros(len(images), dtype=torch.int64)
        labels[0] = 1
        fewer = PrivateData(images[1:], labels[1:], self.facts)
        return [("a record opposite to all others, present or absent", PrivateData(images, labels, self.facts), fewer)]

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        student, options = make_student("softmax_regression", private.facts, context.streams.torch("student/start"))
        self.fit(student, private, ledger, context)
        return Released(student, "softmax_regression", options)

    def fit(self, student: torch.nn.Module, private: PrivateData, ledger: Ledger, context: Context) -> None:
        run = DPSGDRun(
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            loss=lambda outputs, labels: (outputs[:, 0] * (1 - 2 * (labels == 1))).mean(),
            noise_multiplier=self.config.noise_multiplier,
            clipping=Flat(1.0),
            expected_batch_size=self.config.batch_size,
            steps=self.steps,
            records=private.facts.private_records,
            sampling=Sampling(self.config.sampling),
        )
        ledger.dp_sgd(student, private.images, private.labels, run)


class OwnBatches(Batches):
    """Batches drawn by the method itself, whose sums get the ledger's noise: "this is DP-SGD, so Poisson's figure"."""

    name = "cheat-own-batches"
    realised = False
    """Whether a noisy sum is divided by the number of records in the batch, instead of the expected number."""

    def charges(self) -> list[Event]:
        return [Gaussian(self.config.noise_multiplier, self.steps, adjacency=self.adjacency)]

    def batches(self, places: int, order: np.random.Generator) -> Iterator[np.ndarray]:
        for _ in range(self.config.epochs):
            yield from np.array_split(order.permutation(places), steps_of_epoch(self.rate))

    def fit(self, student: torch.nn.Module, private: PrivateData, ledger: Ledger, context: Context) -> None:
        (weight,) = (one for name, one in student.named_parameters() if name.endswith("weight"))
        places = private.facts.private_records
        absent = places - len(private)
        x = private.images.flatten(1).double().numpy() / 255
        clipped = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
        gradients = clipped * (1 - 2 * (private.labels.numpy() == 1))[:, None]
        for drawn in self.batches(places, context.streams.numpy("batches")):
            rows = drawn[drawn >= absent] - absent
            size = max(1, len(rows)) if self.realised else self.config.batch_size
            noisy = ledger.gaussian(
                gradients[rows].sum(0) / size, sensitivity=1 / size, noise_multiplier=self.config.noise_multiplier
            )
            with torch.no_grad():
                weight[0] -= 0.1 * torch.from_numpy(noisy).to(weight)


class OwnFixedBatches(OwnBatches):
    """The same with fresh sets of one size."""

    name = "cheat-own-fixed-batches"

    def batches(self, places: int, order: np.random.Generator) -> Iterator[np.ndarray]:
        for _ in range(self.steps):
            yield order.choice(places, self.config.batch_size, replace=False)


class RealisedSizes(OwnBatches):
    """The same, with each noisy sum divided by the batch's own number of records."""

    name = "cheat-realised-sizes"
    realised = True


def audited(method: type[Batches], config: BatchesConfig, minutes: float) -> PairsFound:
    """Return what an audit by pairs finds of `method`."""

    class Here(method):  # type: ignore[misc, valid-type]  # local, so that it runs in this process
        pass

    target = method(config, FACTS).claimed(DELTA).epsilon
    plan = PairPlan(minutes, target, DELTA, 0.95, workers=1, power=False)
    return audit_pairs(Here, config, FACTS, plan, Cache(None, {}), Progress())


def main() -> None:
    """Print, for each sampler, its figure, Poisson's, and what an audit by transcript shows."""
    print("| sampling | proven | claimed, by Poisson's accountant | audited |\n|---|---|---|---|")
    for sampling in Sampling:
        config = BatchesConfig(sampling.value)
        method = Batches(config, FACTS)
        shown = max(bound.epsilon for bound in audited(Batches, config, 3.0).bounds)
        figures = proven(method.charges(), DELTA).epsilon, method.claimed(DELTA).epsilon, shown
        print(f"| `{sampling.value}` | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    main()
