"""Epsilons of sampled Gaussian noise by dp-accounting."""

from __future__ import annotations

from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant


def by_dp_accounting(rate: float, noise: float, runs: int, relation: NeighboringRelation, delta: float) -> float:
    accountant = PLDAccountant(relation)
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), runs))
    return float(accountant.get_epsilon(delta))
