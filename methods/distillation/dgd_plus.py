"""DGD+: discriminative-generative distillation with Gaussian aggregation, as printed.

Ge, Liu, Wang, Li, Zeng, "Learning Privacy-Preserving Student Networks via Discriminative-Generative Distillation", IEEE
TIP 2023, Fig. 8 (top right), with the aggregation of Papernot et al., ICLR 2018 (arXiv:1802.08908). Fig. 7's DGD+ has
private images instead of the generator's: ``images=private``.

Threat model, private and public data, released parts and bypass are those of :mod:`bench.methods.distillation.dgd`.
Claimed: the data-independent Renyi accounting of GNMax. Proven: infinite.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.interface import BenchError, Budget, Claim, GNMax, Ledger, claim_by, largest_count, register_method, setting
from bench.methods.distillation.dgd import DGD, DGDPrintedConfig
from bench.privacy.accounting.claims import DGD_BYPASS


@dataclass(frozen=True)
class DGDPlusConfig(DGDPrintedConfig):
    """Settings of DGD with GNMax; `noise_scale` is the standard deviation of its noise."""

    count: Literal["printed", "formula", "given"] = setting(
        "formula", "DGD prints no number of queries for Gaussian aggregation; given keeps `queries`"
    )
    noise_scale: float = setting(40.0, "PATE 2018, section 5: sigma_2 of MNIST and SVHN; DGD states none")

    def __post_init__(self) -> None:
        if self.count == "printed":
            raise BenchError("the paper prints no number of queries for dgd-plus: count is formula or given.")


@register_method("dgd-plus")
class DGDPlus(DGD):
    """DGD with Gaussian noise on the votes."""

    config: DGDPlusConfig
    citation = "Ge et al. 2023; Papernot et al. 2018"

    def calibrate(self, budget: Budget) -> DGDPrintedConfig:
        """Return `config` with the most queries that `budget` pays for by data-independent Renyi accounting."""
        self.check_facts()
        queries = self.config.queries
        if self.config.count == "formula":
            queries = largest_count(lambda n: [GNMax(self.config.noise_scale, n)], budget, claimed="rdp-classic")
        return dataclasses.replace(self.config, queries=self.payable(queries))

    def claimed(self, delta: float) -> Claim:
        where = "DGD, Fig. 7, by Papernot et al., ICLR 2018 (arXiv:1802.08908), sections 3.2 and 4.1"
        note = f"data-independent; of the label queries alone: {DGD_BYPASS}"
        return claim_by("rdp-classic", [GNMax(self.config.noise_scale, self.config.queries)], delta, where, note)

    def answer(self, votes: NDArray[np.int64], ledger: Ledger) -> NDArray[np.generic]:
        return ledger.noisy_max_gaussian(votes, teachers=self.config.teachers, sigma=self.config.noise_scale)
