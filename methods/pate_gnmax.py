"""PATE with the GNMax aggregator: Gaussian noise instead of Laplace noise on the counts.

Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson, "Scalable Private Learning with PATE", ICLR 2018
(arXiv:1802.08908), section 4.1.

Threat model, private and public data, released parts and unit are those of :mod:`methods.pate`. One record changes one
teacher's vote, which moves the counts of a query by sqrt(2) in L2; N(0, sigma^2) noise is added to every count.

What is claimed: with ``claim=data-dependent`` the paper's Renyi accountant on the votes, which is itself private; with
``claim=sanitised`` one noisy draw of it by smooth sensitivity, which may be published; with ``claim=data-independent``
the same without votes, order / sigma^2 a query. What is proven is the exact figure of
Gaussian noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bench.interface import Basis, BenchError, Budget, Claim, Facts, register_method, setting
from methods._pate import PATEFamily, PATEFamilyConfig, quick_settings, tiny_settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bench.interface import Event, Ledger

SOURCE = "Papernot et al., ICLR 2018 (arXiv:1802.08908), sections 3.2 and 4.1"


@dataclass(frozen=True)
class PATEGNMaxConfig(PATEFamilyConfig):
    """Settings of PATE with GNMax."""

    sigma: float = setting(40.0, "PATE 2018, section 5: sigma_2 of MNIST and SVHN")
    claim: Literal["data-dependent", "data-independent", "sanitised"] = setting(
        "data-dependent", "PATE 2018, section 5; sanitised: section 4 and appendix B"
    )


@register_method("pate-gnmax")
class PATEGNMax(PATEFamily):
    """Label public images by the noisy plurality of teachers, Gaussian noise, then train the student on them."""

    Config: ClassVar[type] = PATEGNMaxConfig
    citation = "Papernot et al. 2018"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`."""

        def scaled(settings: dict[str, Any]) -> dict[str, Any]:
            # The paper's noise is 0.16 of its 250 teachers.
            return {**settings, "claim": "data-independent", "sigma": 0.16 * settings["teachers"]}

        return {"quick": scaled(quick_settings(facts)), "tiny": scaled(tiny_settings(facts))}

    @classmethod
    def calibrate(cls, config: PATEGNMaxConfig, budget: Budget, facts: Facts) -> PATEGNMaxConfig:
        """Return `config` with the most queries that `budget` pays for, judged without votes."""
        from bench.interface import GNMax, accountant, largest_count

        cls.check_facts(config, facts)
        queries = largest_count(
            lambda queries: [GNMax(config.sigma, queries)],
            budget.epsilon,
            budget.delta,
            accountant("rdp-classic" if budget.basis is Basis.CLAIMED else "proven"),
        )
        found = dataclasses.replace(config, queries=cls.payable(queries, facts))
        if config.claim == "sanitised":
            from bench.privacy.smooth_sensitivity import check_release

            if not facts.public_benchmark:
                raise BenchError(
                    f"claim=sanitised is for public benchmarks: of {facts.dataset} no figure that depends on votes is "
                    "recorded. Use claim=data-independent."
                )

            check_release(GNMax(found.sigma, found.queries), budget.delta, facts.classes)
        return found

    @classmethod
    def claimed(cls, config: PATEGNMaxConfig, facts: Facts, delta: float) -> Claim:
        """Return the paper's Renyi figure without votes."""
        from bench.interface import GNMax
        from bench.privacy.accountants import rdp_classic

        figure = rdp_classic([GNMax(config.sigma, config.queries)], delta)
        assert figure is not None  # it applies to every Gaussian event
        return Claim(figure.epsilon, delta, SOURCE, "data-independent")

    @classmethod
    def claimed_after(cls, config: PATEGNMaxConfig, facts: Facts, delta: float, ledger: Ledger) -> Claim:
        """Return the paper's Renyi figure for the votes, where that is the claim."""
        if config.claim == "data-independent":
            return cls.claimed(config, facts, delta)
        if config.claim == "sanitised":
            return ledger.sanitised(delta)
        from bench.privacy.claims import pate_2018

        (release,) = ledger.private_votes()
        return pate_2018(release.votes, config.sigma, delta)

    @classmethod
    def charges(cls, config: PATEGNMaxConfig, facts: Facts) -> Sequence[Event]:
        """Return the noisy histograms of all queries."""
        from bench.interface import GNMax

        return [GNMax(config.sigma, config.queries)]

    def answer(self, config: PATEGNMaxConfig, votes: NDArray[np.int64], ledger: Ledger) -> NDArray[np.int64]:
        """See :meth:`methods._pate.PATEFamily.answer`."""
        if config.claim == "sanitised":
            ledger.check_sanitised()
        return ledger.noisy_max_gaussian(votes, teachers=config.teachers, sigma=config.sigma)
