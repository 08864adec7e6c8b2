"""Worst adjacent inputs of each mechanism, and draws of the real mechanism on both; see `mechanism_audit`.

Each draw is one number: a label, or an attacker's statistic of a vector. An event that covers several runs is audited
for a single run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.types import Adjacency
from bench.privacy.events import events
from bench.privacy.events.base_event import Event
from bench.privacy.events.conversions import exact_gaussian_epsilon, gaussian_delta
from bench.privacy.events.gaussian_events import square_root
from bench.privacy.mechanisms import mechanisms, responses
from bench.privacy.mechanisms.noise import Law, Noise
from bench.privacy.mechanisms.streams import Banded, BinaryTree, Stream

Pair = Callable[[int, bool, "Noise"], "NDArray[Any]"]
"""Two adjacent inputs: ``pair(draws, second, noise)`` returns the outputs (draws,) on the first or the second."""
FEW_STEPS = 16  # number of steps in audited sums
GAUSSIAN_DELTA = 0.01  # largest delta for auditing Gaussian noise; smaller ones need more draws


@dataclass(frozen=True, slots=True)
class Part:
    """A separately audited part of a mechanism: its input pairs, the event of one run, and the default `delta`."""

    event: Event
    pairs: tuple[Pair, ...]
    delta: float


def once(event: Event) -> Event:
    """Return `event` for a single run on a single query or label."""
    fields = {"queries": 1, "count": 1, "answers": 1, "steps": 1}
    changes = {name: value for name, value in fields.items() if hasattr(event, name)}
    if isinstance(event, (events.TreeSums, events.BandedSums)):
        changes["steps"] = min(event.steps, FEW_STEPS)
    if isinstance(event, events.ConfidentGNMax):
        changes["max_answers"] = min(event.max_answers, 1)
    return replace(event, **changes) if changes else event  # type: ignore[arg-type]


def parts_of(event: Event) -> tuple[Part, ...]:
    """Return the parts of one run of `event`; empty for an event without a function here."""
    single = once(event)
    builder = _BUILDERS.get(type(single))
    return () if builder is None else builder(single)


def _lnmax(event: events.LNMax) -> tuple[Part, ...]:
    # One moved vote changes the loser's probability by up to e^(2 gamma), most at large gaps, where losers rarely win.
    gaps = sorted({round(scale / event.gamma) for scale in (0, 0.5, 1, 2, 3, 4)})
    draw = partial(_votes, lambda votes, noise: mechanisms.lnmax(votes, event.gamma, noise))
    return (Part(event, tuple(partial(draw, gap) for gap in gaps), 0.0),)


def _gnmax(event: events.GNMax) -> tuple[Part, ...]:
    draw = partial(_votes, lambda votes, noise: mechanisms.gnmax(votes, event.sigma, noise))
    mu = math.sqrt(2) / event.sigma
    pairs = tuple(partial(draw, gap) for gap in _gaps(mu, event.sigma))
    return (Part(event, pairs, gaussian_audit_delta(mu)),)


def _confident(event: events.ConfidentGNMax) -> tuple[Part, ...]:
    mu = 1 / event.sigma1
    # Far enough above the threshold that every query is answered.
    high = math.ceil(max(event.threshold, 0.0) + 40 * event.sigma1)

    def answers(votes: NDArray[np.float64], noise: Noise) -> NDArray[np.int64]:
        # Each row is a separate run, so no row uses up another's answer.
        return mechanisms.confident_gnmax(votes, event.threshold, event.sigma1, event.sigma2, len(votes), noise)

    def asked(top: float, draws: int, second: bool, noise: Noise) -> NDArray[np.int64]:
        return np.where(answers(_first_entry(draws, top - second), noise) == mechanisms.UNANSWERED, 0, 1)

    # Counts are at least 0, so for a negative threshold test a top count of 1.
    near = {round(event.threshold + sign * cut * event.sigma1) for cut in _cuts(mu) for sign in (-1, 1)}
    tops = sorted({max(top, 1) for top in near})
    pairs = tuple(partial(asked, float(top)) for top in tops)
    found = [Part(replace(event, max_answers=0), pairs, gaussian_audit_delta(mu))]
    if event.max_answers:
        mu = math.sqrt(2) / event.sigma2
        draw = partial(_votes, lambda votes, noise: answers(votes + high, noise))
        answer = events.GNMax(event.sigma2, 1, event.exact, unit=event.unit, adjacency=event.adjacency)
        pairs = tuple(partial(draw, gap) for gap in _gaps(mu, event.sigma2))
        found.append(Part(answer, pairs, gaussian_audit_delta(mu)))
    return tuple(found)


def _vector(event: events.Gaussian) -> tuple[Part, ...]:
    # Four entries of 1/2 have L2 norm 1 and fit the secure grid; the shift moves only their sum over 2.
    def release(draws: int, second: bool, noise: Noise) -> NDArray[np.float64]:
        values = np.full((draws, 4), 0.5 * second)
        released = mechanisms.gaussian(values, 1.0, event.noise_multiplier, noise)
        return np.asarray(released.sum(axis=1) / 2)

    mu = 1 / event.noise_multiplier
    difference = partial(_difference, mechanisms.gaussian, event.noise_multiplier)
    return (Part(event, (release, difference), gaussian_audit_delta(mu)),)


def _first_entry(draws: int, value: float) -> NDArray[np.float64]:
    return np.tile([value, 0.0], (draws, 1))


def _difference(
    mechanism: Callable[..., NDArray[np.float64]], multiplier: float, draws: int, second: bool, noise: Noise
) -> NDArray[np.float64]:
    """Return the difference of two entries, one of 0 or of the sensitivity: it reveals noise that they share."""
    released = mechanism(_first_entry(draws, second), 1.0, multiplier, noise)
    return released[:, 0] - released[:, 1]


def _laplace(event: events.Laplace) -> tuple[Part, ...]:
    def one_entry(draws: int, second: bool, noise: Noise) -> NDArray[np.float64]:
        return mechanisms.laplace(_first_entry(draws, second), 1.0, event.noise_multiplier, noise)[:, 0]

    difference = partial(_difference, mechanisms.laplace, event.noise_multiplier)
    return (Part(event, (one_entry, difference), 0.0),)


def _sampled_votes(event: events.SampledGNMax) -> tuple[Part, ...]:
    # At rate 1 these gaps reveal most about a sampled vote; lower rates, with fewer votes sampled, need larger gaps.
    mu = math.sqrt(2) / event.sigma
    gaps = sorted({max(1, round(cut * math.sqrt(2) * event.sigma)) for cut in (*_cuts(mu), 1.5 * mu, 2 * mu)})

    def draw(gap: int, draws: int, second: bool, noise: Noise) -> NDArray[np.int64]:
        # Enough near records of class 0 for `gap` in a sample; one side has a still nearer record of class 1.
        crowd = math.ceil((gap + 4 * math.sqrt(gap) + 6) / event.sampling_rate) if event.sampling_rate < 1 else gap
        labels = np.append(np.zeros(crowd, dtype=np.int64), 1)
        distances = np.append(np.ones(crowd), 0.0)
        shown = crowd + 1 if second else crowd
        one = np.broadcast_to(distances[:shown], (draws, shown))
        rate, sigma = event.sampling_rate, event.sigma
        return mechanisms.sampled_gnmax(one, labels[:shown], 2, gap, rate, sigma, noise)

    return (Part(event, tuple(partial(draw, gap) for gap in gaps), sampled_audit_delta(event)),)


def _sampled_sum(event: events.SampledGaussian) -> tuple[Part, ...]:
    # Four entries of 1/2 have L2 norm 1, the largest; the other input is the opposite record, or none.
    other = -0.5 if event.adjacency is Adjacency.REPLACE else 0.0

    def draw(draws: int, second: bool, noise: Noise) -> NDArray[np.float64]:
        values = np.full((draws, 1, 4), 0.5 if second else other)
        rate, multiplier = event.sampling_rate, event.noise_multiplier
        return np.asarray(mechanisms.sampled_gaussian(values, 1.0, rate, multiplier, noise).sum(axis=1) / 2)

    return (Part(event, (draw,), sampled_audit_delta(event)),)


def _response(event: events.RandomizedResponse) -> tuple[Part, ...]:
    def answer(draws: int, second: bool, noise: Noise) -> NDArray[np.int64]:
        labels = np.full(draws, event.classes - 1 if second else 0, dtype=np.int64)
        return responses.randomized_response(labels, event.epsilon, event.classes, noise)

    return (Part(event, (answer,), 0.0),)


def _top_k(event: events.TopKRandomizedResponse) -> tuple[Part, ...]:
    def answer(first: int, other: int, draws: int, second: bool, noise: Noise) -> NDArray[np.int64]:
        labels = np.full(draws, other if second else first, dtype=np.int64)
        candidates = np.broadcast_to(np.arange(event.k), (draws, event.k))
        return responses.top_k_randomized_response(labels, candidates, event.epsilon, event.classes, noise)

    pairs = [partial(answer, 0, event.k - 1)]
    if event.classes > event.k:  # the second label is outside the set
        pairs.append(partial(answer, 0, event.classes - 1))
    return (Part(event, tuple(pairs), 0.0),)


def _likely(event: events.PriorRandomizedResponse) -> tuple[Part, ...]:
    def answer(other: int, draws: int, second: bool, noise: Noise) -> NDArray[np.int64]:
        labels = np.full(draws, other if second else 0, dtype=np.int64)
        prior = np.broadcast_to(np.append([0.5, 0.5], np.zeros(event.classes - 2)), (draws, event.classes))
        return responses.prior_randomized_response(labels, prior, event.epsilon, noise)

    pairs = [partial(answer, 1)]
    if event.classes > 2:  # the second label is not among the likely ones
        pairs.append(partial(answer, event.classes - 1))
    return (Part(event, tuple(pairs), 0.0),)


def _choice(event: events.Exponential | events.PermuteAndFlip) -> tuple[Part, ...]:
    # In scales of the noise, one unit moves a lead by epsilon. A rare win of the loser reveals most.
    law: Law = "gumbel" if isinstance(event, events.Exponential) else "exponential"

    def choose(lead: float, draws: int, second: bool, noise: Noise) -> NDArray[np.int64]:
        scores = np.tile([lead - event.epsilon * second, 0.0], (draws, 1))
        return mechanisms.noisy_choice(scores, 1.0, law, noise)

    leads = event.epsilon + np.arange(5)
    return (Part(event, tuple(partial(choose, float(lead)) for lead in leads), 0.0),)


def _sums(event: events.TreeSums | events.BandedSums) -> tuple[Part, ...]:
    # The unit is in the first step and in every step that the separation allows.
    separation = event.separation if isinstance(event, events.BandedSums) else event.steps
    present = np.arange(event.steps) % separation == 0

    def stream() -> Stream:
        return BinaryTree() if isinstance(event, events.TreeSums) else Banded(square_root(event.bands))

    shown = stream()
    moved = np.concatenate([shown.released(np.array([float(there)])) for there in present])
    mu = math.sqrt(2 * event.zcdp())

    def draw(draws: int, second: bool, noise: Noise) -> NDArray[np.float64]:
        run, found = stream(), np.zeros(draws)
        for there, share in zip(present, moved / np.linalg.norm(moved), strict=True):
            released = run.released(np.full(draws, float(there and second)))
            found += share * mechanisms.gaussian(released, 1.0, event.noise_multiplier, noise)
        return found

    return (Part(event, (draw,), gaussian_audit_delta(mu)),)


_BUILDERS: dict[type[Event], Callable[[Any], tuple[Part, ...]]] = {
    events.LNMax: _lnmax,
    events.GNMax: _gnmax,
    events.ConfidentGNMax: _confident,
    events.Gaussian: _vector,
    events.Laplace: _laplace,
    events.SampledGNMax: _sampled_votes,
    events.SampledGaussian: _sampled_sum,
    events.RandomizedResponse: _response,
    events.TopKRandomizedResponse: _top_k,
    events.PriorRandomizedResponse: _likely,
    events.TreeSums: _sums,
    events.BandedSums: _sums,
    events.Exponential: _choice,
    events.PermuteAndFlip: _choice,
}


def gaussian_audit_delta(mu: float) -> float:
    """Return the audit's delta for Gaussian noise of `mu`: small, with epsilon above 0."""
    return min(GAUSSIAN_DELTA, gaussian_delta(mu, 0.0) / 2)


def sampled_audit_delta(event: events.SampledGNMax | events.SampledGaussian) -> float:
    """Return :func:`gaussian_audit_delta` of the noise on a sampled record, times the sampling rate."""
    return event.sampling_rate * gaussian_audit_delta(1 / event.relative_noise)


def _cuts(mu: float) -> tuple[float, ...]:
    """Return thresholds for N(0, 1) against N(mu, 1): the best for correct noise, for too little noise, and 0."""
    return (exact_gaussian_epsilon(mu, gaussian_audit_delta(mu)) / mu + mu / 2, mu, 0.0)


def _gaps(mu: float, sigma: float) -> list[int]:
    # The gap of two noisy counts is normal with standard deviation sqrt(2) sigma.
    return sorted({round(cut * math.sqrt(2) * sigma) for cut in _cuts(mu)})


def _votes(mechanism: Callable[..., NDArray[np.int64]], gap: int, draws: int, second: bool, noise: Noise) -> Any:
    """Return the winners of two classes whose counts are `gap` apart; the second input moves one vote to the loser."""
    votes = np.empty((draws, 2))
    votes[:, 0], votes[:, 1] = gap + 1 - second, 1 + second
    return mechanism(votes, noise)
