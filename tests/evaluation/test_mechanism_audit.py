"""Audits of mechanisms as a ledger records them: the honest ones pass, every faulty one is caught."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.audit.mechanism_audit import audit_events, audit_mechanism, audit_parts
from bench.evaluation.audit.worst_case_pairs import once
from bench.privacy.events.base_event import Event
from bench.privacy.events.events import (
    DPSGD,
    BandedSums,
    Bypass,
    ConfidentGNMax,
    Exponential,
    Gaussian,
    GNMax,
    Laplace,
    LNMax,
    PermuteAndFlip,
    RandomizedResponse,
    SampledGaussian,
    SampledGNMax,
    TopKRandomizedResponse,
    TreeSums,
)
from bench.privacy.mechanisms import mechanisms, responses
from bench.privacy.mechanisms.noise import SecureNoise, SeededNoise
from bench.results.attack_record import MechanismVerdict
from helpers.audits import half_noise
from helpers.ledgers import seeded_ledger

DRAWS = 200_000
EVENTS = [
    LNMax(0.5, 100),
    LNMax(3.0, 7),
    GNMax(2.0, 10),
    GNMax(10.0, 10),
    ConfidentGNMax(10.0, 1.5, 2.0, 1000, 300),
    ConfidentGNMax(12.5, 4.0, 2.0, 10, 10),
    Gaussian(1.5, 4),
    Gaussian(8.0),
    Laplace(1.25, 3),
    Laplace(8.0),
    TreeSums(3.0, 8),
    BandedSums(3.0, 9, 2, 4),
    Exponential(1.0, 3),
    Exponential(2.5),
    PermuteAndFlip(1.0, 3),
    SampledGNMax(0.5, 1.0, 10),
    SampledGaussian(0.2, 1.0, 5),
    SampledGaussian(0.5, 1.0, adjacency=Adjacency.REPLACE),
    RandomizedResponse(1.0, 10, answers=500),
    RandomizedResponse(6.0, 2),
    TopKRandomizedResponse(1.0, 3, 10),
    TopKRandomizedResponse(3.0, 4, 4),
]
ONE_OF_EACH = [
    pytest.param(event, marks=[pytest.mark.slow] * any(type(event) is type(other) for other in EVENTS[:number]))
    for number, event in enumerate(EVENTS)
]


def seeded(seed: int = 1) -> SeededNoise:
    return SeededNoise(np.random.default_rng(seed))


@pytest.mark.slow
def test_a_correct_mechanism_must_exceed_its_epsilon_twice_to_be_violated() -> None:
    """At a confidence of 20% one audit of this mechanism exceeds the exact epsilon in 59 of 150 seeds."""
    event, confidence = Gaussian(2.0), 0.2
    verdicts = [audit_mechanism(event, seeded(n), 2_000, 1e-2, confidence, power=False).verdict for n in range(150)]
    assert verdicts.count(MechanismVerdict.VIOLATED) <= 40
    halved = audit_mechanism(event, half_noise(np.random.default_rng(0)), 20_000, 1e-2, power=False)
    assert halved.verdict is MechanismVerdict.VIOLATED


@pytest.mark.few(3)
@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.describe())
def test_the_honest_mechanism_holds_and_half_the_noise_is_caught(event: Event) -> None:
    # Each seeded audit alone would call an honest mechanism violated in at most 1 of 20 draws of the seed.
    found = audit_parts(event, seeded(), DRAWS)
    assert {part.verdict for part in found} == {MechanismVerdict.HOLDS}
    assert 0.4 < min(part.tightness for part in found) <= 1
    assert all(part.with_half_noise > part.exact for part in found)
    caught = audit_parts(event, half_noise(np.random.default_rng(2)), DRAWS, power=False)
    assert [part.verdict for part in caught] == [MechanismVerdict.VIOLATED] * len(caught)
    assert [part.exact for part in caught] == [part.exact for part in found]


@pytest.mark.few(1)
@pytest.mark.parametrize("event", [EVENTS[0], EVENTS[8], EVENTS[13], EVENTS[15]], ids=Event.describe)
def test_a_pure_mechanism_may_be_audited_at_a_delta(event: Event) -> None:
    found = audit_mechanism(event, seeded(), DRAWS, delta=0.01)
    assert found.verdict is MechanismVerdict.HOLDS
    assert found.exact < once(event).pure_epsilon()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "event",
    [
        LNMax(1.0, 1, secure_granularity=1024),
        GNMax(2.0, 1, exact=True),
        ConfidentGNMax(10.0, 1.5, 2.0, 1, 1, exact=True),
        Gaussian(1.0, exact=True),
        Laplace(1.0, grid_steps=1024),
        TreeSums(3.0, 4, exact=True),
        Exponential(2.0),
        PermuteAndFlip(2.0),
        RandomizedResponse(2.0, 3),
        TopKRandomizedResponse(2.0, 3, 5),
    ],
    ids=Event.describe,
)
def test_secure_noise_holds_too(event: Event) -> None:
    pytest.importorskip("opendp")
    found = audit_mechanism(event, SecureNoise(), 3_000, confidence=0.999, power=False)
    assert found.verdict is not MechanismVerdict.VIOLATED
    assert found.epsilon > 0


def shared(votes: np.ndarray, sigma: float, noise: SeededNoise) -> np.ndarray:
    return np.argmax(votes + noise.gaussian((len(votes), 1), sigma), axis=1)


def noise_too_late(votes: np.ndarray, gamma: float, noise: SeededNoise) -> np.ndarray:
    winners = np.argmax(votes, axis=1)
    return np.where(noise.laplace(winners.shape, 1 / gamma) > 40 / gamma, 1 - winners, winners)


def one_noise(values: np.ndarray, sensitivity: float, multiplier: float, noise: SeededNoise) -> np.ndarray:
    return values + noise.gaussian((len(values), 1), multiplier * sensitivity)


def no_threshold_noise(
    votes: np.ndarray, threshold: float, sigma1: float, sigma2: float, most: int, noise: SeededNoise
) -> np.ndarray:
    answers = mechanisms.gnmax(votes, sigma2, noise)
    return np.where(votes.max(axis=1) >= threshold, answers, mechanisms.UNANSWERED)


@pytest.mark.parametrize(
    ("name", "faulty", "event"),
    [
        ("gnmax", shared, GNMax(5.0, 1)),
        ("lnmax", noise_too_late, LNMax(0.5, 1)),
        ("gaussian", one_noise, Gaussian(2.0)),
        ("laplace", one_noise, Laplace(2.0)),
        ("confident_gnmax", no_threshold_noise, ConfidentGNMax(50.0, 5.0, 2.0, 1, 1)),
        ("top_k_randomized_response", responses.printed_top_k, TopKRandomizedResponse(1.0, 3, 10)),
    ],
)
def test_faults_of_a_mechanism_are_caught(monkeypatch, name: str, faulty: object, event: Event) -> None:
    monkeypatch.setattr(mechanisms if hasattr(mechanisms, name) else responses, name, faulty)
    found = audit_mechanism(event, seeded(), 20_000, power=False)
    assert found.verdict is MechanismVerdict.VIOLATED
    assert found.epsilon > 2 * found.exact


def test_false_alarms_are_as_rare_as_stated() -> None:
    # Randomised response is exactly as dear as its figure, so nothing but the confidence keeps it from an alarm.
    alarms = sum(
        audit_mechanism(RandomizedResponse(1.0, 2), seeded(seed), 2_000, power=False).verdict
        is MechanismVerdict.VIOLATED
        for seed in range(300)
    )
    assert alarms <= 15 + 11, "5% of 300, and three standard errors"


def test_an_audit_without_power_says_so() -> None:
    found = audit_mechanism(RandomizedResponse(0.01, 10), seeded(), 5_000)
    assert found.verdict is MechanismVerdict.NO_POWER
    assert audit_mechanism(ConfidentGNMax(-100.0, 1.0, 2.0, 5, 5), seeded(), 5_000).verdict is MechanismVerdict.NO_POWER
    # Gaussian noise has no epsilon at delta 0: nothing could exceed it.
    pure = audit_mechanism(GNMax(3.0, 1), seeded(), 5_000, delta=0.0)
    assert pure.verdict is MechanismVerdict.NO_POWER
    assert math.isinf(pure.exact)
    # More epsilon than these draws can ever show.
    assert audit_mechanism(RandomizedResponse(14.0, 10), seeded(), 5_000).verdict is MechanismVerdict.NO_POWER


def test_what_is_not_audited_gives_its_reason() -> None:
    for event, says in ((DPSGD(0.1, 1.0, 50), "DP-SGD"), (Bypass("the labels are shown"), "the labels are shown")):
        found = audit_mechanism(event, seeded())
        assert found.verdict is MechanismVerdict.NOT_AUDITED
        assert says in found.reason
        assert (found.epsilon, found.draws) == (0.0, 0)
        assert math.isinf(found.exact)


def test_the_distinct_mechanisms_of_a_ledger_are_audited_once() -> None:
    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(0))
    for _ in range(3):
        book.noisy_max(np.tile([6.0, 4.0], (5, 1)), teachers=10, gamma=0.5)
    book.gaussian(np.zeros(7), sensitivity=2.0, noise_multiplier=1.5)
    book.bypass("more was shown")
    found = audit_events(book.events, seeded(), 50_000)
    assert [audit.kind for audit in found] == ["lnmax", "gaussian", "bypass"]
    assert [audit.verdict for audit in found] == [
        MechanismVerdict.HOLDS,
        MechanismVerdict.HOLDS,
        MechanismVerdict.NOT_AUDITED,
    ]
    assert found[0] == audit_mechanism(book.events[0], seeded(), 50_000, confidence=0.975)
    assert found[0].parameters["queries"] == 1
    assert audit_events([], seeded()) == []


def test_an_audit_is_repeatable() -> None:
    one, two = (audit_mechanism(GNMax(3.0, 1), seeded(4), 20_000) for _ in range(2))
    assert one == two


@pytest.mark.parametrize(("draws", "delta", "confidence"), [(10, None, 0.95), (10_000, 1.0, 0.95), (10_000, 0.1, 1.0)])
def test_invalid_input_is_refused(draws: int, delta: float | None, confidence: float) -> None:
    with pytest.raises(BenchError):
        audit_mechanism(GNMax(3.0, 1), seeded(), draws, delta, confidence)
