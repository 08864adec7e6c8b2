"""G-PATE: discriminators on disjoint parts vote on how to move each generated image, coordinate by coordinate.

Long, Wang, Yang, Kailkhura, Zhang, Gunter, Li, "G-PATE: Scalable Differentially Private Data Generator via Private
Aggregation of Teacher Discriminators", NeurIPS 2021 (arXiv:1906.09338). Each teacher's gradient at an image is
projected onto a few fresh random directions, each coordinate is rounded to one of `bins` values, and Confident-GNMax
answers with the most common value, or 0 if too few agree.

Threat model: the attacker holds all that is released, the noisy answers too, and may know all records but one. Private:
images and labels; each record trains one of `teachers` discriminators. Public: the number of records, the random
directions. Released: the generator, some of its images, the student. Unit record, adjacency replace: one record changes
one discriminator and its vote on each coordinate of each image: two counts by 1 (L2 sensitivity sqrt(2), noise
`sigma2`) and the largest count by 1 (noise `sigma1`).

Claimed: the bound of PATE 2018 on the votes, as the authors' code (AI-secure/G-PATE) computes it for each coordinate;
it is itself private, and so is its stopping time. Proven: the data-independent bound, by which steps are planned. That
code repeats CelebA's images until classes are balanced, so that one may be in several parts and the sensitivity is
larger; here parts are disjoint. Here gradients are scaled to norm 1 before rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.interface import (
    BenchError,
    Budget,
    Claim,
    ConfidentGNMax,
    Context,
    Facts,
    Ledger,
    largest_count,
    register_method,
    setting,
)
from bench.methods.generative.guided import Critics, Guide, Guided, GuidedConfig
from bench.methods.shared.calibration import ClaimedBy, least_noise
from bench.methods.shared.settings_checks import check_parts
from bench.privacy.accounting.claims import pate_2018

CODE = "the authors' code AI-secure/G-PATE: MNIST, "
CLAIM = "Long et al., NeurIPS 2021 (arXiv:1906.09338) and the authors' code: the bound of PATE 2018"
BY_BUDGET = "none: set by the budget"


@dataclass(frozen=True)
class GPATEConfig(GuidedConfig):
    """Settings for MNIST at epsilon 10; `critic_steps` and `warm_steps` are DataLens's, `latent` is for epsilon 1."""

    teachers: int = setting(2000, CODE + "epsilon 10; 4000 at epsilon 1")
    batch: int = setting(30, CODE + "epsilon 10, 15 at epsilon 1: as many images as a part has records")
    steps: int = setting(66, "calibrated to the budget", ge=1)
    least_steps: int = setting(1, "ours: calibration raises the noise if the budget covers fewer", ge=1)
    directions: int = setting(10, CODE + "dimensions of the random projection", ge=1)
    bins: int = setting(10, CODE + "values of a coordinate", ge=2)
    bound: float = setting(0.1, "ours, of a gradient of norm 1; 1e-4 of one that is not normalised in " + CODE, gt=0)
    threshold: float | None = setting(None, CODE + "half of the teachers; none: that number", gt=0)
    sigma1: float | None = setting(None, CODE + "600 at epsilon 10, 3000 up to 1; " + BY_BUDGET, gt=0)
    sigma2: float | None = setting(None, CODE + "100 at epsilon 10, 1000 up to 1; " + BY_BUDGET, gt=0)

    def noise(self) -> tuple[float, float, float]:
        """Return threshold, sigma1 and sigma2; raise :class:`BenchError` before calibration."""
        if self.sigma1 is None or self.sigma2 is None or self.threshold is None:
            raise BenchError("the noise depends on the budget. Calibrate, or set threshold, sigma1 and sigma2.")
        return self.threshold, self.sigma1, self.sigma2

    def events(self, steps: int) -> list[ConfidentGNMax]:
        """Return the noisy votes of `steps` steps; all may be answered."""
        queries = steps * self.batch * self.directions
        return [ConfidentGNMax(*self.noise(), queries, queries)]


@register_method("g-pate")
class GPATE(ClaimedBy, Guided):
    """Confident-GNMax on rounded, projected gradients of generated images."""

    config: GPATEConfig
    citation = "Long et al. 2021"
    claimed_by = "pate-2018-rdp-data-independent"
    claimed_in = f"{CLAIM}, as far as it needs no votes"
    claim_note = "sound, and loose"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        given = super().presets(facts)
        quick = {
            "teachers": min(2000, max(2, facts.private_records // 30)), "critic_units": 8, "critic_steps": 1,
            "least_steps": 30,
        }  # fmt: skip
        tiny = {"batch": 20, "directions": 2, "steps": 3, "least_steps": 30, "sigma1": 9.0, "sigma2": 3.0}
        return {"quick": {**given["quick"], **quick}, "tiny": {**given["tiny"], **tiny}}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with noise in the paper's proportion to the teachers and the most steps in the budget."""
        config = self.config
        check_parts(self)
        wide, narrow = (0.75, 0.25) if budget.epsilon <= 1 else (0.3, 0.05)
        half = 0.5 * config.teachers if config.threshold is None else config.threshold
        config = dataclasses.replace(
            config, threshold=half, sigma1=config.sigma1 or wide * config.teachers,
            sigma2=config.sigma2 or narrow * config.teachers,
        )  # fmt: skip
        try:
            steps = largest_count(config.events, budget, claimed=self.claimed_by)
        except BenchError:
            steps = 0
        if steps >= config.least_steps:
            return dataclasses.replace(config, steps=steps)

        _, sigma1, sigma2 = config.noise()

        def louder(times: float) -> GPATEConfig:
            return dataclasses.replace(config, sigma1=times * sigma1, sigma2=times * sigma2)

        times = least_noise(
            lambda times: louder(times).events(config.least_steps), budget, self.claimed_by, "proven", tolerance=1e-4
        )
        return dataclasses.replace(louder(times), steps=config.least_steps)

    def claimed_after(self, delta: float, ledger: Ledger) -> Claim:
        releases = ledger.private_votes()
        votes, answered = (np.concatenate([getattr(one, name) for one in releases]) for name in ("votes", "answered"))
        threshold, sigma1, sigma2 = self.config.noise()
        claim = pate_2018(votes, sigma2, delta, threshold, sigma1, answered=answered)
        return dataclasses.replace(claim, source=f"{CLAIM}, on the votes")

    def charges(self) -> list[ConfidentGNMax]:
        return self.config.events(self.config.steps)

    def guide(self, critics: Sequence[Critics], ledger: Ledger, context: Context) -> Guide:
        """Return the answers, projected back to images."""
        draws = context.streams.torch("directions")
        threshold, sigma1, sigma2 = self.config.noise()

        def guide(images: Tensor, labels: Tensor) -> Tensor:
            gradients = critics[0].directions(images, labels)
            basis = torch.randn(gradients.shape[2], self.config.directions, generator=draws).to(images)
            said = ledger.confident_noisy_max(
                counted(gradients, basis, self.config).cpu().numpy(), teachers=self.config.teachers,
                threshold=threshold, sigma1=sigma1, sigma2=sigma2,
                max_answers=len(images) * self.config.directions,
            )  # fmt: skip
            middles = (2 * torch.from_numpy(said) + 1) / self.config.bins - 1
            values = torch.where(torch.from_numpy(said) < 0, 0.0, middles).to(images)
            return (values.view(len(images), -1) @ basis.T).view_as(images)

        return guide


def counted(gradients: Tensor, basis: Tensor, config: GPATEConfig) -> Tensor:
    """Return votes (n * directions, bins) of teachers with `gradients` (teachers, n, pixels)."""
    length = gradients.norm(dim=2, keepdim=True).clamp_min(1e-30)
    # Non-finite gradients vote for the middle, so that every teacher has one vote on each row.
    places = ((gradients / length) @ basis / config.bound).nan_to_num(nan=0.0).clamp(-1, 1)
    bins = ((places + 1) / 2 * config.bins).long().clamp_max(config.bins - 1).flatten(1).T
    votes = torch.zeros(len(bins), config.bins, dtype=torch.int64, device=bins.device)
    return votes.scatter_add_(1, bins, torch.ones_like(bins))
