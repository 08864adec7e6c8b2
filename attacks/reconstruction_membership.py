"""Membership by reconstruction: the release reconstructs training records best. Chen, Yu, Zhang, Fritz, CCS 2020.

Threat model: the attacker holds the released images, perhaps a generator's weights, and other images of the data set,
none private, and asks which of some records were trained on. "GAN-Leaks" (arXiv:1909.03935): a record's reconstruction
is the nearest released or drawn image (its full black-box attack) and, given a generator, the image of an optimised
latent input (its white-box attack, an inversion through the generator). The score is minus the distance to it,
calibrated by adding the distance to the nearest of the other images, because a record near to every image is easy to
reconstruct.

Differences from the paper: distances are L2 on pixels, without LPIPS and the prior's term; Adam, not L-BFGS, from the
nearest drawn image, whose class stays fixed; calibration is by images of other records, not by a generator of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.attacks.shared.nearest import nearest
from bench.interface import (
    Access,
    Context,
    Facts,
    Knowledge,
    ReleaseAttack,
    ReleasedImages,
    as_float,
    register_attack,
    setting,
)
from bench.training.divergence import descend

AT_ONCE = 500  # records whose latent inputs are optimised together


@dataclass(frozen=True)
class ReconstructionConfig:
    """Settings of the attack."""

    records: int = setting(5000, "ours: private records, and as many others", ge=1)
    draws: int = setting(20_000, "ours: images drawn from a released generator, in addition to those released", ge=0)
    steps: int = setting(500, "ours: of Adam on a record's latent input; 0: black-box", ge=0)
    rate: float = setting(0.05, "ours: of Adam", gt=0)
    calibrate: bool = setting(True, "GAN-Leaks, section on attack calibration; here by images of other records")


@register_attack("reconstruction-membership")
class ReconstructionMembership(ReleaseAttack[ReconstructionConfig]):
    """Score a record by how well the release reconstructs it."""

    access = Access.GENERATOR
    knowledge = Knowledge.AUXILIARY
    citation = "Chen, Yu, Zhang and Fritz, CCS 2020 (GAN-Leaks)"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        quick = {"records": 1000, "draws": 10_000, "steps": 30}
        return {"quick": quick, "tiny": {"records": 100, "draws": 100, "steps": 2}}

    def score(
        self, release: ReleasedImages, records: torch.Tensor, others: torch.Tensor, context: Context
    ) -> NDArray[np.float64]:
        """Return minus each record's distance to its reconstruction, calibrated if the config says so."""
        config = self.config
        distance, _ = nearest(records, release.images, context.device)
        if release.generator is not None and config.steps and config.draws:
            distance = distance.minimum(inverted(config, release, records, context))
        if config.calibrate:
            distance = distance - nearest(records, others, context.device)[0]
        return -distance.double().numpy()


def inverted(
    config: ReconstructionConfig, release: ReleasedImages, records: torch.Tensor, context: Context
) -> torch.Tensor:
    """Return the distance (n,) from each record to the generator's best image over optimised inputs."""
    assert release.generator is not None
    assert release.inputs is not None
    net = release.generator.to(context.device).eval()
    _, starts = nearest(records, release.images[-len(release.inputs) :], context.device)
    found = []
    for part, chosen in zip(torch.split(records, AT_ONCE), torch.split(starts, AT_ONCE), strict=True):
        wanted = as_float(part).to(context.device)
        start = release.inputs[chosen].to(context.device)
        noise, rest = start[:, : release.free].clone().requires_grad_(), start[:, release.free :]
        optimizer = torch.optim.Adam([noise], config.rate)
        best = torch.full((len(part),), torch.inf, device=context.device)
        for _ in range(config.steps):
            squared = (net(torch.cat([noise, rest], 1)) - wanted).square().flatten(1).sum(1)
            best = best.minimum(squared.detach())
            descend(optimizer, squared.sum())
        found.append(best.sqrt().cpu())
    return torch.cat(found)
