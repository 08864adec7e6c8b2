"""The nearest record: is a released image a copy of a private record? After Meehan, Chaudhuri, Dasgupta, AISTATS 2020.

Threat model: the attacker holds the released images and perhaps a generator, and measures how near each image lies to a
private record and to records that no student saw. An image far nearer to a private one is a copy; images of a generator
that learnt only the distribution lie equally near to both.

Meehan et al. (arXiv:2004.05675) compare the distances from generated and from test samples to training samples by a
rank test over cells. Differences from the paper: each image's own two distances are compared, in L2 on pixels, without
cells, to find one copy among many images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.attacks.shared.nearest import nearest
from bench.interface import Access, Context, Facts, ReleaseAttack, ReleasedImages, register_attack, setting


@dataclass(frozen=True)
class NearestRecordConfig:
    """Settings of the attack."""

    draws: int = setting(10_000, "ours: images drawn from a released generator, in addition to those released", ge=0)
    ratio: float = setting(
        0.5, "ours: a copy's distance to a private record is below this share of that to others", gt=0, le=1
    )


@register_attack("nearest-record")
class NearestRecord(ReleaseAttack[NearestRecordConfig]):
    """Score an image by its nearness to a record."""

    access = Access.GENERATOR
    citation = "after Meehan, Chaudhuri and Dasgupta, AISTATS 2020"
    of_images = True

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {"quick": {"draws": 900}, "tiny": {"draws": 50}}

    def score(
        self, release: ReleasedImages, records: torch.Tensor, others: torch.Tensor, context: Context
    ) -> NDArray[np.float64]:
        """Return minus the distance of each image to the nearest of `records`."""
        return -nearest(release.images, records, context.device)[0].double().numpy()
