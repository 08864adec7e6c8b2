"""PATE with the LNMax aggregator: Private Aggregation of Teacher Ensembles.

Papernot, Abadi, Erlingsson, Goodfellow, Talwar, "Semi-supervised Knowledge Transfer for Deep Learning from Private
Training Data", ICLR 2017 (arXiv:1610.05755).

Threat model: the attacker holds the released student and knows all records but one. Private: images and labels; each
record trains one teacher, chosen by a hash of its index. Public: unlabelled images of the same distribution. Released:
the student, the choice of queries, and their noisy labels. Unit record: one record changes one teacher and so one vote
per query. Lap(1/gamma) noise on every count makes a query 2*gamma-DP.

Claimed: with ``claim=data-dependent`` the moments accountant on the votes as printed (its analysis doubles gamma),
itself private; with ``claim=closed-form`` the strong composition, which needs no votes, so that queries can be planned.
Proven: the composition of the noisy histograms.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bench.interface import Basis, BenchError, Budget, Claim, Facts, register_method, setting
from bench.methods.pate.family import PATEFamily, PATEFamilyConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bench.interface import Event, Ledger

Printed = Mapping[str, tuple[float, tuple[tuple[int, float], ...]]]
PRINTED: Printed = {"mnist": (1e-5, ((100, 2.04), (1000, 8.03))), "svhn": (1e-6, ((500, 5.04), (1000, 8.19)))}
"""Table 2: delta, then queries and epsilons, with Lap(20)."""


@dataclass(frozen=True)
class PATEConfig(PATEFamilyConfig):
    """Settings of PATE with LNMax."""

    gamma: float = setting(0.05, "PATE 2017, section 4.1: Laplacian noise of scale 20")
    least_queries: int = setting(1, "PATE 2017 keeps gamma; a larger number lowers gamma until so many are payable")
    claim: Literal["data-dependent", "closed-form"] = setting("data-dependent", "PATE 2017, section 4.2")


@register_method("pate")
class PATE(PATEFamily):
    """Label public images by the noisy plurality of teachers, then train the student on them."""

    Config: ClassVar[type] = PATEConfig
    citation = "Papernot et al. 2017"
    printed: ClassVar[Printed] = PRINTED

    @classmethod
    def scaled(cls, settings: dict[str, Any], facts: Facts) -> dict[str, Any]:
        """See :meth:`bench.methods.pate.family.PATEFamily.scaled`."""
        # Chosen on MNIST: four noisy labels a class serve the student better than one good one.
        fewest = {"claim": "closed-form", "least_queries": 4 * facts.classes}
        return {**settings, **fewest, "gamma": 5 / settings["teachers"]}

    @classmethod
    def calibrate(cls, config: PATEConfig, budget: Budget, facts: Facts) -> PATEConfig:
        """Return `config` with the most queries that `budget` pays for at its gamma, or lower for ``least_queries``.

        On the claimed basis with the data-dependent claim, the printed settings come first, then the closed form.
        """
        from bench.interface import LNMax, largest_count

        cls.check_facts(config, facts)
        paper = cls.Config()
        as_printed = config.gamma == paper.gamma and config.teachers == paper.teachers
        delta, rows = cls.printed.get(facts.dataset, (1.0, ())) if as_printed else (1.0, ())
        covered = delta <= budget.delta * (1 + 1e-9)
        printed = [queries for queries, epsilon in rows if covered and epsilon <= budget.epsilon + 1e-9]
        if budget.basis is Basis.CLAIMED and config.claim == "data-dependent" and printed:
            return dataclasses.replace(config, queries=min(max(printed), facts.public_records))
        wanted = min(config.least_queries, facts.public_records)
        try:
            queries = largest_count(
                lambda queries: [LNMax(config.gamma, queries)], budget, claimed="pate-2017-closed-form"
            )
        except BenchError:
            if wanted == 1:
                raise
            queries = 0
        gamma = config.gamma
        if queries < wanted:
            queries, gamma = wanted, _largest_gamma(wanted, budget)
        return dataclasses.replace(config, queries=min(queries, facts.public_records), gamma=gamma)

    @classmethod
    def claimed(cls, config: PATEConfig, facts: Facts, delta: float) -> Claim:
        """Return the closed form, which needs no votes."""
        from bench.interface import pate_closed_form

        return pate_closed_form(config.gamma, config.queries, delta)

    @classmethod
    def claimed_after(cls, config: PATEConfig, facts: Facts, delta: float, ledger: Ledger) -> Claim:
        """Return the paper's moments accountant on the votes, where that is the claim."""
        if config.claim == "closed-form":
            return cls.claimed(config, facts, delta)
        from bench.privacy.accounting.claims import pate_2017

        (release,) = ledger.private_votes()
        return pate_2017(release.votes, config.gamma, delta)

    @classmethod
    def charges(cls, config: PATEConfig, facts: Facts) -> Sequence[Event]:
        """Return the noisy histograms of all queries."""
        from bench.interface import LNMax

        return [LNMax(config.gamma, config.queries)]

    def answer(self, config: PATEConfig, votes: NDArray[np.int64], ledger: Ledger) -> NDArray[np.int64]:
        """See :meth:`bench.methods.pate.family.PATEFamily.answer`."""
        return ledger.noisy_max(votes, teachers=config.teachers, gamma=config.gamma)


def _largest_gamma(queries: int, budget: Budget) -> float:
    if budget.basis is Basis.CLAIMED:
        # The positive root of 4 T g^2 + 2 g sqrt(2 T L) = eps, in its numerically stable form.
        spread = math.sqrt(2 * queries * -math.log(budget.delta))
        return budget.epsilon / (spread + math.sqrt(spread**2 + 4 * queries * budget.epsilon))
    from bench.interface import LNMax, smallest_noise

    return 1 / smallest_noise(lambda scale: [LNMax(1 / scale, queries)], budget, start=100.0, tolerance=1e-4)
