"""PATE with the GNMax aggregator: Gaussian noise on the counts in place of Laplace noise.

Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson, "Scalable Private Learning with PATE", ICLR 2018
(arXiv:1802.08908), section 4.1.

Threat model, private and public data, released parts and unit are those of :mod:`bench.methods.pate.pate`. One record
changes one teacher's vote, which moves the counts of a query by sqrt(2) in L2; N(0, sigma^2) noise is added to every
count.

Claimed: with ``claim=data-dependent`` the paper's Renyi accountant on the votes, itself private; with
``claim=sanitised`` a noisy, publishable version of it by smooth sensitivity; with ``claim=data-independent`` order /
sigma^2 per query, without votes. Proven: the exact figure of Gaussian noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from bench.interface import (
    BenchError,
    Budget,
    Claim,
    ConfidentGNMax,
    Facts,
    GNMax,
    Ledger,
    claim_by,
    largest_count,
    register_method,
    setting,
)
from bench.methods.pate.family import Ints, PATEFamily, PATEFamilyConfig
from bench.privacy.accounting.claims import pate_2018
from bench.privacy.accounting.smooth_sensitivity import check_release
from bench.privacy.mechanisms.ledger import VoteRelease


class GNMaxEvents:
    """The event of a config with the settings of GNMax."""

    queries: int
    sigma: float

    def at(self, queries: int) -> Self:
        """Return the same config with `queries` queries."""
        return dataclasses.replace(self, queries=queries)  # type: ignore[type-var]

    def event(self) -> GNMax:
        """Return the event that the ledger will record."""
        return GNMax(self.sigma, self.queries)


@dataclass(frozen=True)
class PATEGNMaxConfig(GNMaxEvents, PATEFamilyConfig):
    """Settings of PATE with GNMax."""

    sigma: float = setting(40.0, "PATE 2018, section 5: sigma_2 of MNIST and SVHN", ge=0)
    claim: Literal["data-dependent", "data-independent", "sanitised"] = setting(
        "data-dependent", "PATE 2018, section 5; sanitised: section 4 and appendix B"
    )


@register_method("pate-gnmax")
class PATEGNMax(PATEFamily):
    """Label public images by the plurality of teachers with Gaussian noise, then train the student on them."""

    Config: ClassVar[type] = PATEGNMaxConfig  # not typed as `config`: subclasses' configs do not derive from it
    citation = "Papernot et al. 2018"

    source: ClassVar[str] = "Papernot et al., ICLR 2018 (arXiv:1802.08908), sections 3.2 and 4.1"
    noises: ClassVar[Mapping[str, float]] = {"sigma": 0.16}  # the paper's noise as a share of its 250 teachers

    @classmethod
    def scaled(cls, settings: dict[str, Any], facts: Facts) -> dict[str, Any]:
        noises = {name: share * settings["teachers"] for name, share in cls.noises.items()}
        return {**settings, **noises, "claim": "data-independent"}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the most queries that `budget` pays for by data-independent accounting."""
        self.check_facts()
        queries = largest_count(lambda queries: [self.config.at(queries).event()], budget, claimed="rdp-classic")
        found = self.config.at(min(queries, self.facts.public_records))
        if self.config.claim == "sanitised":
            if not self.facts.disclosure.data_figures:
                raise BenchError(
                    f"claim=sanitised is for public benchmarks: of {self.facts.dataset} no figure that depends "
                    "on votes is recorded. Use claim=data-independent."
                )
            check_release(found.event(), budget.delta, self.facts.classes)
        return found

    def claimed(self, delta: float) -> Claim:
        """Return the paper's data-independent Renyi figure, for all answers that a cap allows."""
        return claim_by("rdp-classic", [self.config.event()], delta, self.source, "data-independent")

    def claimed_after(self, delta: float, ledger: Ledger) -> Claim:
        """Return the paper's Renyi figure for the votes, if that is the claim."""
        if self.config.claim == "data-independent":
            return self.claimed(delta)
        if self.config.claim == "sanitised":
            return ledger.sanitised(delta)
        (release,) = ledger.private_votes()
        return self.claim_of(release, delta)

    def claim_of(self, release: VoteRelease, delta: float) -> Claim:
        """Return the paper's Renyi figure for the votes of a run. Private."""
        return pate_2018(release.votes, self.config.sigma, delta)

    def charges(self) -> Sequence[GNMax | ConfidentGNMax]:
        return [self.config.event()]

    def answer(self, votes: Ints, ledger: Ledger) -> Ints:
        if self.config.claim == "sanitised":
            ledger.check_sanitised()
        return self.noisy_answer(votes, ledger)

    def noisy_answer(self, votes: Ints, ledger: Ledger) -> Ints:
        """Return the aggregator's answer to each query."""
        return ledger.noisy_max_gaussian(votes, teachers=self.config.teachers, sigma=self.config.sigma)
