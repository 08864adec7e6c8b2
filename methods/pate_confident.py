"""PATE with the Confident-GNMax aggregator: answers only where enough teachers agree.

Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson, "Scalable Private Learning with PATE", ICLR 2018
(arXiv:1802.08908), section 4.2.

Threat model, private and public data, released parts and unit are those of :mod:`methods.pate`; which queries were
answered is released too. Each query first asks whether the largest count, with N(0, sigma1^2) noise (sensitivity 1),
reaches the threshold; a query that passes is answered by GNMax with sigma2 (L2 sensitivity sqrt(2)). The threshold is
paid for on every query. How many pass depends on the private data, so the run stops at ``max_answers`` answers and is
charged for all of them: a bound that holds whatever the votes.

What is claimed: with ``claim=data-dependent`` the paper's Renyi accountant on the votes of the run, itself private.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from bench.interface import Basis, BenchError, Budget, Claim, Facts, register_method, setting
from methods._pate import PATEFamily, PATEFamilyConfig, quick_settings, tiny_settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bench.interface import ConfidentGNMax, Event, Ledger

Printed = Mapping[str, tuple[float, int, float]]
PRINTED: Printed = {"mnist": (1e-5, 286, 1.97)}
"""Delta, answers and epsilon that table 1 of the paper prints for Confident-GNMax with the default settings."""


class ConfidentEvents:
    """What a config with the settings of Confident-GNMax can say of them."""

    queries: int
    max_answers: int
    threshold: float
    sigma1: float
    sigma2: float

    def at(self, queries: int) -> Self:
        """Return the same with so many queries, and as large a share of them answered at most."""
        answers = max(1, math.floor(queries * self.max_answers / self.queries))
        config: Any = self
        changed: Self = dataclasses.replace(config, queries=queries, max_answers=answers)
        return changed

    def event(self) -> ConfidentGNMax:
        """Return what the ledger will record."""
        from bench.interface import ConfidentGNMax

        return ConfidentGNMax(self.threshold, self.sigma1, self.sigma2, self.queries, self.max_answers)


@dataclass(frozen=True)
class PATEConfidentConfig(ConfidentEvents, PATEFamilyConfig):
    """Settings of PATE with Confident-GNMax; those of MNIST in table 1 of the paper."""

    queries: int = setting(640, "PATE 2018, section 5 and appendix: MNIST; calibrated to the budget")
    max_answers: int = setting(286, "PATE 2018, table 1: MNIST; calibrated to the budget")
    threshold: float = setting(200.0, "PATE 2018, table 1: MNIST")
    sigma1: float = setting(150.0, "PATE 2018, table 1: MNIST")
    sigma2: float = setting(40.0, "PATE 2018, table 1: MNIST")
    claim: Literal["data-dependent", "data-independent", "sanitised"] = setting(
        "data-dependent", "PATE 2018, section 5; sanitised: section 4 and appendix B"
    )


@register_method("pate-confident")
class PATEConfident(PATEFamily):
    """Label those public images on which the teachers clearly agree, then train the student on them."""

    Config: ClassVar[type] = PATEConfidentConfig
    printed: ClassVar[Printed] = PRINTED
    citation = "Papernot et al. 2018"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`."""

        def scaled(settings: dict[str, Any]) -> dict[str, Any]:
            # The paper's threshold and noises are these shares of its 250 teachers.
            teachers = settings["teachers"]
            noises = {"threshold": 0.8 * teachers, "sigma1": 0.6 * teachers, "sigma2": 0.16 * teachers}
            return {**settings, **noises, "claim": "data-independent"}

        return {"quick": scaled(quick_settings(facts)), "tiny": scaled(tiny_settings(facts))}

    @classmethod
    def calibrate(cls, config: PATEConfidentConfig, budget: Budget, facts: Facts) -> PATEConfidentConfig:
        """Return `config` with the most queries that `budget` pays for, judged without votes.

        On the claimed basis with the data-dependent claim, a budget that covers the epsilon that the paper prints
        gets the paper's setting.
        """
        from bench.interface import accountant, largest_count

        cls.check_facts(config, facts)
        paper = cls.Config()
        noises = ("teachers", "threshold", "sigma1", "sigma2", "queries", "max_answers")
        as_printed = all(getattr(config, name) == getattr(paper, name) for name in noises)
        delta, answers, epsilon = cls.printed.get(facts.dataset, (1.0, 0, math.inf))
        covered = as_printed and epsilon <= budget.epsilon + 1e-9 and delta <= budget.delta * (1 + 1e-9)
        if budget.basis is Basis.CLAIMED and config.claim == "data-dependent" and covered:
            return dataclasses.replace(
                config, queries=cls.payable(config.queries, facts), max_answers=min(config.max_answers, answers)
            )
        queries = largest_count(
            lambda queries: [config.at(queries).event()],
            budget.epsilon,
            budget.delta,
            accountant("rdp-classic" if budget.basis is Basis.CLAIMED else "proven"),
        )
        found = config.at(cls.payable(queries, facts))
        if config.claim == "sanitised":
            from bench.privacy.smooth_sensitivity import check_release

            if not facts.public_benchmark:
                raise BenchError(
                    f"claim=sanitised is for public benchmarks: of {facts.dataset} no figure that depends on votes is "
                    "recorded. Use claim=data-independent."
                )

            check_release(found.event(), budget.delta, facts.classes)
        return found

    @classmethod
    def claimed(cls, config: PATEConfidentConfig, facts: Facts, delta: float) -> Claim:
        """Return the paper's Renyi figure without votes, every answer that the cap allows counted."""
        from bench.privacy.accountants import rdp_classic

        figure = rdp_classic([config.event()], delta)
        assert figure is not None  # it applies to every Gaussian event
        return Claim(figure.epsilon, delta, SOURCE, "data-independent")

    @classmethod
    def claimed_after(cls, config: PATEConfidentConfig, facts: Facts, delta: float, ledger: Ledger) -> Claim:
        """Return the paper's Renyi figure for the votes, where that is the claim."""
        if config.claim == "data-independent":
            return cls.claimed(config, facts, delta)
        if config.claim == "sanitised":
            return ledger.sanitised(delta)
        from bench.privacy.claims import pate_2018

        (release,) = ledger.private_votes()
        return pate_2018(release.votes, config.sigma2, delta, config.threshold, config.sigma1, release.answered)

    @classmethod
    def charges(cls, config: PATEConfidentConfig, facts: Facts) -> Sequence[Event]:
        """Return the threshold of all queries and the answers that it may let through."""
        return [config.event()]

    def answer(self, config: PATEConfidentConfig, votes: NDArray[np.int64], ledger: Ledger) -> NDArray[np.int64]:
        """See :meth:`methods._pate.PATEFamily.answer`."""
        if config.claim == "sanitised":
            ledger.check_sanitised()
        return ledger.confident_noisy_max(
            votes,
            teachers=config.teachers,
            threshold=config.threshold,
            sigma1=config.sigma1,
            sigma2=config.sigma2,
            max_answers=config.max_answers,
        )


SOURCE = "Papernot et al., ICLR 2018 (arXiv:1802.08908), sections 3.2 and 4.2"
