"""Audits by scores: turn an attack's scores of canaries into the counts behind a lower bound on epsilon.

Everything tunable (number of guesses, threshold runs, channels that share the confidence) is fixed by the caller before
looking. The bound holds for the coins' unit and adjacency: add-remove if a coin includes a record, replace if it
chooses between two values drawn in advance. Steinke, Nasr and Jagielski 2023 (arXiv:2305.08846) for one run, Nasr et
al. 2021 (arXiv:2101.04535) for many.
"""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.interface import BenchError
from bench.privacy.auditing.bounds import refuted_epsilons
from bench.privacy.auditing.one_run import guesses_needed, one_run_cap


def right_guesses(
    scores: ArrayLike, coins: ArrayLike, guesses_in: int, guesses_out: int, generator: np.random.Generator
) -> int:
    """Guess the coins of the largest and smallest scores, abstain on the rest; return the number of correct guesses.

    `scores` (n,) are larger if the coin looks like 1, and computed without the `coins`, n fair independent booleans.
    The numbers of guesses are fixed before looking. `generator` breaks ties, whose order might depend on the coins.
    Raises :class:`BenchError` on shapes that differ, NaN scores, or more guesses than scores.
    """
    values, tossed = _scores(scores), np.asarray(coins)
    if values.shape != tossed.shape:
        raise BenchError(f"scores and coins must be of one shape (n,), not {values.shape} and {tossed.shape}.")
    if not np.isin(tossed, (0, 1)).all():
        raise BenchError("coins must be booleans.")
    if guesses_in < 0 or guesses_out < 0 or not 1 <= guesses_in + guesses_out <= len(values):
        raise BenchError(
            f"{guesses_in} guesses of coin 1 and {guesses_out} of coin 0 must be from 1 to {len(values)} in all."
        )
    order = generator.permutation(len(values))
    order = order[np.argsort(values[order], kind="stable")]
    right_out = int((tossed[order[:guesses_out]] == 0).sum())
    return right_out + int((tossed[order[len(order) - guesses_in :]] == 1).sum())


def check_power(
    canaries: int, guesses: int, epsilon: float, delta: float, confidence: float = 0.95, group: int = 1
) -> float:
    """Return the cap of a one-run audit; if below `epsilon`, raise BenchError with counts that suffice."""
    cap = one_run_cap(canaries, guesses, delta, confidence, group)
    if cap >= epsilon:
        return cap
    needed = guesses_needed(epsilon, canaries, delta, confidence, group)
    what = f"too few canaries to reach epsilon {epsilon:g} at confidence {confidence:g} and delta {delta:g}"
    if needed is not None:
        raise BenchError(
            f"{what}: {guesses} guesses of {canaries} canaries certify at most {cap:.3g}. "
            f"{needed} guesses, all correct, would suffice."
        )
    more = _canaries_needed(canaries, epsilon, delta, confidence, group)
    would = "No number of canaries suffices at this delta: ask for a smaller epsilon, or audit at a smaller delta."
    if more:
        would = f"At least {more} canaries, all guessed correctly, would suffice."
    raise BenchError(f"{what}: even {canaries} correct guesses do not suffice. {would}")


def _canaries_needed(canaries: int, epsilon: float, delta: float, confidence: float, group: int) -> int | None:
    """Return the fewest canaries that can certify `epsilon`, None if ten million cannot."""

    def enough(number: int) -> bool:
        return guesses_needed(epsilon, number, delta, confidence, group) is not None

    high = canaries
    while not enough(high):
        high *= 2
        if high > 10_000_000:
            return None
    return bisect.bisect(range(high), False, lo=high // 2, key=enough)


def many_run_errors(
    scores_in: ArrayLike, scores_out: ArrayLike, threshold_share: float, delta: float, confidence: float = 0.95
) -> tuple[int, int, int, int]:
    """Return the errors of guessing one canary over independent runs with it, (a,), and without it, (b,).

    The order of the scores must be independent of their values. The first `threshold_share`, in (0, 1), of each arm
    chooses the threshold with the largest bound; the others, at least one in each arm, count. Returns false positives,
    runs without the canary, false negatives, runs with it, for
    :func:`bench.privacy.auditing.bounds.many_run_epsilon`. Raises :class:`BenchError` on NaN scores.
    """
    arms = _scores(scores_in), _scores(scores_out)
    heads = [max(1, round(threshold_share * len(arm))) for arm in arms]
    threshold = best_threshold(arms[0][: heads[0]], arms[1][: heads[1]], delta, confidence)
    rest_in, rest_out = arms[0][heads[0] :], arms[1][heads[1] :]
    return int((rest_out >= threshold).sum()), len(rest_out), int((rest_in < threshold).sum()), len(rest_in)


def best_threshold(
    first_in: NDArray[np.float64], first_out: NDArray[np.float64], delta: float, confidence: float
) -> float:
    """Return the threshold with the largest bound, or the most accurate one if no bound is positive."""
    values = np.unique(np.concatenate([first_in, first_out]))
    # Cut halfway between scores, because the next run may fall on either side.
    cuts = np.concatenate([values[:1], (values[1:] + values[:-1]) / 2])
    ins, outs = len(first_in), len(first_out)
    misses = np.searchsorted(np.sort(first_in), cuts).astype(np.float64)
    passes = outs - np.searchsorted(np.sort(first_out), cuts).astype(np.float64)
    up = refuted_epsilons(ins - misses, ins, passes, outs, delta, confidence)
    down = refuted_epsilons(outs - passes, outs, misses, ins, delta, confidence)
    bound = np.maximum(np.maximum(up, down), 0.0)
    return float(cuts[np.lexsort((misses / ins + passes / outs, -bound))[0]])


def _scores(scores: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise BenchError(f"scores must be (n,) with n of at least 1, not {values.shape}.")
    if np.isnan(values).any():
        raise BenchError(f"{int(np.isnan(values).sum())} of {len(values)} scores are NaN.")
    return values
