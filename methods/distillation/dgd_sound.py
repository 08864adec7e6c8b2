"""DGD-sound: discriminative-generative distillation on random images, with a proven epsilon.

After Ge, Liu, Wang, Li, Zeng, "Learning Privacy-Preserving Student Networks via Discriminative-Generative
Distillation", IEEE TIP 2023. DGD's epsilon is infinite because of its generator. Here images of random processes
(:mod:`bench.methods.shared.random_images`) replace it, so only the votes are private. The whole noisy histogram is
released, for the same cost as its argmax; the student learns from its softmax. Other repairs: docs/reproduction.md.

Threat model: the attacker holds the released student and knows all records but one. Private: images and labels; each
record trains one teacher, chosen by a hash of its index. Public: the random images. Released: the student, the noisy
histograms, some random images. Unit record: one record changes one teacher and so one vote per query, which moves a
histogram by sqrt(2) and all T by sqrt(2 T) in L2. Claimed and proven: the Gaussian mechanism.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.interface import (
    Budget,
    Context,
    Facts,
    Gaussian,
    Ledger,
    PrivateData,
    register_method,
    setting,
    smallest_noise,
)
from bench.methods.distillation.dgd_family import DGDConfig, DGDFamily, quick_dgd, tiny_dgd
from bench.methods.shared.calibration import NO_CLAIM, ClaimedBy
from bench.methods.shared.random_images import random_images


@dataclass(frozen=True)
class DGDSoundConfig(DGDConfig):
    """Settings of DGD on random images; the number of `queries` is fixed, the budget sets the noise."""

    queries: int = setting(5000, "ours: see docs/reproduction.md")
    sigma: float = setting(50.0, "ours: noise on each count, calibrated to the budget", gt=0)
    regularise: float = setting(0.0, "ours: Eq. 6 gained nothing on random images, see docs/reproduction.md", ge=0)


@register_method("dgd-sound")
class DGDSound(ClaimedBy, DGDFamily):
    """Random images, labelled by the noisy votes of the teachers."""

    config: DGDSoundConfig
    citation = "after Ge et al. 2023"
    claimed_by, claimed_in = "proven", NO_CLAIM

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {"quick": quick_dgd(facts), "tiny": {**tiny_dgd(facts), "queries": 60}}

    def calibrate(self, budget: Budget) -> DGDSoundConfig:
        """Return `config` with the least noise at which its queries fit `budget`; claimed and proven agree."""
        self.check_facts()
        queries = self.payable(self.config.queries)
        multiplier = smallest_noise(lambda multiplier: [Gaussian(multiplier)], budget, tolerance=1e-6)
        return dataclasses.replace(self.config, queries=queries, sigma=multiplier * math.sqrt(2 * queries))

    def charges(self) -> list[Gaussian]:
        return [Gaussian(self.config.sigma / math.sqrt(2 * self.config.queries))]

    def images(self, private: PrivateData, ledger: Ledger, context: Context) -> torch.Tensor:
        order, config = context.streams.torch("images"), self.config
        return random_images(config.synthetic, private.facts.shape, order, config.random_kind)

    def answer(self, votes: NDArray[np.int64], ledger: Ledger) -> NDArray[np.generic]:
        """See `DGDFamily.answer`: a softmax of the noisy counts, in units of their noise."""
        distance, sigma = math.sqrt(2 * len(votes)), self.config.sigma
        noisy = ledger.gaussian(votes, sensitivity=distance, noise_multiplier=sigma / distance) / sigma
        weights = np.exp(noisy - noisy.max(1, keepdims=True))
        soft: NDArray[np.float32] = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
        return soft
