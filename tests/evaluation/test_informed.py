"""The informed attacker: exact values for Gaussian noise, and its records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.types import Adjacency, AuditKind, Basis, Budget, Facts, Instrument, PrivacyUnit
from bench.evaluation.audit.informed import Game, found, guess, release_scores, transcript_hits
from bench.evaluation.audit.options import AuditOptions
from bench.evaluation.audit.pairs import candidate_pairs
from bench.interface import Method
from bench.interface.registry import METHODS
from bench.privacy.accounting.risk import reconstruction
from bench.privacy.auditing.compared import GaussianVectors, LabelRows, LaplaceVectors
from bench.privacy.events.events import Gaussian
from helpers.pairs import pair_audit

FACTS = Facts("digits", 1000, 400, 397, 10, (1, 8, 8), public_benchmark=True)
DELTA = 1e-5


def best_success(mu: float, count: int) -> float:
    """Return the success of the best attacker on `count` orthogonal candidates at `mu` from the absent record."""
    return float(integrate.quad(lambda x: stats.norm.pdf(x - mu) * stats.norm.cdf(x) ** (count - 1), -9, 9 + mu)[0])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("mu", "success"),
    [(1.0, (0.3409, 0.0825, 0.0166)), (3.0, (0.9025, 0.6779, 0.4116)), (1 / np.sqrt(2), (0.2533, 0.0482, 0.0080))],
)
def test_the_best_attacker_on_a_gaussian_release(mu: float, success: tuple[float, float, float]) -> None:
    """For candidates that replace each other, at mu from each other, the absent record is mu / sqrt(2) away."""
    generator = np.random.default_rng(0)
    for count, value, draws in zip((10, 100, 1000), success, (1000, 150, 40), strict=True):
        assert best_success(mu, count) == pytest.approx(value, abs=5e-5)
        absent = np.zeros(count)
        games = [GaussianVectors(row, absent, 1 / mu) for row in np.eye(count)]
        hits = []
        for true in generator.integers(count, size=draws).tolist():
            answer = games[true].draw(generator, 0.0).answer
            hits.append(guess(np.array([game.loss_of(answer) for game in games]), generator) == true)
        measured = found(Instrument.TRANSCRIPT, count, hits, 1.0, 0.999)
        assert measured.low <= value <= measured.high
        assert value <= reconstruction([Gaussian(1 / mu)], 1 / count)


@pytest.mark.parametrize(
    "compared",
    [
        GaussianVectors(np.array([1.0, 0.5]), np.array([0.0, 1.0]), 2.0),
        LaplaceVectors(np.array([1.0, 0.5]), np.array([0.0, 1.0]), 2.0),
        LabelRows(
            lambda generator: generator.integers(2, size=3), np.array([0, 2]), np.array([0, 0]),
            np.log([[0.3, 0.7]]), np.log([[0.6, 0.4]]), np.array([0, 1]),
        ),
    ],
)  # fmt: skip
def test_the_loss_of_an_answer_is_that_of_its_draw(compared: GaussianVectors | LaplaceVectors | LabelRows) -> None:
    generator = np.random.default_rng(1)
    for _ in range(20):
        drawn = compared.draw(generator, 0.0)
        assert compared.loss_of(drawn.answer) == pytest.approx(drawn.loss)


def game_of(name: str, epsilon: float, count: int) -> tuple[Game, float]:
    """Return the game of a calibrated method and the bound on the attacker's success."""
    method = METHODS.get(name)
    config = method(build_config(method, Preset.TINY, FACTS)[0], FACTS).calibrate(Budget(epsilon, DELTA, Basis.PROVEN))
    events = method(config, FACTS).charges()
    assert events is not None
    return Game(method, tuple(candidate_pairs(method, config, FACTS, DELTA, count))), reconstruction(events, 1 / count)


def test_one_noisy_sum_is_attacked_up_to_its_exact_value() -> None:
    game, bound = game_of("dp-prototypes", 10.0, 10)
    measured = found(Instrument.TRANSCRIPT, 10, transcript_hits(game), bound, 0.999)
    assert measured.runs == 2000
    assert 0.8 * bound < measured.high
    assert measured.low <= bound


@pytest.mark.parametrize("name", ["pate-gnmax", "pate-ridge"])
def test_votes_and_scores_are_attacked(name: str) -> None:
    game, bound = game_of(name, 10.0, 10)
    measured = found(Instrument.TRANSCRIPT, 10, transcript_hits(game, 500), bound, 0.999)
    assert 0.15 < measured.low <= bound


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 100])
def test_dp_sgd_is_attacked_to_four_fifths_of_the_bound(count: int) -> None:
    game, bound = game_of("dp-sgd", 10.0, count)
    hits = [hit for _ in range(400) for hit in transcript_hits(game)]
    measured = found(Instrument.TRANSCRIPT, count, hits, bound, 0.99)
    assert measured.low <= bound
    assert sum(hits) / len(hits) >= 0.8 * bound - 2 * np.sqrt(bound / len(hits))


def test_without_noise_the_attack_on_the_release_exceeds_the_bound() -> None:
    game, bound = game_of("dp-prototypes", 1.0, 10)
    pilot = np.array([release_scores(game, None, silent=True) for _ in range(3)])
    generator, hits = np.random.default_rng(2), []
    for true in range(10):
        scores = (release_scores(game, true, silent=True) - pilot.mean(0)) / np.maximum(pilot.std(0), 1e-3)
        hits.append(guess(scores, generator) == true)
    measured = found(Instrument.RELEASE, 10, hits, bound, 0.95)
    assert measured.low > bound
    audit = pair_audit(kind=AuditKind.CANDIDATES, candidates=[measured], epsilon=None)
    assert audit.violated
    assert audit.verdict == "VIOLATED: an attack exceeds the proven curve"


def test_an_audit_within_the_bound_says_so() -> None:
    measured = found(Instrument.RELEASE, 10, [True] * 30 + [False] * 70, 0.32, 0.95)
    assert (measured.right, measured.runs) == (30, 100)
    assert measured.low == pytest.approx(0.2124, abs=1e-4)
    audit = pair_audit(kind=AuditKind.CANDIDATES, candidates=[measured], epsilon=None)
    assert not audit.violated
    assert audit.verdict == "within the bound"


@pytest.mark.parametrize("text", ["1", "10,1", "ten", "", "2000"])
def test_fewer_candidates_than_two_are_refused(text: str) -> None:
    with pytest.raises(BenchError, match="--candidates takes whole numbers from 2 to 1,000"):
        AuditOptions(kind=AuditKind.CANDIDATES, candidates=text)


@dataclass(frozen=True)
class _Config:
    pass


class _Labels(Method[_Config]):
    name = "labels"
    unit = PrivacyUnit.LABEL
    adjacency = Adjacency.REPLACE


def test_a_label_has_as_many_candidates_as_classes() -> None:
    with pytest.raises(BenchError, match="a label has 10 values"):
        candidate_pairs(_Labels, _Config(), FACTS, DELTA, 11)


def test_candidates_under_add_remove_are_distinct_records_beside_the_same_others() -> None:
    game, _ = game_of("dp-prototypes", 10.0, 30)
    records = [(pair.first.images[0], int(pair.first.labels[0])) for pair in game.pairs]
    assert len({(image.numpy().tobytes(), label) for image, label in records}) == 30
    for pair in game.pairs:
        assert torch.equal(pair.first.images[1:], pair.second.images)
        assert torch.equal(pair.first.labels[1:], pair.second.labels)
