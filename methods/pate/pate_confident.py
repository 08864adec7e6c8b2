"""PATE with the Confident-GNMax aggregator: answers only where enough teachers agree.

Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson, "Scalable Private Learning with PATE", ICLR 2018
(arXiv:1802.08908), section 4.2.

Threat model, private and public data, released parts and unit are those of :mod:`bench.methods.pate.pate`; the choice
of answered queries is released too. A query passes if its largest count, with N(0, sigma1^2) noise (sensitivity 1),
reaches the threshold; GNMax with sigma2 (L2 sensitivity sqrt(2)) then answers it. Every query is charged for the
threshold. The number of passes is private, so the run stops at ``max_answers`` answers and always pays for all of them.

Claimed: with ``claim=data-dependent`` the paper's Renyi accountant on the votes of the run, itself private.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from bench.interface import Basis, Budget, Claim, ConfidentGNMax, Ledger, register_method, setting
from bench.methods.pate.family import Ints, PATEFamilyConfig
from bench.methods.pate.pate_gnmax import PATEGNMax
from bench.privacy.accounting.claims import pate_2018
from bench.privacy.mechanisms.ledger import VoteRelease

Printed = Mapping[str, tuple[float, int, float]]
PRINTED: Printed = {"mnist": (1e-5, 286, 1.97)}  # delta, answers and epsilon in table 1, for the default settings


class ConfidentEvents:
    """The event of a config with the settings of Confident-GNMax."""

    queries: int
    max_answers: int
    threshold: float
    sigma1: float
    sigma2: float

    def at(self, queries: int) -> Self:
        """Return the same config with `queries` queries and the same ratio of `max_answers` to queries."""
        answers = max(1, min(queries, math.floor(queries * self.max_answers / self.queries)))
        return dataclasses.replace(self, queries=queries, max_answers=answers)  # type: ignore[type-var]

    def event(self) -> ConfidentGNMax:
        """Return the event that the ledger will record."""
        return ConfidentGNMax(self.threshold, self.sigma1, self.sigma2, self.queries, self.max_answers)


@dataclass(frozen=True)
class PATEConfidentConfig(ConfidentEvents, PATEFamilyConfig):
    """Settings of PATE with Confident-GNMax; the defaults are those for MNIST in the paper's table 1."""

    queries: int = setting(640, "PATE 2018, section 5 and appendix: MNIST; calibrated to the budget")
    max_answers: int = setting(286, "PATE 2018, table 1: MNIST; calibrated to the budget", ge=1)
    threshold: float = setting(200.0, "PATE 2018, table 1: MNIST", ge=0)
    sigma1: float = setting(150.0, "PATE 2018, table 1: MNIST", ge=0)
    sigma2: float = setting(40.0, "PATE 2018, table 1: MNIST", ge=0)
    claim: Literal["data-dependent", "data-independent", "sanitised"] = setting(
        "data-dependent", "PATE 2018, section 5; sanitised: section 4 and appendix B"
    )


@register_method("pate-confident")
class PATEConfident(PATEGNMax):
    """Label those public images on which the teachers clearly agree, then train the student on them."""

    Config: ClassVar[type] = PATEConfidentConfig  # not typed as `config`: subclasses' configs do not derive from it
    printed: ClassVar[Printed] = PRINTED
    source: ClassVar[str] = "Papernot et al., ICLR 2018 (arXiv:1802.08908), sections 3.2 and 4.2"
    noises: ClassVar[Mapping[str, float]] = {"threshold": 0.8, "sigma1": 0.6, "sigma2": 0.16}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the most queries that `budget` pays for by data-independent accounting.

        On the claimed basis with the data-dependent claim, a budget of the printed epsilon gets the paper's setting.
        """
        self.check_facts()
        paper = self.Config()
        noises = ("teachers", "threshold", "sigma1", "sigma2", "queries", "max_answers")
        as_printed = all(getattr(self.config, name) == getattr(paper, name) for name in noises)
        delta, answers, epsilon = self.printed.get(self.facts.dataset, (1.0, 0, math.inf))
        covered = as_printed and epsilon <= budget.epsilon + 1e-9 and delta <= budget.delta * (1 + 1e-9)
        if budget.basis is Basis.CLAIMED and self.config.claim == "data-dependent" and covered:
            queries = min(self.config.queries, self.facts.public_records)
            return dataclasses.replace(self.config, queries=queries, max_answers=min(self.config.max_answers, answers))
        return super().calibrate(budget)

    def claim_of(self, release: VoteRelease, delta: float) -> Claim:
        config = self.config
        return pate_2018(release.votes, config.sigma2, delta, config.threshold, config.sigma1, release.answered)

    def noisy_answer(self, votes: Ints, ledger: Ledger) -> Ints:
        config = self.config
        return ledger.confident_noisy_max(
            votes, teachers=config.teachers, threshold=config.threshold, sigma1=config.sigma1, sigma2=config.sigma2,
            max_answers=config.max_answers,
        )  # fmt: skip
