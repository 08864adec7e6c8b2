"""DP-MERF: one noisy mean of random Fourier features, and a generator whose images have the same mean.

Harder, Adamczewski, Park, "DP-MERF: Differentially Private Mean Embeddings with Random Features for Practical
Privacy-Preserving Data Generation", AISTATS 2021 (arXiv:2002.11603); settings of the authors' code for images. The
features approximate the kernel ``exp(-|x - y|^2 / 2 s)``.

Threat model: the attacker holds all that is released and may know all records but one. Private: images and labels.
Public: the number of records, the random frequencies. Released: the generator, some of its images, the student. Unit
record, adjacency replace: one Gaussian release of class sums of features and of class counts, L2 sensitivity 2
(:mod:`bench.methods.generative.mean_embedding`). The authors' code for images has no counts and draws labels evenly;
that for tables releases class shares by a second Gaussian.

Claimed: the authors' accountant, which is sound but loose: its epsilon of 1 costs 0.74. Proven: the exact cost of
Gaussian noise. No epsilon accounts for the choice of the length scale s, whose median heuristic in that code
(mnist_sr_gen.py) reads MNIST's test images. For images of another size, s is scaled by the number of pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.interface import Facts, register_method, setting
from bench.methods.generative.mean_embedding import CODE, EmbeddingConfig, MeanEmbedding


@dataclass(frozen=True)
class DPMERFConfig(EmbeddingConfig):
    """Settings of DP-MERF for MNIST."""

    length_scale: float = setting(105.0, CODE + "rff_sigma, 127 for Fashion-MNIST; s of 784 pixels", gt=0)


@register_method("dp-merf")
class DPMERF(MeanEmbedding):
    """The mean embedding of a Gaussian kernel of one length scale."""

    config: DPMERFConfig
    citation = "Harder et al. 2021"
    claimed_by = "moments"  # the classic conversion, as in the authors' code
    claimed_in = "Harder et al., AISTATS 2021 (arXiv:2002.11603), the authors' code, code_balanced/dp_analysis.py"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {"paper": {"length_scale": 127.0} if facts.dataset == "fmnist" else {}, **super().presets(facts)}

    def frequencies(self, draws: torch.Generator) -> Tensor:
        pixels = math.prod(self.facts.shape)
        deviation = math.sqrt(self.config.length_scale * pixels / 784)
        return torch.randn(self.config.features // 2, pixels, generator=draws) / deviation
