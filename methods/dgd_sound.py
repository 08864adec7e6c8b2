"""DGD-sound: discriminative-generative distillation whose images need no data, and whose epsilon is proven.

After Ge, Liu, Wang, Li, Zeng, "Learning Privacy-Preserving Student Networks via Discriminative-Generative
Distillation", IEEE TIP 2023. What makes DGD's epsilon infinite is its generator, which is driven by a classifier of all private
records. Here the images are of random processes (:mod:`bench.random_images`), so the generative stream depends on
nothing private, and the noisy votes are all that does. The teachers are asked by GNMax, which costs less than LNMax at
thousands of queries. Measured beside two other repairs in docs/reproduction.md.

Threat model: the attacker holds the released student and knows all records but one. Private: images and labels; each
record trains one teacher, chosen by a hash of its index. Public: nothing but the random images. Released: the student,
the noisy labels, some random images. Unit record: one record changes one teacher and so one vote per query. Claimed is
what is proven, as no paper claims anything for it: the composition of the Gaussian mechanisms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.config import setting
from bench.errors import BenchError
from bench.interface import Budget, Claim, Context, Facts, PrivateData
from bench.registry import register_method
from methods._dgd import DGDConfig, DGDFamily, quick_dgd, tiny_dgd

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from bench.privacy.ledger import Ledger


@dataclass(frozen=True)
class DGDSoundConfig(DGDConfig):
    """Settings of DGD on random images; `queries` are asked whatever the budget, which sets the noise."""

    queries: int = setting(4000, "ours: see docs/reproduction.md")
    sigma: float = setting(40.0, "PATE 2018, section 5: sigma_2 of MNIST and SVHN; calibrated to the budget")

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant."""
        super().__post_init__()
        if not self.sigma > 0:
            raise BenchError(f"sigma must be positive, not {self.sigma}.")


@register_method("dgd-sound")
class DGDSound(DGDFamily):
    """Random images, labelled by the noisy plurality of teachers, and regularised along a VAE."""

    Config = DGDSoundConfig
    citation = "after Ge et al. 2023"
    public_data: ClassVar[str] = "none"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`."""
        return {"quick": quick_dgd(facts), "tiny": {**tiny_dgd(facts), "queries": 60}}

    @classmethod
    def calibrate(cls, config: DGDSoundConfig, budget: Budget, facts: Facts) -> DGDSoundConfig:
        """Return `config` with the least noise at which its queries cost at most `budget`; both bases are one here."""
        from bench.privacy.calibrate import smallest_noise
        from bench.privacy.events import GNMax

        cls.check_facts(config, facts)
        queries = cls.payable(config, config.queries)
        sigma = smallest_noise(
            lambda sigma: [GNMax(sigma, queries)], budget.epsilon, budget.delta, start=100.0, tolerance=1e-4
        )
        return dataclasses.replace(config, queries=queries, sigma=sigma)

    @classmethod
    def claimed(cls, config: DGDSoundConfig, facts: Facts, delta: float) -> Claim:
        """Return what is proven: the composition of the queries."""
        from bench.privacy.accountants import proven
        from bench.privacy.events import GNMax

        figure = proven([GNMax(config.sigma, config.queries)], delta)
        return Claim(figure.epsilon, delta, "the proven figure: no paper claims anything for this variant")

    def images(self, config: DGDSoundConfig, private: PrivateData, ledger: Ledger, context: Context) -> torch.Tensor:
        """See :meth:`methods._dgd.DGDFamily.images`."""
        from bench.random_images import random_images

        return random_images(config.synthetic, private.facts.shape, context.streams.torch("images"))

    def answer(self, config: DGDSoundConfig, votes: NDArray[np.int64], ledger: Ledger) -> NDArray[np.int64]:
        """See :meth:`methods._dgd.DGDFamily.answer`."""
        return ledger.noisy_max_gaussian(votes, teachers=config.teachers, sigma=config.sigma)
