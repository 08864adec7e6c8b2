"""DP-Kernel repaired: the mean embedding in its kernel is released once, and the generator follows only that release.

After Jiang, Sun, Yu, "Functional Renyi Differential Privacy for Generative Modeling", NeurIPS 2023, whose generator
gets gradients without noise (:mod:`bench.methods.generative.dp_kernel`). Random Fourier features of the mean of the
Gaussian kernels, whose frequencies cycle through the kernels, turn the released function into a vector: Gaussian noise
on its entries is a draw of the Gaussian process with the approximate kernel, and values and gradients come from one
noisy function. It is released once for all records, not per batch, and includes class shares; labels are not drawn
evenly. Release, generator and accounting are those of DP-MERF, whose kernel has one bandwidth.

Threat model: the attacker holds all that is released and may know all records but one. Private: images and labels.
Public: the number of records, the frequencies. Released: the generator, some of its images, the student. Unit record,
adjacency replace, L2 sensitivity 2: features have norm 1, and unlike the kernels they can point in opposite directions.
Claimed and proven: one Gaussian release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.interface import register_method, setting
from bench.methods.generative.dp_kernel import PORT
from bench.methods.generative.mean_embedding import EmbeddingConfig, MeanEmbedding


@dataclass(frozen=True)
class DPKernelSoundConfig(EmbeddingConfig):
    """Settings of DP-MERF with the kernels of DP-Kernel."""

    bandwidth: float = setting(0.5, f"{PORT}; the least standard deviation, of pixels in [0, 1]", gt=0)
    kernels: int = setting(5, f"{PORT}; each has twice the deviation of the one before", ge=1)


@register_method("dp-kernel-sound")
class DPKernelSound(MeanEmbedding):
    """The mean embedding of a sum of Gaussian kernels."""

    config: DPKernelSoundConfig
    citation = "after Jiang et al. 2023"

    def frequencies(self, draws: torch.Generator) -> Tensor:
        """See :meth:`bench.methods.generative.mean_embedding.MeanEmbedding.frequencies`: one of each kernel in turn."""
        config = self.config
        deviations = torch.tensor([config.bandwidth * 2**number for number in range(config.kernels)])
        waves = torch.randn(config.features // 2, math.prod(self.facts.shape), generator=draws)
        return waves / deviations[torch.arange(len(waves)) % config.kernels][:, None]
