"""The robust membership attack: does the target raise the record's probability more than that of population records?

Zarifzadeh, Liu and Shokri, "Low-Cost High-Power Membership Inference Attacks", ICML 2024 (arXiv:2312.03262). For the
candidate x and population records z, unseen by target and references, the score is the share of z with
``[p(x | target) / p(x)] / [p(z | target) / p(z)] >= gamma``, where p(x) is the mean over references. Offline, with only
references without x, it is ``((1 + a) p_out + (1 - a)) / 2`` for x and z, because a model trained on x would raise a
low p_out more. One to four references suffice.

The paper's CIFAR-10 setting also has a Taylor softmax with a margin; here it is a softmax with temperature. Shares are
averaged over queries. A candidate in all references has no p_out and gets the mean of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.interface import Access, BenchError, MembershipAttack, Signals, register_attack, setting
from bench.interface.signals import counts, log_probability, need_references

TINY = 1e-300  # avoids division by probabilities that round to 0


@dataclass(frozen=True)
class RMIAConfig:
    """Settings of the attack."""

    mode: Literal["offline", "online"] = setting("offline", "Zarifzadeh et al. 2024: the low-cost attack")
    gamma: float = setting(2.0, "Zarifzadeh et al. 2024, CIFAR-10 configuration of its code")
    a: float = setting(0.3, "Zarifzadeh et al. 2024, CIFAR-10 configuration of its code")
    temperature: float = setting(2.0, "Zarifzadeh et al. 2024, CIFAR-10 configuration of its code")


@register_attack("rmia")
class RMIA(MembershipAttack[RMIAConfig]):
    """Score by the share of population records that the candidate beats."""

    access = Access.CONFIDENCES
    citation = "Zarifzadeh, Liu and Shokri 2024"
    references = 1

    def score(self, signals: Signals) -> NDArray[np.float64]:
        """Return the mean share over queries (n,), in [0, 1]; raise BenchError without references or population."""
        config = self.config
        need_references(self.name, signals, self.references)
        if not len(signals.population_labels):
            raise BenchError("rmia compares with population records that nobody trained on, and was given none.")
        if not (config.gamma > 0 and config.temperature > 0 and 0 <= config.a <= 1):
            raise BenchError(
                "rmia takes gamma and temperature above 0 and a in [0, 1], not "
                f"gamma={config.gamma}, temperature={config.temperature}, a={config.a}."
            )
        log_p = log_probability(signals.references, signals.labels, config.temperature)
        p_in, p_out = _means(np.exp(log_p), signals.inside)
        population = np.exp(
            log_probability(signals.population_references, signals.population_labels, config.temperature)
        ).mean(axis=0)
        if config.mode == "online":
            usual = np.where(np.isnan(p_in), p_out, np.where(np.isnan(p_out), p_in, (p_in + p_out) / 2))
        else:
            if np.isnan(p_out).all():
                raise BenchError("rmia offline needs references that were trained without some of the candidates.")
            known = np.where(np.isnan(p_out), np.nanmean(p_out, axis=1, keepdims=True), p_out)
            usual, population = _offline(known, config.a), _offline(population, config.a)
        lift = log_probability(signals.target, signals.labels, config.temperature) - np.log(np.maximum(usual, TINY))
        bar = log_probability(signals.population_target, signals.population_labels, config.temperature)
        bar = np.sort(bar - np.log(np.maximum(population, TINY))) + math.log(config.gamma)
        share: NDArray[np.float64] = (np.searchsorted(bar, lift, side="right") / len(bar)).mean(axis=0)
        return share


def _offline(p_out: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    return ((1 + a) * p_out + (1 - a)) / 2


def _means(p: NDArray[np.float64], inside: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the means (queries, n) of `p` (k, queries, n) over references with and without, NaN if there are none."""
    into, outof = counts(inside)
    means = []
    for used, number in ((inside, into), (~inside, outof)):
        total = (p * used[:, None, :]).sum(axis=0)
        means.append(np.where(number > 0, total / np.maximum(number, 1), np.nan))
    return means[0], means[1]
