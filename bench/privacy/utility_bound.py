"""Which accuracies a claimed epsilon rules out, for methods whose privacy proof holds between any two teachers.

Some proofs use one thing only: that a single answer of one teacher is bounded, so that noise hides it. Such a proof
says the same of any two teachers whatever, also of teachers that agree on nothing, and that is more than a good student
can bear: a student that has learnt from a teacher tells it apart from a teacher with other labels.

**Theorem.** Let every run on a teacher T and on any other teacher T' be (epsilon, delta)-indistinguishable. Let a test
set have c classes with shares w_1 >= ... >= w_c of its records, and let P be a set of permutations of the classes of
which any two differ on at least d classes (a code of distance d). Let s = w_1 + ... + w_(c-d), and a >= (1 + s) / 2.
For a permutation pi let T_pi be the true teacher with each answer y replaced by pi(y), and A_pi the event that the
student gives pi(true label) on a share of more than a of the test records. Then

    mean over pi in P of Pr[A_pi, run on T_pi]  <=  e^epsilon / |P| + delta,

and a method that treats the names of the classes alike has

    Pr[its accuracy is above a]  <=  e^epsilon / |P| + delta.

**Proof.** Take two permutations of P. On a record of a class where they differ the student can agree with one of them
at most; the classes where they agree are c - d at most and hold a share of s of the records at most. The two shares
of agreement hence sum to 1 + s at most: if one is above a, the other is below 1 + s - a <= a. So the events A_pi
exclude each other, and on whichever single teacher the method runs, for instance on the true one, their
probabilities sum to 1 at most. Indistinguishability gives Pr[A_pi, on T_pi] <= e^epsilon Pr[A_pi, on T] + delta for
each pi, and the mean of that over P is the first bound. For the second, P may be taken to hold the identity: putting
one fixed permutation after all members of P changes no distance. Where the names of the classes do not matter,
renaming them turns, in distribution, a run on T into one on T_pi and accuracy into agreement with pi, so all members
of the mean are equal, and the identity's is the chance of an accuracy above a. QED.

What the second bound asks for is that nothing but the teacher tells the classes' names: no labelled public data, no
start from a classifier of the same classes. Starts that are drawn alike for all outputs, and noise that is drawn alike
for all classes, are fine. Sharded teachers (PATE) and sampled records (DP-SGD) are not concerned: their proofs speak of
data sets that differ in a record.

**Codes.** The c cyclic shifts (d = c); where c is a prime power, the maps x -> ux + v of the field of c elements
(c (c - 1) of them; two agree on one point at most, d = c - 1); where q = c - 1 is one, the fractional linear maps of
the field of q elements and infinity (q^3 - q; two agree on two points at most, d = c - 2); the even permutations
(c! / 2, d = 3: two permutations that differ on two classes only differ by one exchange, and one of them is odd); all
permutations (c!, d = 2); and for each d what adding permutations one by one gives while any is left that is far enough
(Gilbert and Varshamov): c! / V(d - 1) at least, where V(r) = sum over i <= r of C(c, i) D_i permutations lie within r
of a given one, D_i being the number of permutations of i things that leave none in its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_UP, Decimal

from bench.core.errors import BenchError

IMPLAUSIBLE = 0.05
"""Below this probability a row is called impossible as claimed."""

_ENOUGH = 10**300
"""A part of a code is a code; one of this size proves all that is wanted, and fits into a float."""

_MARGIN = 1e-9
"""How far an accuracy must lie above a threshold: more than the rounding of sums, less than one test record."""


@dataclass(frozen=True, slots=True)
class Code:
    """A set of permutations of the classes: how many, and on how many classes any two differ at least."""

    name: str
    permutations: int
    distance: int


@dataclass(frozen=True, slots=True)
class Bound:
    """An accuracy above `threshold` has at most this `probability`, by a code of so many `permutations`.

    `threshold` is a share of the test records in [0, 1], `distance` the classes on which two permutations differ.
    """

    probability: float
    threshold: float
    permutations: float
    distance: int
    code: str = ""


def codes(classes: int) -> Iterator[Code]:
    """Yield the codes that are known for so many classes, 2 or more; see the module."""
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
    """Return what each code says, for a test set whose classes have these shares (non-negative, of sum 1).

    Raises:
        BenchError: For an epsilon that is negative or no number, a delta outside [0, 1), or what are no shares.

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
    """Return the least bound on the probability of an accuracy as high as `accuracy`, a share in [0, 1].

    That is the least over the codes whose threshold lies below `accuracy`; a probability of 1 where there is none. As a
    function of the accuracy it falls, so it is the p-value of the claim: under the claim it is below p with probability
    at most p.

    Args:
        epsilon: What is claimed to hold between any two teachers; may be infinite.
        delta: The delta of it, in [0, 1).
        accuracy: Share of the test records that the student gets right.
        class_shares: The share of each class among the test records, of sum 1.

    Raises:
        BenchError: As :func:`bounds`, or where `accuracy` is not in [0, 1].

    """
    if not 0 <= accuracy <= 1:
        raise BenchError(f"an accuracy must lie between 0 and 1, not {accuracy}.")
    nothing = Bound(1.0, 0.0, 1.0, len(class_shares), "none")
    reached = [
        b for b in bounds(epsilon, delta, class_shares) if b.threshold + _MARGIN < accuracy and b.probability < 1
    ]
    return min(reached, key=lambda bound: bound.probability, default=nothing)


def remark(probabilities: Sequence[float]) -> str:
    """Return what a row says whose seeds have these bounds: empty unless the claim is implausible.

    Seeds are independent runs, so all of them do as well as the worst of them did with at most the worst's probability
    to the power of their number. (The product of their own bounds is no p-value: many lucky halves make a small one.)
    """
    if not probabilities:
        return ""
    together = max(probabilities) ** len(probabilities)
    if together >= IMPLAUSIBLE:
        return ""
    return f"impossible as claimed (such an accuracy has probability at most {rounded_up(together)})"


def rounded_up(probability: float) -> str:
    """Return a probability in [0, 1] with two digits, not rounded down: it is an upper bound."""
    # Twelve digits first: 0.29 as a float is a little more, and must not become 0.3.
    exact = Decimal(f"{max(probability, 1e-99):.12g}")
    return f"{float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), rounding=ROUND_UP)):.2g}"
