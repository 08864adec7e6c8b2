"""Membership attacks on a model that overfits, worked out by hand on three records, and invariances of the scores."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy import stats

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.rows import Estimated
from bench.core.types import Access, Facts, Signals
from bench.evaluation.attack.membership import bounds_of, curves_of, power
from bench.interface.attack import MembershipAttack
from bench.interface.registry import ATTACKS
from bench.interface.signals import log_odds
from bench.metrics.roc import membership_metrics
from bench.results.attack_record import Role
from helpers.records import record

NAMES = ["lira", "rmia", "loss", "label-gap"]
FACTS = Facts("digits", 1000, 100, 100, 10, (1, 8, 8))
CANDIDATES, CLASSES, DIMENSIONS, MODELS = 300, 5, 60, 40


def score(name: str, signals: Signals, **changes: object) -> np.ndarray:
    kind = ATTACKS.get(name)
    attack = kind(build_config(kind, Preset.PAPER, FACTS, changes)[0], FACTS)
    assert isinstance(attack, MembershipAttack)
    return attack.score(signals)


def softmax_regressions(x: np.ndarray, y: np.ndarray, inside: np.ndarray, steps: int = 300) -> np.ndarray:
    """Train one linear model for each row of `inside` (models, n) on its records; return (models, d, classes)."""
    generator = np.random.default_rng(5)
    weights = 0.01 * generator.normal(size=(len(inside), x.shape[1], CLASSES))
    target = np.eye(CLASSES)[y]
    for _ in range(steps):
        logits = x @ weights
        p = np.exp(logits - logits.max(axis=-1, keepdims=True))
        error = (p / p.sum(axis=-1, keepdims=True) - target) * inside[:, :, None]
        weights -= 0.15 * (x.T @ error) / inside.sum(axis=1)[:, None, None] * 10
    return weights


@functools.cache
def trained() -> dict[str, np.ndarray]:
    """Models trained on half of the candidates each; some candidates are far easier than the rest."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(CLASSES, DIMENSIONS)) * 0.45
    labels = generator.integers(0, CLASSES, CANDIDATES)
    x = generator.normal(size=(CANDIDATES, DIMENSIONS)) + centres[labels]
    labels = np.where(generator.random(CANDIDATES) < 0.35, generator.integers(0, CLASSES, CANDIDATES), labels)
    inside = generator.random((MODELS, CANDIDATES)) < 0.5
    population_labels = generator.integers(0, CLASSES, 400)
    population = generator.normal(size=(400, DIMENSIONS)) + centres[population_labels]
    weights = softmax_regressions(x, labels, inside)
    # one more, trained on no candidate
    other_labels = generator.integers(0, CLASSES, CANDIDATES)
    other = generator.normal(size=(CANDIDATES, DIMENSIONS)) + centres[other_labels]
    stranger = softmax_regressions(other, other_labels, np.ones((1, CANDIDATES), dtype=bool))[0]
    moved = x + 0.2 * generator.normal(size=x.shape)
    return {
        "labels": labels,
        "inside": inside,
        "logits": np.stack([x @ weights, moved @ weights], axis=1),
        "stranger": np.stack([x @ stranger, moved @ stranger]),
        "population_labels": population_labels,
        "population": population @ weights,
        "population_stranger": population @ stranger,
    }


def signals_of(target: int | None, queries: int = 1, references: int = 32) -> Signals:
    data = trained()
    rest = [number for number in range(MODELS) if number != target][:references]
    return Signals(
        labels=data["labels"],
        target=(data["stranger"] if target is None else data["logits"][target])[:queries],
        references=data["logits"][rest][:, :queries],
        inside=data["inside"][rest],
        population_labels=data["population_labels"],
        population_target=data["population_stranger"] if target is None else data["population"][target],
        population_references=data["population"][rest],
    )


def rates_of(scores: np.ndarray, members: np.ndarray, fprs: tuple[float, ...] = (0.01,)) -> dict[str, Estimated]:
    return membership_metrics(scores, members, fprs=fprs, draws=1)


@functools.cache
def rates(name: str, queries: int = 1, references: int = 32, **changes: object) -> tuple[float, float]:
    """TPR at 1% FPR and AUC over twenty targets, each attacked with the other models as references."""
    scores = [score(name, signals_of(t, queries, references), **changes) for t in range(20)]
    members = trained()["inside"][:20].ravel()
    found = rates_of(np.concatenate(scores), members)
    return found["tpr@0.01"].value, found["auc"].value


def test_references_help_and_seeing_both_sides_helps_more() -> None:
    online, offline, loss = rates("lira"), rates("lira", mode="offline"), rates("loss")
    assert online[0] > 1.1 * offline[0]
    assert offline[0] > 2 * loss[0]
    assert online[1] > offline[1] > 0.6
    # So few references are too few for a variance of each candidate (Carlini et al. 2022, figure 9).
    assert rates("lira", references=8)[0] > rates("lira", references=8, variance="per-record")[0]
    # RMIA needs only a few references, with which LiRA has nothing to fit.
    rmia = rates("rmia", references=4)
    assert rmia[0] > 2 * loss[0]
    assert rmia[1] > loss[1] + 0.03
    assert rmia[0] > 1.5 * rates("rmia", references=4, mode="offline")[0]
    # Labels cannot tell members at a low rate of false positives.
    assert rates("label-gap")[0] == 0.0
    assert rates("label-gap")[1] > 0.6


def test_label_gap_is_the_gap_between_accuracies() -> None:
    signals, inside = signals_of(0), trained()["inside"][0]
    right = signals.target[0].argmax(axis=1) == signals.labels
    gap = right[inside].mean() - right[~inside].mean()
    assert rates_of(score("label-gap", signals), inside)["auc"].value == pytest.approx((1 + gap) / 2)
    both = score("label-gap", signals_of(0, queries=2))
    assert set(np.unique(both)) <= {0.0, 0.5, 1.0, 1.5}
    # An attack that sees only labels must ignore all else in the logits.
    flat = np.eye(CLASSES)[signals.target.argmax(axis=-1)]
    np.testing.assert_array_equal(
        score("label-gap", dataclasses.replace(signals, target=flat)), score("label-gap", signals)
    )
    assert ATTACKS.get("label-gap").access is Access.LABELS


@pytest.mark.parametrize("name", NAMES)
def test_a_target_of_none_of_the_candidates_is_at_chance(name: str) -> None:
    found = score(name, signals_of(None, queries=2))
    coins = np.random.default_rng(1).random((200, CANDIDATES)) < 0.5
    # No model was trained by these coins, so the mean over draws is chance, whatever the scores.
    drawn = [rates_of(found, coin, (0.05,)) for coin in coins]
    assert np.mean([each["auc"].value for each in drawn]) == pytest.approx(0.5, abs=0.01)
    assert np.mean([each["tpr@0.05"].value for each in drawn]) < 0.08


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("queries", [1, 2])
def test_scores_ignore_what_they_must(name: str, queries: int) -> None:
    signals = signals_of(3, queries)
    before = score(name, signals)
    assert before.shape == (CANDIDATES,)
    assert before.dtype == np.float64
    assert np.isfinite(before).all()
    generator = np.random.default_rng(0)
    shifted = dataclasses.replace(
        signals,
        target=signals.target + generator.normal(size=(*signals.target.shape[:-1], 1)),
        references=signals.references + generator.normal(size=(*signals.references.shape[:-1], 1)),
    )
    np.testing.assert_allclose(score(name, shifted), before, rtol=1e-9, atol=1e-9)
    order = generator.permutation(len(signals.references))
    reordered = dataclasses.replace(
        signals,
        references=signals.references[order],
        inside=signals.inside[order],
        population_references=signals.population_references[order],
    )
    np.testing.assert_allclose(score(name, reordered), before, rtol=1e-9, atol=1e-9)
    # Other wrong classes may be permuted.
    place = generator.permutation(CLASSES)
    relabelled = dataclasses.replace(
        signals,
        labels=np.argsort(place)[signals.labels],
        target=signals.target[..., place],
        references=signals.references[..., place],
        population_labels=np.argsort(place)[signals.population_labels],
        population_target=signals.population_target[..., place],
        population_references=signals.population_references[..., place],
    )
    np.testing.assert_allclose(score(name, relabelled), before, rtol=1e-9, atol=1e-9)
    rows = generator.permutation(CANDIDATES)
    moved = dataclasses.replace(
        signals,
        labels=signals.labels[rows],
        target=signals.target[:, rows],
        references=signals.references[:, :, rows],
        inside=signals.inside[:, rows],
    )
    np.testing.assert_allclose(score(name, moved), before[rows], rtol=1e-9, atol=1e-9)


def test_log_odds_do_not_round() -> None:
    logits = np.array([[60.0, 0.0, -3.0], [0.0, 60.0, 0.0]])
    found = log_odds(logits, np.array([0, 0]))
    assert found == pytest.approx([60 - math.log1p(math.exp(-3)), -60.0])


def two_class(phi: np.ndarray) -> np.ndarray:
    """Logits (..., 2) whose log odds of class 0 are `phi`."""
    return np.stack([phi, np.zeros_like(phi)], axis=-1)


def three_records(inside: list[list[int]]) -> Signals:
    # References by records; the third record's scores vary most.
    phi = np.array([[1.0, 2.0, 0.0], [3.0, 4.0, 8.0], [2.0, 2.5, 1.0], [4.0, 5.0, 5.0]])
    return Signals(
        labels=np.zeros(3, dtype=np.int64),
        target=two_class(np.array([[3.5, 2.0, 6.0]])),
        references=two_class(phi[:, None, :]),
        inside=np.array(inside, dtype=bool),
        population_labels=np.zeros(2, dtype=np.int64),
        population_target=two_class(np.array([0.0, 1.0])),
        population_references=two_class(np.zeros((4, 2))),
    )


HALVES = [[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1]]


def test_lira_by_hand() -> None:
    signals = three_records(HALVES)
    # In: {3, 4}, {4, 5}, {8, 5}: medians 3.5, 4.5, 6.5, squares .5 + .5 + 4.5 over 3 degrees of freedom.
    # Out: {1, 2}, {2, 2.5}, {0, 1}: medians 1.5, 2.25, 0.5, squares .5 + .125 + .5.
    std_in, std_out = math.sqrt(5.5 / 3), math.sqrt(1.125 / 3)
    phi = np.array([3.5, 2.0, 6.0])
    expected = stats.norm.logpdf(phi, [3.5, 4.5, 6.5], std_in) - stats.norm.logpdf(phi, [1.5, 2.25, 0.5], std_out)
    np.testing.assert_allclose(score("lira", signals), expected)
    offline = score("lira", signals, mode="offline")
    np.testing.assert_allclose(offline, -stats.norm.logsf(phi, [1.5, 2.25, 0.5], std_out))
    assert np.argsort(offline).tolist() == np.argsort(stats.norm.logcdf(phi, [1.5, 2.25, 0.5], std_out)).tolist()
    own = score("lira", signals, variance="per-record")
    each = stats.norm.logpdf(3.5, 3.5, math.sqrt(0.5)) - stats.norm.logpdf(3.5, 1.5, math.sqrt(0.5))
    assert own[0] == pytest.approx(each)


def test_lira_offline_does_not_look_at_references_that_saw_the_candidate() -> None:
    signals = three_records(HALVES)
    other = signals.references.copy()
    other[[1, 3]] = 77.0
    changed = dataclasses.replace(signals, references=other)
    np.testing.assert_array_equal(score("lira", changed, mode="offline"), score("lira", signals, mode="offline"))


def test_lira_offline_does_not_saturate() -> None:
    signals = three_records(HALVES)
    far = dataclasses.replace(signals, target=two_class(np.array([[90.0, 91.0, 92.0]])))
    found = score("lira", far, mode="offline")
    assert np.isfinite(found).all()
    assert len(np.unique(found)) == 3


def test_a_candidate_with_one_side_takes_the_mean_shift() -> None:
    lopsided = [[*row[:2], 1] for row in HALVES]  # All references saw the third record.
    signals = three_records(lopsided)
    # Shifts of the others: 2 and 2.25; the third's median over {0, 8, 1, 5} is 3.
    ratio = score("lira", signals)
    std_in = math.sqrt((0.5 + 0.5 + 41.0) / 5)
    std_out = math.sqrt(0.625 / 2)
    expected = stats.norm.logpdf(6, 3, std_in) - stats.norm.logpdf(6, 3 - 2.125, std_out)
    assert ratio[2] == pytest.approx(expected)
    offline = score("lira", signals, mode="offline")
    assert offline[2] == pytest.approx(-stats.norm.logsf(6, (1.5 + 2.25) / 2, std_out))
    for name, mode in (("lira", "online"), ("rmia", "offline"), ("rmia", "online")):
        assert np.isfinite(score(name, signals, mode=mode)).all()


def test_rmia_by_hand() -> None:
    def sigmoid(value: float) -> float:
        return 1 / (1 + math.exp(-value))

    signals = three_records(HALVES)
    a, temperature = 0.3, 2.0
    out = [(sigmoid(0.5) + sigmoid(1.0)) / 2, (sigmoid(1.0) + sigmoid(1.25)) / 2, (sigmoid(0.0) + sigmoid(0.5)) / 2]
    usual = [((1 + a) * p + 1 - a) / 2 for p in out]
    lift = [sigmoid(phi / temperature) / p for phi, p in zip((3.5, 2.0, 6.0), usual, strict=True)]
    usual_z = ((1 + a) * 0.5 + 1 - a) / 2
    lift_z = [sigmoid(0.0) / usual_z, sigmoid(0.5) / usual_z]
    for gamma in (2.0, 1.5, 1.2, 1.0):
        expected = [sum(x / z >= gamma for z in lift_z) / 2 for x in lift]
        assert score("rmia", signals, mode="offline", gamma=gamma).tolist() == expected
    inner = [(sigmoid(1.5) + sigmoid(2.0)) / 2, (sigmoid(2.0) + sigmoid(2.5)) / 2, (sigmoid(4.0) + sigmoid(2.5)) / 2]
    usual = [(i + o) / 2 for i, o in zip(inner, out, strict=True)]
    lift = [sigmoid(phi / 2) / p for phi, p in zip((3.5, 2.0, 6.0), usual, strict=True)]
    # No reference holds a population record: its other side is moved by the candidates' mean shift in log odds.
    shift = sum(math.log(i / (1 - i) / (o / (1 - o))) for i, o in zip(inner, out, strict=True)) / 3
    usual_z = (0.5 + sigmoid(shift)) / 2
    lift_z = [sigmoid(0.0) / usual_z, sigmoid(0.5) / usual_z]
    for gamma in (1.5, 1.2, 1.0, 0.8):
        expected = [sum(x / z >= gamma for z in lift_z) / 2 for x in lift]
        assert score("rmia", signals, gamma=gamma).tolist() == expected


def rmia_auc(references: int, mode: str) -> float:
    """The AUC over twenty targets whose log odds are a record's own (deviation 2), plus 1 for members, plus noise."""
    scores, members = [], []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        own, others = generator.normal(0, 2, (2, 300))
        inside = generator.random((references + 1, 300)) < 0.5
        odds, population = generator.normal([own + inside, np.broadcast_to(others, inside.shape)])
        signals = Signals(
            labels=np.zeros(300, dtype=np.int64), target=two_class(odds[:1]), references=two_class(odds[1:, None]),
            inside=inside[1:], population_labels=np.zeros(300, dtype=np.int64),
            population_target=two_class(population[0]), population_references=two_class(population[1:]),
        )  # fmt: skip
        scores.append(score("rmia", signals, mode=mode))
        members.append(inside[0])
    return rates_of(np.concatenate(scores), np.concatenate(members))["auc"].value


@pytest.mark.parametrize("references", [1, 16])
def test_rmia_uses_the_references_that_hold_a_candidate(references: int) -> None:
    found, offline = rmia_auc(references, "auto"), rmia_auc(references, "offline")
    assert found == rmia_auc(references, "online")
    assert found > offline + 0.02


def test_too_few_references_are_refused() -> None:
    few = signals_of(0, references=3)
    with pytest.raises(BenchError, match="at least 4 references"):
        score("lira", few)
    none = signals_of(0, references=0)
    with pytest.raises(BenchError, match="at least 1 references"):
        score("rmia", none)
    for name in ("loss", "label-gap"):
        assert len(score(name, none)) == CANDIDATES
    with pytest.raises(BenchError, match="population"):
        score(
            "rmia",
            dataclasses.replace(
                few,
                population_labels=few.population_labels[:0],
                population_target=few.population_target[:0],
                population_references=few.population_references[:, :0],
            ),
        )
    everything = np.ones_like(signals_of(0).inside)
    assert np.isfinite(score("rmia", dataclasses.replace(signals_of(0), inside=everything), mode="online")).all()
    for inside, name, mode in ((everything, "lira", "offline"), (everything, "rmia", "offline"),
                               (everything, "lira", "online"), (~everything, "lira", "online"),
                               (~everything, "rmia", "online")):  # fmt: skip
        with pytest.raises(BenchError):
            score(name, dataclasses.replace(signals_of(0), inside=inside), mode=mode)
    with pytest.raises(BenchError, match="gamma"):
        score("rmia", signals_of(0), gamma=0.0)
    with pytest.raises(BenchError, match="variations"):
        score("label-gap", signals_of(0), variations=2.0)


def test_power_is_corrected_for_the_choice_of_the_best_family() -> None:
    """Scores without information, of two targets, are judged to have power in at most 7% of trials (nominally 5%)."""
    found, trials = 0, 300
    canary, target = (part.ravel() for part in np.indices((30, 2)))
    for seed in range(trials):
        generator = np.random.default_rng(seed)
        families = ("natural", "outlier", "mislabelled", "duplicated")
        drawn = {family: (generator.normal(size=60), generator.random(60) < 0.5, canary) for family in families}
        found += not power(drawn, seed, 300)[1]
    assert 0.01 <= found / trials <= 0.07, "uncorrected 7.7% (23 of 300)"
    leaking = {**drawn, "outlier": (target + generator.normal(size=60) / 4, target == 1, canary)}
    assert power(leaking, 0, 300) == ("outlier", "")


def test_bounds_are_those_of_the_curve() -> None:
    """For one Gaussian release with deviation 1; an attack on the curve itself stays below the bound on its AUC."""
    privacy = record().privacy
    assert privacy is not None
    event = {"kind": "gaussian", "noise_multiplier": 1.0, "unit": "record", "adjacency": "add-remove"}
    bounds = bounds_of(privacy.model_copy(update={"events": [event]}))
    assert bounds["advantage"] == pytest.approx(0.3829, abs=1e-4)
    assert bounds["tpr@0.01"] == pytest.approx(stats.norm.sf(stats.norm.isf(0.01) - 1), abs=1e-4)
    assert stats.norm.cdf(0.5**0.5) < bounds["auc"] < 0.85


def test_curves_of_copied_records_are_not_drawn_under_the_ceiling_for_one_record() -> None:
    scores, canary = np.array([0.1, 0.9]), np.zeros((1, 2), np.int64)
    families = dict.fromkeys(("natural", "outlier", "duplicated"), (scores, scores > 0.5, canary))
    curves = curves_of({Role.STUDENT: families, Role.NON_PRIVATE: families}, "outlier")
    assert list(curves) == [
        f"{Role.STUDENT}, natural", f"{Role.STUDENT}, outlier", f"{Role.NON_PRIVATE}, outlier"
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_each_attack_is_registered_with_its_presets(name: str) -> None:
    kind = ATTACKS.get(name)
    assert issubclass(kind, MembershipAttack)
    assert kind.name == name
    assert {"quick", "tiny"} <= set(kind.presets(FACTS))
    for preset in Preset:
        build_config(kind, preset, FACTS)
    assert kind.references >= 0
    for field in dataclasses.fields(kind.Config):
        assert field.metadata["source"], "every default names its place"
