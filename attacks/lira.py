"""The likelihood-ratio attack: is the target's confidence likelier with the record in training, or without?

Carlini et al., "Membership Inference Attacks From First Principles", IEEE S&P 2022 (arXiv:2112.03570), algorithm 1
(online) and section V-B, VI (offline). References are complete pipelines with their own noise.

Confidence is the logit of the label's probability, in float64. For each candidate, one normal distribution is fitted to
the references with it and one to those without: medians, and variances per side, pooled over candidates if references
are few. The offline attack uses only references without the candidate and scores by minus the log of the upper tail,
which ranks like the log of the lower tail but does not round to 0 for far more confident targets. For a candidate with
references on one side only, the online attack shifts that side's mean by the mean shift of the other candidates; the
offline attack takes the median of all candidates.

The paper has up to 256 references and 18 augmented queries; here the paper preset trains 64 shadow runs, so each target
has 63 references, and asks for five shifted queries (one for images below 16 pixels).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.interface import Access, BenchError, MembershipAttack, Signals, register_attack, setting
from bench.interface.signals import counts, log_odds, need_references

Floats = NDArray[np.float64]
GLOBAL_BELOW = 64  # number of references below which a pooled variance is less noisy than one per candidate
LEAST_STD = 1e-6  # lower bound: if references agree, the likelihood is unbounded


@dataclass(frozen=True)
class LiRAConfig:
    """Settings of the attack."""

    mode: Literal["online", "offline"] = setting("online", "Carlini et al. 2022, algorithm 1; offline: section V-B")
    variance: Literal["auto", "global", "per-record"] = setting(
        "auto", "Carlini et al. 2022, section VI-C: one global variance for fewer than 64 references, else each its own"
    )


@register_attack("lira")
class LiRA(MembershipAttack[LiRAConfig]):
    """Score by the likelihood ratio of the target's confidence."""

    access = Access.CONFIDENCES
    citation = "Carlini, Chien, Nasr, Song, Terzis and Tramer 2022"
    references = 4

    def score(self, signals: Signals) -> Floats:
        """Return the mean log likelihood ratio or tail over queries (n,); raise BenchError below four references."""
        config = self.config
        need_references(self.name, signals, self.references)
        phi = log_odds(signals.target, signals.labels)  # (queries, n)
        seen = log_odds(signals.references, signals.labels)  # (k, queries, n)
        own = config.variance == "per-record" or (config.variance == "auto" and len(seen) >= GLOBAL_BELOW)
        into, outof = counts(signals.inside)
        if not outof.any():
            raise BenchError("lira needs references that were trained without some of the candidates.")
        mean_out, std_out = _fit(seen, ~signals.inside, outof, own)
        if config.mode == "offline":
            middle = np.nanmedian(mean_out, axis=1, keepdims=True)
            distance = (phi - np.where(outof > 0, mean_out, middle)) / std_out
            tail: Floats = -special.log_ndtr(-distance).mean(axis=0)
            return tail
        both = (into > 0) & (outof > 0)
        if not both.any():
            raise BenchError(
                "lira online needs candidates that some references were trained with and others without; "
                "for references without any candidate use mode=offline."
            )
        mean_in, std_in = _fit(seen, signals.inside, into, own)
        shift = (mean_in - mean_out)[:, both].mean(axis=1, keepdims=True)
        mean_in = np.where(into > 0, mean_in, mean_out + shift)
        mean_out = np.where(outof > 0, mean_out, mean_in - shift)
        ratio = _log_density(phi, mean_in, std_in) - _log_density(phi, mean_out, std_out)
        mean: Floats = ratio.mean(axis=0)
        return mean


def _fit(seen: Floats, used: NDArray[np.bool_], number: NDArray[np.int64], own: bool) -> tuple[Floats, Floats]:
    """Return medians (NaN if empty) and standard deviations (queries, n), the latter pooled per query unless `own`."""
    values = np.where(used[:, None, :], seen, np.nan)
    some = number > 0
    median = np.full(seen.shape[1:], np.nan)
    median[:, some] = np.nanmedian(values[:, :, some], axis=0)
    freedom = np.maximum(number - 1, 0)
    if not freedom.any():
        raise BenchError(
            "lira cannot estimate the variance of confidences, because no candidate has two references on "
            "one side. Train more references."
        )
    centred = np.where(used[:, None, :], seen - np.nansum(values, axis=0) / np.maximum(number, 1), 0.0)
    squares = (centred**2).sum(axis=0)  # (queries, n)
    pooled = np.sqrt(squares.sum(axis=1) / freedom.sum())[:, None]
    std = np.broadcast_to(pooled, median.shape)
    if own:
        std = np.where(number > 1, np.sqrt(squares / np.maximum(freedom, 1)), std)
    return median, np.maximum(std, LEAST_STD)


def _log_density(values: Floats, mean: Floats, std: Floats) -> Floats:
    return -(((values - mean) / std) ** 2) / 2 - np.log(std)
