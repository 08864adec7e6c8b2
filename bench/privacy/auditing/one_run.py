"""Audits of a single training run: Steinke, Nasr and Jagielski 2023 (arXiv:2305.08846).

Fair coins decide independently which of m canaries enter the training data, all else fixed. The auditor guesses r
coins, v of them correctly. Under (epsilon, delta)-DP, v is hardly larger than the number of heads among r coins with
heads probability ``e^epsilon / (1 + e^epsilon)`` (theorem 5.2). Which coins to guess must not depend on the coins, and
r is fixed in advance. Coins that include or omit a record bound add-remove epsilon; coins that choose between two
values fixed in advance bound replace epsilon.
"""

from __future__ import annotations

import bisect
import math

import numpy as np
from scipy import special

from bench.core.errors import BenchError


def check_counts(part: str, hits: int, whole: str, trials: int) -> None:
    """Raise :class:`BenchError` unless both are whole numbers with 0 <= `hits` <= `trials` and `trials` >= 1."""
    for what, value in ((part, hits), (whole, trials)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise BenchError(f"the number of {what} must be whole, not {value!r}.")
    if trials < 1 or not 0 <= hits <= trials:
        raise BenchError(f"there must be at least 1 of {whole} and from 0 to all {part}, not {hits} of {trials}.")


def check_audit_delta(delta: float) -> None:
    """Raise :class:`BenchError` unless `delta` is in [0, 1), where 0 audits pure epsilon."""
    if math.isnan(delta) or not 0 <= delta < 1:
        raise BenchError(f"delta of an audit must lie in [0, 1), not {delta}. Try 0 or 1e-5.")


def check_confidence(confidence: float) -> float:
    """Return `confidence`; raise :class:`BenchError` unless it is strictly between 0 and 1."""
    if math.isnan(confidence) or not 0 < confidence < 1:
        raise BenchError(f"confidence must lie strictly between 0 and 1, not {confidence}. Try 0.95.")
    return float(confidence)


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of at least `correct` right guesses under (epsilon, delta)-DP (theorem 5.2)."""
    if correct == 0:
        return 1.0
    wrong = 1 / (1 + math.exp(epsilon)) if epsilon < 700 else 0.0
    # bdtrc(k, ...) is P[Bin > k].
    beta = float(special.bdtrc(correct - 1, guesses, 1 - wrong))
    if delta == 0 or beta >= 1:
        return min(beta, 1.0)
    if wrong == 0:
        return 1.0
    below = np.arange(correct - 1, -1, -1, dtype=np.float64)
    log_mass = (
        special.gammaln(guesses + 1)
        - special.gammaln(below + 1)
        - special.gammaln(guesses - below + 1)
        + below * math.log1p(-wrong)
        + (guesses - below) * math.log(wrong)
    )
    # Delta can add at most the largest mean mass of consecutive counts that end just below `correct`.
    alpha = float((np.cumsum(np.exp(log_mass)) / np.arange(1, correct + 1)).max())
    return min(beta + 2 * canaries * delta * alpha, 1.0)


def one_run_epsilon(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95, group: int = 1
) -> float:
    """Return the largest epsilon that the correct guesses refute; 0 if not even epsilon 0 is refuted.

    The bound is for a single record: a canary that occurs `group` times is tested for (group epsilon, delta (1 +
    e^epsilon + ... + e^((group - 1) epsilon)))-DP. Dividing its epsilon by `group` at the same delta would overstate
    the bound. Raises :class:`BenchError` on impossible counts, a `delta` not in [0, 1) or a `confidence` not in (0, 1).
    """
    check_one_run(canaries, guesses, correct, group)
    check_audit_delta(delta)
    error = 1 - check_confidence(confidence)

    def chance(epsilon: float) -> float:
        moved = delta * _group_factor(epsilon, group)
        return 1.0 if moved >= 1 else p_value(canaries, guesses, correct, group * epsilon, moved)

    if chance(0.0) >= error:
        return 0.0
    # At delta 0 this is the one-sided Clopper-Pearson bound, in closed form, which is an upper bound for any delta.
    least = float(special.betaincinv(correct, guesses - correct + 1, error))
    high = max((math.log(least) - math.log1p(-least)) / group, 0.0)
    if delta == 0:
        return high
    low = 0.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < error else (low, middle)
    return low


def _group_factor(epsilon: float, group: int) -> float:
    if (group - 1) * epsilon > 700:
        return math.inf
    return sum(math.exp(number * epsilon) for number in range(group))


def one_run_cap(canaries: int, guesses: int, delta: float, confidence: float = 0.95, group: int = 1) -> float:
    """Return the largest epsilon that this number of guesses can certify, if all are correct."""
    return one_run_epsilon(canaries, guesses, guesses, delta, confidence, group)


def guesses_needed(epsilon: float, canaries: int, delta: float, confidence: float = 0.95, group: int = 1) -> int | None:
    """Return the fewest guesses, all correct, that certify `epsilon`; None if even all `canaries` are too few.

    Raises :class:`BenchError` as :func:`one_run_epsilon`, or on an epsilon that is not positive and finite.
    """
    check_one_run(canaries, canaries, canaries, group)
    check_audit_delta(delta)
    error = 1 - check_confidence(confidence)
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise BenchError(f"epsilon must be a positive finite number, not {epsilon}.")
    moved = delta * _group_factor(epsilon, group)
    if moved >= 1:
        return None

    def enough(guesses: int) -> bool:
        return p_value(canaries, guesses, guesses, group * epsilon, moved) < error

    if not enough(canaries):
        return None
    return bisect.bisect(range(canaries), False, lo=1, key=enough)  # more correct guesses lower the p-value


def check_one_run(canaries: int, guesses: int, correct: int, group: int = 1) -> None:
    """Raise :class:`BenchError` unless the counts of an audit of one run are possible."""
    check_counts("guesses", guesses, "canaries", canaries)
    if guesses < 1:
        raise BenchError("an audit needs at least one guess.")
    check_counts("right guesses", correct, "guesses", guesses)
    if isinstance(group, bool) or not isinstance(group, (int, np.integer)) or group < 1:
        raise BenchError(f"the number of copies of a canary must be a whole number of at least 1, not {group!r}.")
