"""P3GM repaired: records are centred by a public constant, and each release has noise for one record's full effect.

After Takagi et al., "P3GM: Private High-Dimensional Data Release via Privacy Preserving Phased Generative Model", ICDE
2021 (:mod:`bench.methods.generative.p3gm`). The constant is zero, so rows are not centred, and the first component
captures the mean.

Threat model: the attacker holds all that is released and may know all records but one. Private: images and labels.
Public: the number of records. Released: the net with its components and its mixture, some of its images, the student.
Unit record, adjacency add-remove, as zero-out (see :mod:`bench.methods.dpsgd.dp_sgd`): Gaussian releases of the rows'
second moments and of each iteration of EM (sensitivities in :mod:`bench.methods.generative.pca_vae`), and DP-SGD on
Poisson batches. Claimed: the paper's Renyi accounting of the releases that run. Proven: its PLD.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.interface import Event, Ledger, PrivateData, register_method, setting
from bench.methods.generative.p3gm import P3GM, P3GMConfig


@dataclass(frozen=True)
class P3GMSoundConfig(P3GMConfig):
    """Settings of P3GM."""

    em_iterations: int = setting(1, "ours: one iteration fits a single component")


@register_method("p3gm-sound")
class P3GMSound(P3GM):
    """The same phases, centred by a public constant."""

    config: P3GMSoundConfig
    citation = "after Takagi et al. 2021"
    claimed_in = "the accountant of Takagi et al., ICDE 2021 (arXiv:2006.12101), for what runs here"
    claim_note = ""
    bypass = ""
    repaired_by = ""

    def claimed_charges(self) -> Sequence[Event]:
        return self.charges()

    def centre(self, private: PrivateData, ledger: Ledger) -> Tensor:
        """Return zeros."""
        return torch.zeros(math.prod(private.facts.shape) + private.facts.classes, dtype=torch.float64)
