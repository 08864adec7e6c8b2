"""Which accuracies a claimed epsilon rules out, for methods whose privacy proof holds between any two teachers.

A proof that only uses a bound on one answer of one teacher holds between any two teachers, even if they never agree.
That is too strong: a student that has learnt from a teacher distinguishes it from a teacher with other labels.

**Theorem.** Let runs on any two teachers be (epsilon, delta)-indistinguishable, and let T be the true teacher. Let the
classes of a test set have shares w_1 >= ... >= w_c of its records, and let P be a set of permutations of the classes
that pairwise differ on at least d classes (a code of distance d). Let s = w_1 + ... + w_(c-d) and a >= (1 + s) / 2. For
a permutation pi let T_pi be T with each answer y replaced by pi(y), and A_pi the event that the student answers pi(true
label) on a share of more than a of the test records. Then

    mean over pi in P of Pr[A_pi, run on T_pi]  <=  e^epsilon / |P| + delta,

and for a method that is symmetric in the class names, Pr[its accuracy is above a] has the same bound.

**Proof.** Take two permutations of P. On a record of a class where they differ, the student agrees with at most one of
them; the other classes are at most c - d, with at most a share s of the records. The two shares of agreement sum to at
most 1 + s <= 2a, so at most one of them is above a. So the events A_pi are mutually exclusive, and on any single
teacher, for instance T, their probabilities sum to at most 1. Indistinguishability gives Pr[A_pi, on T_pi] <= e^epsilon
Pr[A_pi, on T] + delta; the mean over P is the first bound. For the second, let P contain the identity: composing all of
P with one fixed permutation keeps its distances. Renaming the classes turns, in distribution, a run on T into one on
T_pi and accuracy into agreement with pi: all terms of the mean equal the probability of an accuracy above a. QED.

The second bound requires that class names come only from the teacher: no labelled public data, no start from a
classifier of the same classes, no class names that a text or image model knows. Initialisation and noise with the same
distribution for all classes are fine. Sharded teachers (PATE) and sampled records (DP-SGD) are exempt: their proofs are
about data sets that differ in one record.

**What is marked.** The bound is about one run, and enough runs contain a lucky one. A row of k seeds is called
impossible only if the best k of :data:`TRIES` honest runs would do as well with a probability below
:data:`IMPLAUSIBLE`; the number of runs that would reach that probability is printed next to the bound.

**Codes.** The c cyclic shifts (d = c); for a prime power c, the c (c - 1) maps x -> ux + v of the field of c elements
(two agree on at most one point, d = c - 1); for a prime power q = c - 1, the q^3 - q fractional linear maps of the
field of q elements and infinity (two agree on at most two points, d = c - 2); the c! / 2 even permutations (d = 3:
permutations that differ on two classes differ by one exchange, which is odd); all c! permutations (d = 2); and for each
d a greedy code (Gilbert and Varshamov) of at least c! / V(d - 1), where V(r) = sum over i <= r of C(c, i) D_i
permutations are within r of a given one and D_i is the number of permutations of i things without a fixed point.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_UP, Decimal

from scipy.special import betainc

from bench.core.errors import BenchError

IMPLAUSIBLE = 0.05
"""The probability below which chance is no longer a plausible explanation."""

TRIES = 100
"""A row is called impossible only if the best of this many honest runs stay below :data:`IMPLAUSIBLE`."""

_MOST_TRIES = 10**9

_ENOUGH = 10**300
"""A cap on a code's size that fits into a float; any part of a code is a code."""

_MARGIN = 1e-9
"""The least gap between an accuracy and a threshold below it: above summation rounding, below one test record."""


@dataclass(frozen=True, slots=True)
class Code:
    """A set of permutations of the classes that pairwise differ on at least `distance` classes."""

    name: str
    permutations: int
    distance: int


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound on the `probability` of an accuracy above `threshold`, a share in [0, 1], by a code."""

    probability: float
    threshold: float
    permutations: float
    distance: int
    code: str = ""


def codes(classes: int) -> Iterator[Code]:
    """Yield the known codes for 2 or more `classes`; see the module."""
    everything = math.factorial(classes)
    yield Code("all permutations", everything, 2)
    if classes >= 3:
        yield Code("even permutations", everything // 2, 3)
    yield Code("cyclic shifts", classes, classes)
    if _is_prime_power(classes) and classes > 2:
        yield Code("affine maps of a field", classes * (classes - 1), classes - 1)
    if _is_prime_power(classes - 1) and classes > 3:
        q = classes - 1
        yield Code("fractional linear maps", (q + 1) * q * (q - 1), classes - 2)
    near, deranged, before = 1, 0, 1  # V(1), D_1 and D_0
    for distance in range(2, classes + 1):
        yield Code("Gilbert-Varshamov", -(-everything // near), distance)
        deranged, before = (distance - 1) * (deranged + before), deranged
        near += math.comb(classes, distance) * deranged


def _is_prime_power(number: int) -> bool:
    if number < 2:
        return False
    prime = next((p for p in range(2, math.isqrt(number) + 1) if number % p == 0), number)
    while number % prime == 0:
        number //= prime
    return number == 1


def bounds(epsilon: float, delta: float, class_shares: Sequence[float]) -> list[Bound]:
    """Return each code's bound for a test set whose classes have these shares (non-negative, of sum 1).

    Raises :class:`BenchError` on an epsilon that is negative or NaN, a delta outside [0, 1), or invalid shares.
    """
    if math.isnan(epsilon) or epsilon < 0:
        raise BenchError(f"epsilon must be a number of at least 0, not {epsilon}. Try --eps 1.")
    if not 0 <= delta < 1:
        raise BenchError(f"delta must be at least 0 and below 1, not {delta}. Try --delta 1e-5.")
    if len(class_shares) < 2:
        raise BenchError(f"the impossibility check needs at least 2 classes, not {len(class_shares)}.")
    if not all(share >= 0 for share in class_shares) or abs(math.fsum(class_shares) - 1) > 1e-6:
        raise BenchError("the classes' shares of a test set must be non-negative and sum to 1.")
    largest = sorted(class_shares, reverse=True)
    found = []
    for code in codes(len(largest)):
        size = min(code.permutations, _ENOUGH)
        shared = math.fsum(largest[: len(largest) - code.distance])
        likely = math.exp(min(epsilon - math.log(size), 0.0)) + delta
        found.append(Bound(min(likely, 1.0), (1 + shared) / 2, float(size), code.distance, code.name))
    return found


def probability_bound(epsilon: float, delta: float, accuracy: float, class_shares: Sequence[float]) -> Bound:
    """Return the least bound on the probability of an accuracy of at least `accuracy`, a share in [0, 1].

    The minimum is over codes whose threshold is below `accuracy`, 1 without one. The bound falls with the accuracy, so
    it is a p-value for the claim of (`epsilon`, `delta`) between any two teachers. `epsilon` may be infinite. Raises
    :class:`BenchError` as :func:`bounds`, or on an `accuracy` outside [0, 1].
    """
    if not 0 <= accuracy <= 1:
        raise BenchError(f"an accuracy must lie between 0 and 1, not {accuracy}.")
    nothing = Bound(1.0, 0.0, 1.0, len(class_shares), "none")
    reached = [
        b for b in bounds(epsilon, delta, class_shares) if b.threshold + _MARGIN < accuracy and b.probability < 1
    ]
    return min(reached, key=lambda bound: bound.probability, default=nothing)


def honest_tries(probabilities: Sequence[float]) -> float:
    """Return how many runs give a row whose seeds have these bounds a probability of :data:`IMPLAUSIBLE`.

    That is the least n for which, with that probability, at least as many of n independent runs as the row has seeds do
    as well as its worst; infinite above 10^9. (The product of the seeds' bounds is not a p-value: many halves have a
    small product.)
    """
    seeds, worst = len(probabilities), max(probabilities, default=1.0)
    if worst**seeds >= IMPLAUSIBLE:
        return seeds

    def chance(runs: int) -> float:
        # The probability that a binomial variable, of `runs` trials at `worst`, is at least `seeds`.
        return float(betainc(seeds, runs - seeds + 1, worst))

    high = seeds
    while chance(high) < IMPLAUSIBLE:
        high *= 2
        if high > _MOST_TRIES:
            return math.inf
    return bisect.bisect_left(range(high), IMPLAUSIBLE, lo=high // 2, key=chance)


def odds(probabilities: Sequence[float]) -> str:
    """Return a text on how probable a row with these bounds is, and how many honest tries would make it likely."""
    seeds, tries = len(probabilities), honest_tries(probabilities)
    count = "more than a billion" if math.isinf(tries) else f"{tries:,.0f}"
    shown = count if seeds == 1 else f"the best {seeds} of {count}"
    together = rounded_up(max(probabilities) ** seeds)
    return f"such an accuracy has probability at most {together}; {shown} honest tries would reach 5%"


def remark(probabilities: Sequence[float]) -> str:
    """Return the remark on a row whose seeds have these bounds, "" unless impossible even for :data:`TRIES` tries."""
    if honest_tries(probabilities) <= TRIES:
        return ""
    return f"impossible as claimed ({odds(probabilities)})"


def rounded_up(probability: float) -> str:
    """Return a probability in [0, 1] with two digits, rounded up to stay an upper bound."""
    # Round to twelve digits first: 0.29 as a float is slightly larger and must not become 0.3.
    exact = Decimal(f"{max(probability, 1e-99):.12g}")
    return f"{float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), rounding=ROUND_UP)):.2g}"
