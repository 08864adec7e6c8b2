"""DataLens: discriminators on disjoint parts vote, by the signs of a few pixels, on how to move each generated image.

Wang, Wu, Long, Rimanic, Zhang, Li, "DataLens: Scalable Privacy Preserving Training via Gradient Compression and
Aggregation", CCS 2021 (arXiv:2103.11109). Each teacher keeps the `kept` largest entries of its gradient at an image and
randomly rounds them to -1 or 1; the sum over teachers gets Gaussian noise and is rounded to -1, 0 or 1 by a threshold.

Threat model: the attacker holds all that is released, the noisy sums too, and may know all records but one. Private:
images and labels; each record trains one of `teachers` discriminators. Public: the number of records, the random
numbers of the rounding. Released: the generator, some of its images, the student. Unit record, adjacency replace: one
record changes one discriminator, hence the signs of its kept entries, which moves a sum by at most ``2 sqrt(kept)`` in
L2.

Claimed: the paper's Renyi bound, ``2 kept / sigma^2`` times the order for an image, with the classic conversion; it is
data-independent and sound, but loose. The authors' code (AI-secure/DataLens) also uses a data-dependent bound if lower,
which holds for an arg max, not for sums. Proven: the exact figure of Gaussian noise. That code deals images class by
class and restarts a class that runs out, so some of MNIST's are in several parts, and repeats CelebA's until classes
are balanced: one record then changes several teachers. Here parts are disjoint.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from bench.interface import BenchError, Budget, Context, Facts, Gaussian, Ledger, PrivateData, register_method, setting
from bench.methods.generative.guided import Critics, Guide, Guided, GuidedConfig
from bench.methods.shared.calibration import ClaimedBy, least_noise
from bench.methods.shared.settings_checks import check_parts

CODE = "the authors' code AI-secure/DataLens: MNIST, "
N = TypeVar("N", int, float)
BY_BUDGET = "none: determined by the budget"


@dataclass(frozen=True)
class DataLensConfig(GuidedConfig):
    """Settings for MNIST at epsilon 10."""

    teachers: int = setting(4000, CODE + "80 batches of 50")
    batch: int = setting(15, CODE + "as many images as a part has records")
    steps: int = setting(142, "as many as sigma 800 allows at epsilon 10; the code's accountant ends training", ge=1)
    kept: int | None = setting(None, CODE + "300 at epsilon 10, 200 up to 1; " + BY_BUDGET, gt=0)
    threshold: float | None = setting(None, CODE + "0.2 of the teachers at epsilon 10, 0.7 up to 1; " + BY_BUDGET, gt=0)
    sign_bound: float = setting(
        1e-5, CODE + "entries beyond it are always rounded to their sign, there of a mean over the batch, here of a "
        "sum", gt=0,
    )  # fmt: skip
    sigma: float = setting(800.0, CODE + "epsilon 10; 5000 at epsilon 1; calibrated to the budget", gt=0)

    def events(self, sigma: float) -> list[Gaussian]:
        """Return the noisy sums of all steps, each of a batch."""
        return [Gaussian(sigma / self.sensitivity, self.steps)]

    @property
    def sensitivity(self) -> float:
        """The L2 distance by which one teacher can move the sums of a batch."""
        return 2 * math.sqrt(_calibrated("kept", self.kept) * self.batch)


def _calibrated(name: str, value: N | None) -> N:
    if value is None:
        raise BenchError(f"{name} depends on the budget. Calibrate, or set it.")
    return value


@register_method("datalens")
class DataLens(ClaimedBy, Guided):
    """Gaussian noise on sums of rounded, sparse gradients of generated images."""

    config: DataLensConfig
    citation = "Wang et al. 2021"
    claimed_by = "moments"
    claimed_in = "Wang et al., CCS 2021 (arXiv:2103.11109), Renyi bound of TopAgg without votes"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        given = super().presets(facts)
        quick = {
            "teachers": min(4000, max(2, facts.private_records // 15)), "critic_units": 8, "critic_steps": 1,
            "steps": 100,
        }  # fmt: skip
        return {"quick": {**given["quick"], **quick}, "tiny": {**given["tiny"], "batch": 20, "steps": 40}}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the least noise that keeps the claim or the exact figure within `budget`."""
        config = self.config
        check_parts(self)
        strict = budget.epsilon <= 1
        kept = config.kept or (200 if strict else 300)
        threshold = config.threshold or (0.7 if strict else 0.2)
        config = dataclasses.replace(config, kept=min(kept, math.prod(self.facts.shape)), threshold=threshold)
        sigma = least_noise(config.events, budget, self.claimed_by, "exact-gaussian", tolerance=1e-6)
        return dataclasses.replace(config, sigma=sigma)

    def worst_pairs(self) -> list[tuple[str, PrivateData, PrivateData]]:
        """Return pairs whose record flips all its teacher's signs; smaller images have fewer pixels than `kept`."""
        small = dataclasses.replace(self.facts, private_records=1, test_records=20)
        label = torch.zeros(1, dtype=torch.int64)
        dark, bright = (
            PrivateData(torch.full((1, *self.facts.shape), level, dtype=torch.uint8), label, small)
            for level in (0, 255)
        )
        return [("a single record of the row's size, blank or saturated", dark, bright)]

    def charges(self) -> list[Gaussian]:
        return self.config.events(self.config.sigma)

    def guide(self, critics: Sequence[Critics], ledger: Ledger, context: Context) -> Guide:
        """Return the signs of the noisy sums beyond the threshold."""
        draws = context.streams.torch("rounding")
        kept, threshold = _calibrated("kept", self.config.kept), _calibrated("threshold", self.config.threshold)

        def guide(images: Tensor, labels: Tensor) -> Tensor:
            total = summed_signs(critics[0].directions(images, labels), kept, self.config.sign_bound, draws)
            noisy = ledger.gaussian(
                total.cpu().numpy(), sensitivity=self.config.sensitivity,
                noise_multiplier=self.config.sigma / self.config.sensitivity,
            )  # fmt: skip
            beyond = abs(noisy) > threshold * self.config.teachers
            return torch.from_numpy((noisy > 0) * 2.0 - 1.0).mul(torch.from_numpy(beyond)).to(images).view_as(images)

        return guide


def summed_signs(gradients: Tensor, kept: int, bound: float, draws: torch.Generator) -> Tensor:
    """Return the sum (n, pixels) over teachers of the signs of `kept` entries of `gradients` (teachers, n, pixels)."""
    total = torch.zeros(gradients.shape[1:], device=gradients.device)
    # Image by image, since sorting all entries at once takes too much memory.
    for number in range(gradients.shape[1]):
        given = gradients[:, number].nan_to_num(nan=0.0)
        places = given.abs().topk(min(kept, given.shape[1]), dim=1, sorted=False).indices
        values = given.gather(1, places)
        limits = values.abs().amax(1, keepdim=True).clamp(1e-30, bound)
        coins = torch.rand(values.shape, generator=draws).to(values)
        signs = torch.where(coins < 0.5 + values / (2 * limits), 1.0, -1.0)
        total[number] = total[number].index_add(0, places.flatten(), signs.flatten())
    return total
