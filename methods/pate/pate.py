"""PATE with the LNMax aggregator: Private Aggregation of Teacher Ensembles.

Papernot, Abadi, Erlingsson, Goodfellow, Talwar, "Semi-supervised Knowledge Transfer for Deep Learning from Private
Training Data", ICLR 2017 (arXiv:1610.05755).

Threat model: the attacker holds the released student and knows all records but one. Private: images and labels; each
record trains one teacher, chosen by a hash of its index. Public: unlabelled images of the same distribution. Released:
the student, the choice of queries, and their noisy labels. Unit record: one record changes one teacher and so one vote
per query. Lap(1/gamma) noise on every count makes a query 2*gamma-DP.

Claimed: with ``claim=data-dependent`` the moments accountant on the votes as printed (its analysis doubles gamma),
itself private; with ``claim=closed-form`` strong composition, which needs no votes, so queries can be planned. Proven:
the composition of the noisy histograms.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bench.interface import (
    Basis,
    BenchError,
    Budget,
    Claim,
    Facts,
    Ledger,
    LNMax,
    largest_count,
    pate_closed_form,
    register_method,
    setting,
    smallest_noise,
)
from bench.methods.pate.family import Ints, PATEFamily, PATEFamilyConfig
from bench.privacy.accounting.claims import pate_2017
from bench.privacy.accounting.pate import PUBLISHED_LARGEST_MOMENT

Printed = Mapping[str, tuple[float, tuple[tuple[int, float], ...]]]
PRINTED: Printed = {"mnist": (1e-5, ((100, 2.04), (1000, 8.03))), "svhn": (1e-6, ((500, 5.04), (1000, 8.19)))}
"""Table 2: delta, then queries and epsilons, with Lap(20)."""


@dataclass(frozen=True)
class PATEConfig(PATEFamilyConfig):
    """Settings of PATE with LNMax."""

    gamma: float = setting(0.05, "PATE 2017, section 4.1: Laplacian noise of scale 20", ge=0)
    least_queries: int = setting(1, "PATE 2017 keeps gamma; a larger number lowers it if the budget covers fewer", ge=1)
    claim: Literal["data-dependent", "closed-form"] = setting("data-dependent", "PATE 2017, section 4.2")


@register_method("pate")
class PATE(PATEFamily):
    """Label public images by the noisy plurality of teachers, then train the student on them."""

    Config: ClassVar[type] = PATEConfig  # not typed as `config`: subclasses' configs do not derive from it
    citation = "Papernot et al. 2017"
    printed: ClassVar[Printed] = PRINTED

    @classmethod
    def scaled(cls, settings: dict[str, Any], facts: Facts) -> dict[str, Any]:
        # Chosen on MNIST: the student learns more from four noisy labels per class than from one accurate label.
        fewest = {"claim": "closed-form", "least_queries": 4 * facts.classes}
        return {**settings, **fewest, "gamma": 5 / settings["teachers"]}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the most queries that `budget` pays for; gamma falls if ``least_queries`` needs it.

        On the claimed basis with the data-dependent claim, the printed settings come first, then the closed form: the
        claim is usually smaller, but that of tied votes is up to twice the target. Raises :class:`BenchError` below the
        least data-dependent claim.
        """
        self.check_facts()
        paper = self.Config()
        as_printed = self.config.gamma == paper.gamma and self.config.teachers == paper.teachers
        delta, rows = self.printed.get(self.facts.dataset, (1.0, ())) if as_printed else (1.0, ())
        covered = delta <= budget.delta * (1 + 1e-9)
        printed = [queries for queries, epsilon in rows if covered and epsilon <= budget.epsilon + 1e-9]
        if budget.basis is Basis.CLAIMED and self.config.claim == "data-dependent" and printed:
            return dataclasses.replace(self.config, queries=min(max(printed), self.facts.public_records))
        least = -math.log(budget.delta) / PUBLISHED_LARGEST_MOMENT
        if budget.basis is Basis.CLAIMED and self.config.claim == "data-dependent" and budget.epsilon < least:
            raise BenchError(
                f"with moments up to {PUBLISHED_LARGEST_MOMENT}, PATE's data-dependent claim is {least:.2f} or more at "
                f"delta {budget.delta:g}, whatever the votes. Ask for that, or set claim=closed-form."
            )
        wanted = min(self.config.least_queries, self.facts.public_records)
        gamma = self.config.gamma
        try:
            queries = largest_count(lambda n: [LNMax(gamma, n)], budget, claimed="pate-2017-closed-form")
        except BenchError:
            if wanted == 1:
                raise
            queries = 0
        if queries < wanted:
            queries, gamma = wanted, _largest_gamma(wanted, budget)
        return dataclasses.replace(self.config, queries=min(queries, self.facts.public_records), gamma=gamma)

    def claimed(self, delta: float) -> Claim:
        """Return the closed form, which needs no votes."""
        return pate_closed_form(self.config.gamma, self.config.queries, delta)

    def claimed_after(self, delta: float, ledger: Ledger) -> Claim:
        """Return the paper's moments accountant on the votes, if that is the claim."""
        if self.config.claim == "closed-form":
            return self.claimed(delta)

        (release,) = ledger.private_votes()
        return pate_2017(release.votes, self.config.gamma, delta)

    def charges(self) -> list[LNMax]:
        return [LNMax(self.config.gamma, self.config.queries)]

    def answer(self, votes: Ints, ledger: Ledger) -> Ints:
        return ledger.noisy_max(votes, teachers=self.config.teachers, gamma=self.config.gamma)


def _largest_gamma(queries: int, budget: Budget) -> float:
    if budget.basis is Basis.CLAIMED:
        # The positive root of 4 T g^2 + 2 g sqrt(2 T L) = eps, in its numerically stable form.
        spread = math.sqrt(2 * queries * -math.log(budget.delta))
        return budget.epsilon / (spread + math.sqrt(spread**2 + 4 * queries * budget.epsilon))

    return 1 / smallest_noise(lambda scale: [LNMax(1 / scale, queries)], budget, start=100.0, tolerance=1e-4)
