"""Exact losses of the ledger's calls: their distributions against the real mechanisms, weights, and exact epsilons."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import special, stats

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.accounting.accountants import proven
from bench.privacy.auditing.compared import Drawn, GaussianVectors
from bench.privacy.auditing.loss_bound import best_tilt, refuted_by_losses
from bench.privacy.auditing.transcript_loss import compare, exact_epsilon
from bench.privacy.auditing.vote_laws import log_winners
from bench.privacy.events.conversions import exact_gaussian_epsilon, gaussian_delta
from bench.privacy.events.events import LNMax
from bench.privacy.events.losses import randomized_response_pld
from bench.privacy.mechanisms.ledger import Ledger
from helpers.ledger_calls import (
    CASES,
    CONTINUOUS,
    DISCRETE,
    FIXED,
    OF_SAMPLE,
    OTHER,
    RECORDS,
    REMOVED,
    SAMPLED,
    SETS,
    SIDEWAYS,
    VALUES,
    Case,
    bound,
    largest,
    pair,
    votes,
)
from helpers.ledgers import seeded_ledger

LEVEL = 1e-6
SIGMAS = 5.0


def ledger(name: str, seed: int) -> Ledger:
    unit = {"sampled_updates": PrivacyUnit.CLIENT}.get(name, PrivacyUnit.RECORD)
    unit = PrivacyUnit.LABEL if "response" in name else unit
    return seeded_ledger(unit, Adjacency.REPLACE, np.random.default_rng(seed))


def real_answers(name: str, arguments: dict[str, Any], draws: int, seed: int) -> list[np.ndarray]:
    real = ledger(name, seed)
    return [getattr(real, name)(**arguments) for _ in range(draws)]


def drawn(case: Case, tilt: float, draws: int, seed: int) -> list[Drawn]:
    generator, comparison = np.random.default_rng(seed), compare(*case)
    return [comparison.draw(generator, tilt) for _ in range(draws)]


def within(values: np.ndarray, wanted: float) -> bool:
    return bool(abs(values.mean() - wanted) <= SIGMAS * values.std() / math.sqrt(len(values)) + 1e-9)


# ------------------------------------------------------------------------------------------------------ laws of answers


@pytest.mark.few(2)
@pytest.mark.parametrize("case", DISCRETE.values(), ids=DISCRETE)
def test_untilted_labels_follow_the_real_mechanism(case: Case) -> None:
    mechanism, first, _ = case
    real = Counter(tuple(answer.tolist()) for answer in real_answers(mechanism, first, 2000, 1))
    audited = drawn(case, 0.0, 2000, 2)
    ours = Counter(tuple(draw.answer.tolist()) for draw in audited)
    table = np.array([[real[key], ours[key]] for key in real | ours])
    common = table[table.sum(axis=1) >= 20]
    assert stats.chi2_contingency(common.T).pvalue > LEVEL
    assert audited[0].answer.dtype == np.int64
    assert_allclose([draw.log_weight for draw in audited], 0, atol=1e-9)


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CONTINUOUS.values(), ids=CONTINUOUS)
def test_untilted_vectors_follow_the_real_mechanism(case: Case) -> None:
    mechanism, first, _ = case
    real = np.stack(real_answers(mechanism, first, 3000, 3)).reshape(3000, -1)
    ours = np.stack([draw.answer for draw in drawn(case, 0.0, 3000, 4)])
    assert ours.shape[1:] == np.shape(real_answers(mechanism, first, 1, 0)[0])
    for one, other in zip(real.T, ours.reshape(3000, -1).T, strict=True):
        assert stats.ks_2samp(one, other).pvalue > LEVEL
    assert stats.ks_2samp(real.sum(1), ours.reshape(3000, -1).sum(1)).pvalue > LEVEL


@pytest.mark.few(2)
@pytest.mark.parametrize("name", FIXED)
def test_loss_is_the_log_ratio_of_frequencies(name: str) -> None:
    mechanism, first, second = DISCRETE[name]
    seen, other = (
        Counter(tuple(answer.tolist()) for answer in real_answers(mechanism, given, 8000, seed))
        for seed, given in enumerate((first, second))
    )
    checked = 0
    for draw in {tuple(draw.answer.tolist()): draw for draw in drawn(DISCRETE[name], 0.0, 500, 5)}.values():
        one, two = seen[tuple(draw.answer.tolist())], other[tuple(draw.answer.tolist())]
        if min(one, two) >= 100:
            checked += 1
            assert abs(math.log(one / two) - draw.loss) < SIGMAS * math.sqrt(1 / one + 1 / two)
    assert checked >= 3


def test_losses_of_vectors_are_the_log_ratios_of_densities() -> None:
    for name, noise, scale in (("gaussian", stats.norm, 3.0), ("laplace", stats.laplace, 1.4)):
        first, second = (given["values"] for given in CONTINUOUS[name][1:])
        for draw in drawn(CONTINUOUS[name], 0.7, 50, 6):
            wanted = noise.logpdf(draw.answer, first, scale) - noise.logpdf(draw.answer, second, scale)
            assert draw.loss == pytest.approx(wanted.sum(), abs=1e-9)


@pytest.mark.parametrize("other", [OTHER, SIDEWAYS, None], ids=["opposite", "sideways", "removed"])
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_loss_of_a_lone_record_is_the_log_ratio_of_mixtures(other: np.ndarray | None, rate: float) -> None:
    settings = {**SAMPLED, "sampling_rate": rate}
    lone = VALUES[:1, [REMOVED]]
    replaced = np.zeros((1, 0, 3)) if other is None else other[:1, [REMOVED]]
    case = pair("sampled_gaussian", (lone,), (replaced,), **settings)
    vector = lone[0, 0] / max(1.0, np.linalg.norm(lone))
    opposite = np.zeros(3) if other is None else replaced[0, 0] / max(1.0, np.linalg.norm(replaced))

    def log_density(answer: np.ndarray, mean: np.ndarray) -> float:
        parts = [stats.norm.logpdf(answer, centre, 0.8).sum() for centre in (np.zeros(3), mean)]
        return float(special.logsumexp(parts, b=[1 - rate, rate]))

    for draw in drawn(case, 1.5, 50, 7):
        wanted = log_density(draw.answer[0], vector) - log_density(draw.answer[0], opposite)
        assert draw.loss == pytest.approx(wanted, abs=1e-9)


def test_a_function_of_more_than_its_sample_is_refused() -> None:
    def leak(everyone: torch.Tensor) -> Any:
        return lambda images, labels: everyone.sum(0).numpy()

    sides = ((leak(records), records, torch.zeros(4)) for records in RECORDS)
    with pytest.raises(BenchError, match="may use only the sampled records"):
        drawn(pair("sampled_function", *sides, **OF_SAMPLE), 0.0, 1, 0)


@pytest.mark.parametrize("name", ["function, replaced", "function, removed"])
def test_loss_of_a_function_is_the_log_ratio_of_mixtures_given_the_others(name: str) -> None:
    mechanism, first, second = CASES[name]
    always = [{**given, "sampling_rate": 1.0} for given in (first, second)]
    centres = [np.asarray(largest(given["images"], given["labels"])) for given in always]
    centres = [centre / max(1.0, float(np.linalg.norm(centre))) for centre in centres]
    for draw in drawn((mechanism, *always), 0.7, 50, 12):
        wanted = [stats.norm.logpdf(draw.answer, centre, 2 * 0.4).sum() for centre in centres]
        assert draw.loss == pytest.approx(wanted[0] - wanted[1], abs=1e-9)


# ---------------------------------------------------------------------------------------------------------- tilted laws


@pytest.mark.few(5)
@pytest.mark.parametrize("tilt", [0.0, 0.5])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_weights_turn_tilted_averages_into_those_of_both_inputs(case: Case, tilt: float) -> None:
    draws = drawn(case, tilt, 1000, 8)
    loss, log_weight = np.array([draw.loss for draw in draws]), np.array([draw.log_weight for draw in draws])
    assert within(np.exp(log_weight), 1.0)
    assert within(np.exp(log_weight - loss), 1.0)


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_tilt_raises_the_mean_loss(case: Case) -> None:
    untilted, tilted = ([draw.loss for draw in drawn(case, tilt, 400, 9)] for tilt in (0.0, 3.0))
    assert np.mean(tilted) > np.mean(untilted) + 0.4 * np.std(untilted)


def test_tilted_answers_have_the_weights_of_their_loss() -> None:
    # Up to a constant, the log weight of the exponentially tilted law is -tilt * loss.
    for name in (*FIXED, "gaussian", "laplace"):
        if name == "confident, ended":  # tilted only until the end
            continue
        moments = [draw.log_weight + 1.5 * draw.loss for draw in drawn(CASES[name], 1.5, 20, 10)]
        assert_allclose(moments, moments[0], atol=1e-9)


@pytest.mark.parametrize("tilt", [0.0, 3.0])
def test_impossible_answers_have_infinite_loss(tilt: float) -> None:
    # Only the first label is in its set, so only this label has answers outside the set.
    given = {"epsilon": 1.0, "classes": 5, "outside": "printed"}
    sets = np.array([[0, 1], [0, 1]])
    case = pair("top_k_randomized_response", (np.array([0, 3]), sets), (np.array([4, 3]), sets), **given)
    draws = drawn(case, tilt, 1500, 11)
    infinite = np.array([math.isinf(draw.loss) for draw in draws])
    assert [draw.answer[0] > 1 for draw in draws] == infinite.tolist()
    weights = np.exp([draw.log_weight for draw in draws])
    outside = 3 / (math.e + 4)
    assert within(weights * infinite, outside)
    assert within(weights, 1.0)
    assert exact_epsilon(compare(*case), outside / 2) == math.inf
    assert exact_epsilon(compare(*case), 0.99) == 0.0
    backwards = compare(case[0], case[2], case[1])
    assert all(math.isfinite(backwards.draw(np.random.default_rng(seed), tilt).loss) for seed in range(20))


def test_equal_inputs_have_no_loss() -> None:
    for mechanism, first, _ in CASES.values():
        draw = compare(mechanism, first, first).draw(np.random.default_rng(0), 2.0)
        assert draw.loss == pytest.approx(0.0, abs=1e-12)
        assert draw.log_weight == pytest.approx(0.0, abs=1e-9)


# ------------------------------------------------------------------------------------------------------- probabilities


@pytest.mark.parametrize("lead", [0, 3, 25, 100])
def test_two_classes_win_by_the_law_of_a_difference(lead: float) -> None:
    counts = votes([lead, 0])
    wanted = special.log_ndtr(np.array([lead, -lead]) / math.sqrt(2))
    assert_allclose(log_winners(counts, 1.0, "gaussian")[0], wanted, rtol=1e-11, atol=1e-10)
    loses = -lead + math.log(0.5 + lead / 4)
    assert_allclose(log_winners(counts, 1.0, "laplace")[0], [np.log1p(-math.exp(loses)), loses], rtol=0, atol=1e-10)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_probabilities_of_winners_add_up(noise: Any, classes: int) -> None:
    counts = np.random.default_rng(1).multinomial(250, np.full(classes, 1 / classes), size=4).astype(float)
    for scale in (2.0, 40.0):
        assert_allclose(np.exp(log_winners(counts, scale, noise)).sum(axis=1), 1, atol=1e-11)
    assert_allclose(log_winners(np.zeros((1, classes)), 1.0, noise), -math.log(classes), atol=1e-11)


def test_noise_too_small_for_the_quadrature_is_refused() -> None:
    with pytest.raises(BenchError, match="Use more noise or fewer teachers"):
        log_winners(votes([250, 0]), 1e-5, "gaussian")


# --------------------------------------------------------------------------------------------------------------- exact


TIES = [("noisy_max_gaussian", {"sigma": 40.0}), ("noisy_max", {"gamma": 0.05})]


def tie(mechanism: str, lead: int, queries: int, **noise: float) -> list[Any]:
    first = np.zeros((queries, 10))
    first[:, 0], first[:, 1] = (250 + lead) // 2, (250 - lead) // 2
    second = first.copy()
    second[:, 0] += 1
    second[:, 1] -= 1
    calls = [bound(mechanism, counts, teachers=250, **noise) for counts in (first, second)]
    return [compare(mechanism, *calls), compare(mechanism, *calls[::-1])]


def test_exact_epsilon_of_a_gaussian_call_is_that_of_its_mu() -> None:
    first, mu = compare(*CONTINUOUS["gaussian"]), math.sqrt(1 + 0.25) / 3
    assert exact_epsilon(first, 1e-5) == pytest.approx(exact_gaussian_epsilon(mu, 1e-5), rel=1e-12)
    mechanism, *given = CONTINUOUS["gaussian"]
    halved = compare(mechanism, *({**one, "noise_multiplier": 0.75} for one in given))
    assert isinstance(first, GaussianVectors)
    assert isinstance(halved, GaussianVectors)
    assert halved.mu == pytest.approx(2 * first.mu)


def test_exact_epsilon_is_never_above_the_truth_and_near_it() -> None:
    labels = np.zeros(60, dtype=np.int64)
    given = [bound("randomized_response", labels + label, epsilon=0.3, classes=10) for label in (0, 3)]
    found = exact_epsilon(compare("randomized_response", *given), 1e-5)
    assert found is not None
    above = randomized_response_pld(0.3, 10, 60, 1e-4).get_epsilon_for_delta(1e-5)
    assert 0.998 * above < found <= above
    many = [bound("randomized_response", np.full(2000, label), epsilon=0.05, classes=10) for label in (0, 3)]
    found_of_many = exact_epsilon(compare("randomized_response", *many), 1e-5)
    assert found_of_many is not None
    above_many = randomized_response_pld(0.05, 10, 2000, 1e-4).get_epsilon_for_delta(1e-5)
    assert 0.998 * above_many < found_of_many <= above_many
    entries = [bound("laplace", np.zeros(5) + shift, sensitivity=1.0, noise_multiplier=1.0) for shift in (0, 0.3)]
    vectors = exact_epsilon(compare("laplace", *entries), 1e-5)
    assert vectors is not None
    assert 1.0 < vectors < 2.0


def test_a_call_that_may_end_has_no_exact_epsilon() -> None:
    assert exact_epsilon(compare(*DISCRETE["confident, ended"]), 1e-5) is None
    assert exact_epsilon(compare(*CONTINUOUS["sum, removed"]), 1e-5) is None
    assert exact_epsilon(compare(*DISCRETE["confident"]), 1e-5)


@pytest.mark.parametrize(
    ("mechanism", "noise", "charged"),
    [
        ("noisy_max_gaussian", {"sigma": 40.0}, exact_gaussian_epsilon(math.sqrt(200) / 40, 1e-5)),
        ("noisy_max", {"gamma": 0.05}, proven([LNMax(0.05, 100)], 1e-5).epsilon),
    ],
)
def test_a_tie_shows_most_of_the_epsilon_charged(mechanism: str, noise: dict[str, float], charged: float) -> None:
    shares = {
        lead: max(exact_epsilon(call, 1e-5) or 0.0 for call in tie(mechanism, lead, 100, **noise)) / charged
        for lead in (0, 120)
    }
    assert 0.65 < shares[0] < 0.85
    assert shares[120] < 0.6 * shares[0]


@pytest.mark.parametrize(
    ("mechanism", "noise"), [("noisy_max_gaussian", {"sigma": 40.0}), ("noisy_max", {"gamma": 0.05})]
)
def test_some_runs_show_nearly_the_exact_epsilon(mechanism: str, noise: dict[str, float]) -> None:
    generator, call = np.random.default_rng(13), tie(mechanism, 0, 100, **noise)[0]

    def log_moment(tilt: float) -> float:
        draw = call.draw(generator, tilt)
        return draw.log_weight + tilt * draw.loss

    truth, tilt = exact_epsilon(call, 1e-5), best_tilt(log_moment, 1e-5)
    draws = [call.draw(generator, tilt) for _ in range(150)]
    found = refuted_by_losses([draw.loss for draw in draws], [draw.log_weight for draw in draws], 1e-5)
    assert truth is not None
    assert 0.95 * truth < found < truth


@pytest.mark.few(5)
@pytest.mark.parametrize("name", [*FIXED, "gaussian", "laplace"])
def test_weighted_draws_give_the_exact_delta(name: str) -> None:
    call = compare(*CASES[name])
    if name == "confident, ended":
        return
    draws = drawn(CASES[name], 1.0, 4000, 12)
    loss, weight = np.array([draw.loss for draw in draws]), np.exp([draw.log_weight for draw in draws])
    for epsilon in (0.1, 0.5):
        shown = weight * np.maximum(-np.expm1(epsilon - loss), 0)
        if isinstance(call, GaussianVectors):
            wanted = gaussian_delta(call.mu, epsilon)
        else:
            pld = call.exact(1e-4)
            assert pld is not None
            wanted = pld.get_delta_for_epsilon(epsilon)
        assert abs(shown.mean() - wanted) < SIGMAS * shown.std() / math.sqrt(len(shown)) + 1e-4


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("noisy_max", "gamma", 0.3),
        ("gnmax", "teachers", 9),
        ("top k", "candidates", SETS[:, ::-1]),
        ("nearest, replaced", "sigma", 2.0),
        ("sum, removed", "sampling_rate", 0.5),
    ],
)
def test_other_public_arguments_are_refused_by_name(name: str, argument: str, value: Any) -> None:
    mechanism, first, second = CASES[name]
    with pytest.raises(BenchError, match=f"a different {argument} "):
        compare(mechanism, first, {**second, argument: value})


def test_other_shapes_and_other_records_are_refused() -> None:
    mechanism, first, second = DISCRETE["gnmax"]
    with pytest.raises(BenchError, match="Shapes are public"):
        compare(mechanism, first, {**second, "votes": second["votes"][:1]})
    mechanism, first, _ = CONTINUOUS["sum, removed"]
    for values in (VALUES + 0.1, VALUES[:, :2], np.delete(OTHER, 0, 1)):
        with pytest.raises(BenchError, match="must differ in one record"):
            compare(mechanism, first, {**first, "values": values})
    with pytest.raises(BenchError, match="dp_sgd"):
        compare("dp_sgd", {}, {})
