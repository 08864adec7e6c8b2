"""Audits of mechanisms: lower bounds on epsilon from many draws of the real function on the worst adjacent inputs.

A bound for a single run above the accountants' epsilon at the same delta is a violation: noise of the wrong scale, a
wrong sensitivity, a tie that leaks. An audit detects neither a wrong number of runs nor private data used outside
mechanisms. A pilot of a tenth of the draws chooses inputs, direction and output set; fresh draws give the bound
(Clopper-Pearson, Bonferroni over directions and parts). The false-alarm probability is at most 1 - confidence.

Gaussian noise on vectors is audited by one run with :data:`CANARIES` too, which detects more at a small delta
(:mod:`bench.privacy.auditing.gaussian_run`); the larger bound counts, and both share the error probability.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.evaluation.audit.worst_case_pairs import Pair, Part, once, parts_of
from bench.privacy.accounting.accountants import proven
from bench.privacy.auditing.bounds import refuted_epsilon, refuted_epsilons
from bench.privacy.auditing.gaussian_run import gaussian_run_epsilon
from bench.privacy.auditing.one_run import check_audit_delta, check_confidence
from bench.privacy.events.base_event import Event
from bench.privacy.events.batch_events import Training
from bench.privacy.events.events import Bypass, Gaussian
from bench.privacy.mechanisms import mechanisms
from bench.privacy.mechanisms.noise import Law, Noise
from bench.results.attack_record import MechanismAudited, MechanismVerdict

DRAWS = 1_000_000
CANARIES = 1_000
CHUNK = 250_000
CUTS = 512  # thresholds that the pilot tries on numeric outputs
LABELS = 1024  # largest number of distinct outputs that the pilot treats as labels


@dataclass(frozen=True, slots=True)
class PartAudit:
    """The audit of one part of a mechanism, for a single run. `bound` and `exact` are epsilons at one delta."""

    bound: float
    exact: float
    with_half_noise: float | None = None  # the bound of the same audit with half the noise; None without that run

    @property
    def tightness(self) -> float:
        """Bound / exact epsilon."""
        return self.bound / self.exact if self.exact > 0 else math.inf if self.bound > 0 else 1.0

    @property
    def verdict(self) -> MechanismVerdict:
        """VIOLATED above the exact epsilon; NO_POWER if half the noise is not detected."""
        if self.bound > self.exact:
            return MechanismVerdict.VIOLATED
        blind = self.with_half_noise is not None and self.with_half_noise <= self.exact
        return MechanismVerdict.NO_POWER if blind else MechanismVerdict.HOLDS


class HalfNoise(Noise):
    """Half the requested noise, which an audit with power detects. Never for a release."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self.exact = noise.exact

    def laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float64]:
        """See :meth:`Noise.laplace`; half the scale."""
        return self._noise.laplace(shape, scale / 2)

    def gaussian(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        """See :meth:`Noise.gaussian`; half the standard deviation."""
        return self._noise.gaussian(shape, std / 2)

    def keep_or_other(self, positions: NDArray[np.int64], count: int, keep: float) -> NDArray[np.int64]:
        """See :meth:`Noise.keep_or_other`; twice the epsilon, the counterpart of half the Laplace noise."""
        if count < 2 or keep >= 1:
            return self._noise.keep_or_other(positions, count, keep)
        odds = (keep / (1 - keep) * (count - 1)) ** 2
        return self._noise.keep_or_other(positions, count, odds / (odds + count - 1))

    def uniform(self, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
        """See :meth:`Noise.uniform`; unchanged."""
        return self._noise.uniform(shape, count)

    def largest(self, scores: NDArray[np.float64], scale: float, law: Law) -> NDArray[np.int64]:
        """See :meth:`Noise.largest`; half the scale."""
        return self._noise.largest(scores, scale / 2, law)


def audit_parts(
    event: Event,
    noise: Noise,
    draws: int = DRAWS,
    delta: float | None = None,
    confidence: float = 0.95,
    *,
    power: bool = True,
) -> list[PartAudit]:
    """Audit each part of one run of the mechanism of `event`.

    `noise` must be exact for an exact event. `draws` are per input and direction; a pilot adds a tenth. `delta` None: 0
    for a pure mechanism; for Gaussian noise, what the draws can resolve. 1 - `confidence` bounds the false-alarm
    probability, and its square that of a violation, which must show in two independent audits. `power` repeats the
    audit with half the noise.

    Raises :class:`BenchError` on fewer than 1000 draws, or a delta or confidence out of range.
    """
    check_confidence(confidence)
    if draws < 1000:
        raise BenchError(f"an audit of a mechanism needs at least 1000 draws, not {draws}.")
    if delta is not None:
        check_audit_delta(delta)
    parts = parts_of(event)
    share = 1 - (1 - confidence) / max(len(parts), 1)
    found = []
    for part in parts:
        at = part.delta if delta is None else delta
        exact = part.event.pure_epsilon() if at == 0 else proven([part.event], at).epsilon
        bound = _bound(part, noise, draws, at, share)
        if bound > exact:  # a few in a hundred audits of correct mechanisms, so fresh draws must show it too
            bound = min(bound, _bound(part, noise, draws, at, share))
        half = _bound(part, HalfNoise(noise), draws, at, share) if power else None
        found.append(PartAudit(bound, exact, half))
    return found


def audit_mechanism(
    event: Event,
    noise: Noise,
    draws: int = DRAWS,
    delta: float | None = None,
    confidence: float = 0.95,
    *,
    power: bool = True,
) -> MechanismAudited:
    """Return the deciding part of :func:`audit_parts`: a violation before a part without power before the loosest."""
    rank = [MechanismVerdict.VIOLATED, MechanismVerdict.NO_POWER, MechanismVerdict.HOLDS]

    def order(part: PartAudit) -> tuple[int, float]:
        place = rank.index(part.verdict)
        return place, -part.tightness if place == 0 else part.tightness

    parameters = once(event).as_dict()
    part = min(audit_parts(event, noise, draws, delta, confidence, power=power), key=order, default=None)
    if part is None:
        return MechanismAudited(
            kind=event.kind, parameters=parameters, draws=0, epsilon=0.0, exact=math.inf,
            verdict=MechanismVerdict.NOT_AUDITED, reason=_reason(event),
        )  # fmt: skip
    return MechanismAudited(
        kind=event.kind, parameters=parameters, draws=draws, epsilon=part.bound, exact=part.exact,
        half_noise=part.with_half_noise, verdict=part.verdict,
    )  # fmt: skip


def audit_events(
    events: Sequence[Event], noise: Noise, draws: int = DRAWS, delta: float | None = None, confidence: float = 0.95
) -> list[MechanismAudited]:
    """Audit each distinct mechanism of a ledger; the probability of any false alarm is at most 1 - `confidence`."""
    distinct = list(dict.fromkeys(once(event) for event in events))
    number = sum(1 for event in distinct if parts_of(event))
    share = 1 - (1 - check_confidence(confidence)) / max(number, 1)
    return [audit_mechanism(event, noise, draws, delta, share) for event in distinct]


def _reason(event: Event) -> str:
    if isinstance(event, Training):
        return "a step of DP-SGD needs a model: the project's tests draw steps of its optimiser on adjacent batches"
    if isinstance(event, Bypass):
        return f"it states no finite epsilon: {event.reason}"
    return "no adjacent inputs are known for this kind of event"


@dataclass(frozen=True, slots=True)
class _Choice:
    """The pilot's choice for one direction: inputs, and an output set as labels or as a range."""

    pair: Pair
    score: float
    labels: NDArray[Any] | None = None
    low: float = -math.inf
    high: float = math.inf

    def hits(self, second: bool, draws: int, noise: Noise) -> int:
        return sum(int(self.holds(outputs).sum()) for outputs in _drawn(self.pair, second, draws, noise))

    def holds(self, outputs: NDArray[Any]) -> NDArray[np.bool_]:
        if self.labels is not None:
            return np.isin(outputs, self.labels)
        return (outputs > self.low) & (outputs <= self.high)


def _bound(part: Part, noise: Noise, draws: int, delta: float, confidence: float) -> float:
    if not isinstance(part.event, Gaussian) or delta == 0:
        return _by_draws(part, noise, draws, delta, confidence)
    share = 1 - (1 - confidence) / 2
    by_run = gaussian_release_epsilon(part.event, noise, delta, share)
    return max(_by_draws(part, noise, draws, delta, share), by_run)


def gaussian_release_epsilon(event: Gaussian, noise: Noise, delta: float, confidence: float = 0.95) -> float:
    """Return the epsilon that one release with the noise of `event` refutes at `delta`, in (0, 1).

    Each of :data:`CANARIES` has its own entry, and a norm of one sensitivity.
    """
    coins = 2 * noise.uniform((CANARIES,), 2) - 1
    (released,) = mechanisms.gaussian(coins[None].astype(np.float64), 1.0, event.noise_multiplier, noise)
    return gaussian_run_epsilon(released, coins, delta, confidence, group=2)  # flipping a sign moves two sensitivities


def _by_draws(part: Part, noise: Noise, draws: int, delta: float, confidence: float) -> float:
    pilot = draws // 10
    chosen: dict[int, _Choice] = {}
    for pair in part.pairs:
        outputs = [np.concatenate([*_drawn(pair, second, pilot, noise)]) for second in (False, True)]
        for direction in (0, 1):
            choice = _choose(pair, outputs[direction], outputs[1 - direction], delta, confidence)
            if direction not in chosen or choice.score > chosen[direction].score:
                chosen[direction] = choice
    share = 1 - (1 - confidence) / 2  # the directions share the error: a mechanism may be private in only one
    bound = 0.0
    for direction, choice in chosen.items():
        first, other = (choice.hits(bool(side), draws, noise) for side in (direction, 1 - direction))
        bound = max(bound, refuted_epsilon(first, draws, other, draws, delta, share))
    return bound


def _drawn(pair: Pair, second: bool, draws: int, noise: Noise) -> Iterator[NDArray[Any]]:
    for start in range(0, draws, CHUNK):
        yield pair(min(CHUNK, draws - start), second, noise)


def _choose(pair: Pair, first: NDArray[Any], other: NDArray[Any], delta: float, confidence: float) -> _Choice:
    """Return the output set with the largest bound, `first` over `other`, at the pilot's size, which curbs luck."""

    def best(hits: NDArray[Any], other_hits: NDArray[Any]) -> tuple[int, float]:
        refuted = refuted_epsilons(hits, len(first), other_hits, len(other), delta, confidence)
        place = int(np.argmax(refuted))
        return place, float(refuted[place])

    values = np.unique(np.concatenate([first, other]))
    # Values on a fine grid may all be distinct in a small pilot; treated as labels, they would win by pure luck.
    if len(values) <= (LABELS if np.issubdtype(values.dtype, np.integer) else min(LABELS, len(first) // 50)):
        here, there = (np.searchsorted(values, part) for part in (first, other))
        counts = [np.bincount(part, minlength=len(values)).astype(np.float64) for part in (here, there)]
        order = np.argsort(-(counts[0] + 0.5) / (counts[1] + 0.5), kind="stable")
        place, score = best(np.cumsum(counts[0][order]), np.cumsum(counts[1][order]))
        return _Choice(pair, score, labels=values[order[: place + 1]])
    cuts = np.unique(np.quantile(np.concatenate([first, other]), np.linspace(0, 1, CUTS + 2)[1:-1]))
    below = [np.searchsorted(np.sort(part), cuts, side="right").astype(np.float64) for part in (first, other)]
    up, up_score = best(len(first) - below[0], len(other) - below[1])
    down, down_score = best(below[0], below[1])
    if up_score >= down_score:
        return _Choice(pair, up_score, low=float(cuts[up]))
    return _Choice(pair, down_score, high=float(cuts[down]))
