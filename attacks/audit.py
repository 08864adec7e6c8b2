"""Audits by scores: from what an attack said of canaries to a lower bound on epsilon.

Everything that could be tuned to the answer is an argument that the caller fixes before looking: how many coins are
guessed, which runs choose a threshold, how many channels share the confidence. A bound is a bound of the unit and the
adjacency that the coins are of: with coins that put a record in or leave it out, of add-remove neighbours; with coins
that choose one of two values drawn beforehand, of replacement.

Sources: Steinke, Nasr and Jagielski 2023 (arXiv:2305.08846) for one run, Nasr et al. 2021 (arXiv:2101.04535) for many.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.interface import BenchError
from bench.privacy.bounds import (
    ManyRunBound,
    guesses_needed,
    many_run_epsilon,
    one_run_cap,
    one_run_epsilon,
    one_run_p_value,
    refuted_epsilons,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class OneRunAudit:
    """What one training run with m canaries proves."""

    canaries: int
    """m: coins that were tossed."""
    guesses: int
    """r: coins that were guessed."""
    correct: int
    """v: right guesses."""
    delta: float
    confidence: float
    group: int
    """How many times each canary stands in the data."""
    epsilon: float
    """Lower bound on the epsilon of a single record at `delta`; 0 where nothing is refuted."""
    cap: float
    """The largest bound that so many guesses could have given."""
    p_value: float
    """Of epsilon 0: the chance of so many right guesses where nothing leaks but delta."""

    def at(self, confidence: float) -> OneRunAudit:
        """Return the audit of the same counts at another confidence."""
        return _from_counts(self.canaries, self.guesses, self.correct, self.delta, confidence, self.group)


@dataclass(frozen=True, slots=True)
class ManyRunAudit:
    """What many training runs, with a record and without it, prove."""

    threshold: float
    """Guess that the record was there where the score is at least this; chosen on the first runs of each arm."""
    chosen_on: int
    """Runs that chose it, both arms together: they are not counted."""
    false_positives: int
    negatives: int
    false_negatives: int
    positives: int
    delta: float
    confidence: float
    bound: ManyRunBound

    def at(self, confidence: float) -> ManyRunAudit:
        """Return the audit of the same counts at another confidence."""
        counted = self.false_positives, self.negatives, self.false_negatives, self.positives
        bound = many_run_epsilon(*counted, self.delta, confidence)
        return dataclasses.replace(self, confidence=confidence, bound=bound)


def one_run(
    scores: ArrayLike,
    coins: ArrayLike,
    guesses_in: int,
    guesses_out: int,
    delta: float,
    generator: np.random.Generator,
    canaries: int | None = None,
    group: int = 1,
    confidence: float = 0.95,
) -> OneRunAudit:
    """Guess the coins of the largest and the smallest scores, abstain on the rest, and return what it proves.

    A canary that stands `group` times in the data is (group epsilon, delta (1 + e^epsilon + ... +
    e^((group - 1) epsilon)))-DP where a record is (epsilon, delta)-DP, and the bound is the largest epsilon whose pair
    is refuted. At delta 0 that is the canary's bound divided by `group`; at a larger delta it is less.

    Args:
        scores: (n,), larger where the coin looks like 1. They must not have been made with the coins.
        coins: (n,) of booleans, tossed fairly and independently.
        guesses_in: How many of the largest scores are guessed to have coin 1; fixed before looking.
        guesses_out: How many of the smallest are guessed to have coin 0; fixed before looking.
        delta: In [0, 1).
        generator: Breaks ties between scores, which their order must not: it may tell the coins.
        canaries: Coins that were tossed, where not all have a score; None for n.
        group: How many times each canary stands in the data.
        confidence: In (0, 1).

    Raises:
        BenchError: On shapes that differ, scores that are no numbers, more guesses than scores, or what
            :func:`bench.privacy.bounds.one_run_epsilon` refuses.

    """
    values, tossed = _scores(scores), np.asarray(coins)
    if values.shape != tossed.shape:
        raise BenchError(f"scores and coins must be of one shape (n,), not {values.shape} and {tossed.shape}.")
    if not np.isin(tossed, (0, 1)).all():
        raise BenchError("coins must be booleans.")
    total = len(values) if canaries is None else canaries
    if guesses_in < 0 or guesses_out < 0 or not 1 <= guesses_in + guesses_out <= len(values) or total < len(values):
        raise BenchError(
            f"{guesses_in} guesses of coin 1 and {guesses_out} of coin 0 must be from 1 to {len(values)} scores in "
            f"all, and no more scores than the {total} canaries."
        )
    order = generator.permutation(len(values))
    order = order[np.argsort(values[order], kind="stable")]
    right_out = int((tossed[order[:guesses_out]] == 0).sum())
    right_in = int((tossed[order[len(order) - guesses_in :]] == 1).sum())
    return _from_counts(total, guesses_in + guesses_out, right_in + right_out, delta, confidence, group)


def _from_counts(canaries: int, guesses: int, correct: int, delta: float, confidence: float, group: int) -> OneRunAudit:
    # At epsilon 0 the delta of a group is that of its records together.
    moved = min(group * delta, math.nextafter(1.0, 0.0))
    return OneRunAudit(
        canaries,
        guesses,
        correct,
        delta,
        confidence,
        group,
        epsilon=one_run_epsilon(canaries, guesses, correct, delta, confidence, group),
        cap=one_run_cap(canaries, guesses, delta, confidence, group),
        p_value=one_run_p_value(canaries, guesses, correct, 0.0, moved),
    )


def check_power(
    canaries: int, guesses: int, epsilon: float, delta: float, confidence: float = 0.95, group: int = 1
) -> float:
    """Return the cap of an audit from one run; raise where it could not certify `epsilon` even with no wrong guess.

    Raises:
        BenchError: Where it could not, naming the fewest guesses that could; or as
            :func:`bench.privacy.bounds.one_run_epsilon`.

    """
    cap = one_run_cap(canaries, guesses, delta, confidence, group)
    if cap >= epsilon:
        return cap
    needed = guesses_needed(epsilon, canaries, delta, confidence, group)
    what = f"too few canaries to reach epsilon {epsilon:g} at confidence {confidence:g} and delta {delta:g}"
    if needed is not None:
        raise BenchError(
            f"{what}: {guesses} guesses of {canaries} canaries certify at most {cap:.3g}. "
            f"{needed} guesses, all right, would do."
        )
    more = _canaries_needed(canaries, epsilon, delta, confidence, group)
    would = (
        f"At least {more} canaries, all guessed and right, would do."
        if more
        else "No number of canaries does at this delta: ask for a smaller epsilon, or audit at a smaller delta."
    )
    raise BenchError(f"{what}: even all {canaries} of them, guessed right, do not. {would}")


def _canaries_needed(canaries: int, epsilon: float, delta: float, confidence: float, group: int) -> int | None:
    """Return the fewest canaries that can certify `epsilon`, None where ten million cannot."""
    low, high = canaries, canaries
    while guesses_needed(epsilon, high, delta, confidence, group) is None:
        low, high = high, high * 2
        if high > 10_000_000:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if guesses_needed(epsilon, middle, delta, confidence, group) is not None else (middle, high)
        )
    return high


def many_runs(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    threshold_share: float,
    delta: float,
    confidence: float = 0.95,
) -> ManyRunAudit:
    """Return what the scores of one canary prove over many independent runs with it and without.

    The first share of each arm chooses the threshold whose errors there prove most; the other runs are counted.

    Args:
        scores_in: (a,) scores of runs with the canary, in an order that does not depend on them.
        scores_out: (b,) scores of runs without it.
        threshold_share: Share of each arm that chooses the threshold, in (0, 1).
        delta: In [0, 1).
        confidence: In (0, 1).

    Raises:
        BenchError: On scores that are no numbers, a share that leaves an arm without runs on either side, or a delta or
            confidence out of range.

    """
    arms = _scores(scores_in), _scores(scores_out)
    if not 0 < threshold_share < 1:
        raise BenchError(f"the share of runs that choose the threshold lies in (0, 1), not {threshold_share}.")
    heads = [max(1, round(threshold_share * len(arm))) for arm in arms]
    if any(head >= len(arm) for head, arm in zip(heads, arms, strict=True)):
        raise BenchError(
            f"{len(arms[0])} and {len(arms[1])} runs leave none to count after a share of {threshold_share} chose the "
            "threshold. Give at least two runs of each arm."
        )
    first_in, first_out = arms[0][: heads[0]], arms[1][: heads[1]]
    rest_in, rest_out = arms[0][heads[0] :], arms[1][heads[1] :]
    threshold = _threshold(first_in, first_out, delta, confidence)
    counted = (
        int((rest_out >= threshold).sum()),
        len(rest_out),
        int((rest_in < threshold).sum()),
        len(rest_in),
    )
    bound = many_run_epsilon(*counted, delta, confidence)
    return ManyRunAudit(threshold, sum(heads), *counted, delta, confidence, bound)


def _threshold(first_in: NDArray[np.float64], first_out: NDArray[np.float64], delta: float, confidence: float) -> float:
    """Return the threshold that proves most, the most accurate one where none proves anything."""
    values = np.unique(np.concatenate([first_in, first_out]))
    # Between two scores the next run may fall on either side: halfway is fairest.
    cuts = np.concatenate([values[:1], (values[1:] + values[:-1]) / 2])
    ins, outs = len(first_in), len(first_out)
    misses = np.searchsorted(np.sort(first_in), cuts).astype(np.float64)
    passes = outs - np.searchsorted(np.sort(first_out), cuts).astype(np.float64)
    up = refuted_epsilons(ins - misses, ins, passes, outs, delta, confidence)
    down = refuted_epsilons(outs - passes, outs, misses, ins, delta, confidence)
    bound = np.maximum(np.maximum(up, down), 0.0)
    # The last key counts most.
    return float(cuts[np.lexsort((misses / ins + passes / outs, -bound))[0]])


def bonferroni(
    audits: Sequence[OneRunAudit] | Sequence[ManyRunAudit], confidence: float = 0.95
) -> list[OneRunAudit] | list[ManyRunAudit]:
    """Return the audits of several channels, each from its counts at confidence 1 - (1 - confidence) / channels.

    All of their bounds then hold together at `confidence`, so that the largest may be reported.

    Raises :class:`BenchError` on no audit at all or a confidence outside (0, 1).
    """
    if not audits:
        raise BenchError("there are no audits to correct.")
    if not 0 < confidence < 1:
        raise BenchError(f"confidence must lie strictly between 0 and 1, not {confidence}. Try 0.95.")
    each = 1 - (1 - confidence) / len(audits)
    return [audit.at(each) for audit in audits]  # type: ignore[return-value]


def _scores(scores: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise BenchError(f"scores must be (n,) with n of at least 1, not {values.shape}.")
    if np.isnan(values).any():
        raise BenchError(f"{int(np.isnan(values).sum())} of {len(values)} scores are no numbers.")
    return values
