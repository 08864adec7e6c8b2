"""Audits by scores: silent where scores know nothing, at the cap where they know all, and never moved by order."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attacks.audit import bonferroni, check_power, many_runs, one_run
from bench.core.errors import BenchError
from bench.privacy import bounds


def fresh(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_scores_that_ignore_the_coins_prove_nothing() -> None:
    silent = 0
    for seed in range(100):
        generator = fresh(seed)
        scores, coins = generator.normal(size=1000), generator.random(1000) < 0.5
        silent += one_run(scores, coins, 50, 50, 1e-5, generator).epsilon == 0.0
    assert silent >= 95


def test_scores_that_know_the_coins_reach_the_cap() -> None:
    coins = fresh().random(1000) < 0.5
    found = one_run(coins + 0.1 * fresh(1).random(1000), coins, 50, 50, 1e-5, fresh())
    assert (found.canaries, found.guesses, found.correct) == (1000, 100, 100)
    assert found.epsilon == found.cap == pytest.approx(3.465, abs=1e-3)
    assert found.p_value < 1e-3
    assert one_run(coins, coins, 50, 50, 0.0, fresh()).p_value == pytest.approx(0.5**100)
    # The other way round, every guess is wrong.
    wrong = one_run(-coins.astype(float), coins, 50, 50, 1e-5, fresh())
    assert (wrong.correct, wrong.epsilon, wrong.p_value) == (0, 0.0, 1.0)


def test_an_audit_of_randomised_response_is_right_in_95_of_100() -> None:
    epsilon, above, found = 1.0, 0, []
    for seed in range(400):
        generator = fresh(seed)
        coins = generator.random(400) < 0.5
        told = np.where(generator.random(400) < 1 / (1 + math.exp(-epsilon)), coins, ~coins)
        # All that is known is one bit: which of the equal scores are guessed, a generator decides.
        found.append(one_run(told, coins, 100, 100, 0.0, generator).epsilon)
        above += found[-1] > epsilon
    assert above <= 20 + 13, "5% of 400, and three standard errors"
    assert np.median(found) > 0.6 * epsilon


def test_ties_are_broken_by_the_generator_and_not_by_order() -> None:
    # The coins are in order: with equal scores, order would guess all of them right.
    coins = np.repeat([False, True], 500)
    correct = [one_run(np.zeros(1000), coins, 50, 50, 0.0, fresh(seed)).correct for seed in range(200)]
    assert np.mean(correct) == pytest.approx(50, abs=1.5)
    assert one_run(np.zeros(1000), coins, 50, 50, 0.0, fresh(7)) == one_run(
        np.zeros(1000), coins, 50, 50, 0.0, fresh(7)
    )
    scores = fresh(3).normal(size=1000)
    order = fresh(4).permutation(1000)
    moved = one_run(scores[order], coins[order], 30, 20, 0.0, fresh(9))
    assert moved == one_run(scores, coins, 30, 20, 0.0, fresh(1))


def test_guesses_are_the_extremes() -> None:
    found = one_run([5.0, 4.0, 3.0, 2.0, 1.0], [1, 0, 0, 0, 0], 2, 1, 0.0, fresh())
    assert (found.guesses, found.correct) == (3, 2)
    assert one_run([5.0, 4.0, -math.inf], [1, 0, 0], 1, 0, 0.0, fresh()).correct == 1
    assert one_run([5.0, 4.0, -math.inf], [1, 0, 1], 0, 1, 0.0, fresh()).correct == 0


def test_canaries_without_a_score_still_count() -> None:
    coins = fresh().random(200) < 0.5
    few = one_run(coins.astype(float), coins, 50, 50, 1e-4, fresh())
    many = one_run(coins.astype(float), coins, 50, 50, 1e-4, fresh(), canaries=5000)
    assert many.canaries == 5000
    assert many.epsilon < few.epsilon


def test_duplicated_canaries_bound_the_epsilon_of_one() -> None:
    coins = fresh().random(500) < 0.5
    one, five = (one_run(coins.astype(float), coins, 50, 50, 1e-6, fresh(), group=group) for group in (1, 5))
    pure = one_run(coins.astype(float), coins, 50, 50, 0.0, fresh(), group=5)
    assert pure.epsilon == pytest.approx(bounds.one_run_epsilon(500, 100, 100, 0.0) / 5)
    assert five.epsilon < one.epsilon / 5
    assert five.epsilon == five.cap
    assert five.p_value == pytest.approx(bounds.one_run_p_value(500, 100, 100, 0.0, 5e-6))


def test_power_is_checked_before_a_run() -> None:
    assert check_power(1000, 100, 3.0, 1e-5) == pytest.approx(3.465, abs=1e-3)
    needed = bounds.guesses_needed(4.5, 1000, 1e-5)
    with pytest.raises(BenchError, match=f"too few canaries to reach epsilon 4.5.*{needed} guesses"):
        check_power(1000, 100, 4.5, 1e-5)
    with pytest.raises(BenchError, match="too few canaries") as caught:
        check_power(100, 100, 6.0, 0.0)
    more = int(str(caught.value).split("At least ")[1].split()[0])
    assert bounds.guesses_needed(6.0, more, 0.0) == more
    assert bounds.guesses_needed(6.0, more - 1, 0.0) is None
    with pytest.raises(BenchError, match="No number of canaries"):
        check_power(100, 100, 10.0, 0.01)
    with pytest.raises(BenchError, match="at least once"):
        check_power(100, 100, 1.0, 0.0, group=0)


def test_many_runs_count_only_runs_that_did_not_choose() -> None:
    generator = fresh()
    found = many_runs(generator.normal(8, 1, 625), generator.normal(0, 1, 625), 0.2, 1e-5)
    assert (found.negatives, found.positives, found.chosen_on) == (500, 500, 250)
    assert (found.false_positives, found.false_negatives) == (0, 0)
    assert found.bound.epsilon == found.bound.cap == pytest.approx(4.91, abs=0.01)
    assert 2 < found.threshold < 6


def test_many_runs_of_a_gaussian_mechanism_are_right_in_95_of_100_and_near() -> None:
    mu, delta, found = 1.0, 1e-3, []
    exact = bounds.gdp_epsilon(mu, delta)
    for seed in range(200):
        generator = fresh(seed)
        found.append(many_runs(generator.normal(mu, 1, 1000), generator.normal(0, 1, 1000), 0.3, delta).bound)
    assert np.mean([bound.epsilon > exact for bound in found]) <= 0.05
    assert np.mean([bound.mu > mu for bound in found]) <= 0.05
    assert np.median([bound.epsilon for bound in found]) > 0.25 * exact
    assert np.median([bound.mu for bound in found]) > 0.6 * mu
    nothing = [many_runs(fresh(s).normal(size=300), fresh(s + 999).normal(size=300), 0.3, 0.0) for s in range(100)]
    assert sum(audit.bound.epsilon == 0 for audit in nothing) >= 95


def test_several_channels_share_the_confidence() -> None:
    coins = fresh().random(1000) < 0.5
    scores = coins + fresh(1).normal(size=1000)
    one = one_run(scores, coins, 50, 50, 1e-5, fresh())
    corrected = bonferroni([one, one, one, one])
    assert [audit.confidence for audit in corrected] == [pytest.approx(0.9875)] * 4
    assert corrected[0].epsilon == bounds.one_run_epsilon(1000, 100, one.correct, 1e-5, corrected[0].confidence)
    assert 0 < corrected[0].epsilon < one.epsilon
    assert bonferroni([one]) == [one.at(0.95)]
    runs = many_runs(fresh(2).normal(3, 1, 200), fresh(3).normal(0, 1, 200), 0.2, 0.0)
    pair = bonferroni([runs, runs], 0.9)
    assert [audit.bound for audit in pair] == [runs.at(0.95).bound] * 2
    with pytest.raises(BenchError, match="no audits"):
        bonferroni([])
    with pytest.raises(BenchError, match="confidence"):
        bonferroni([one], 1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: one_run([1.0, 2.0], [True], 1, 0, 0.0, fresh()),
        lambda: one_run([1.0, math.nan], [True, False], 1, 0, 0.0, fresh()),
        lambda: one_run([1.0, 2.0], [2, 0], 1, 0, 0.0, fresh()),
        lambda: one_run([1.0, 2.0], [True, False], 2, 1, 0.0, fresh()),
        lambda: one_run([1.0, 2.0], [True, False], 0, 0, 0.0, fresh()),
        lambda: one_run([1.0, 2.0], [True, False], -1, 2, 0.0, fresh()),
        lambda: one_run([1.0, 2.0], [True, False], 1, 1, 0.0, fresh(), canaries=1),
        lambda: one_run([1.0, 2.0], [True, False], 1, 1, 1.0, fresh()),
        lambda: one_run([], [], 1, 1, 0.0, fresh()),
        lambda: many_runs([1.0], [1.0, 2.0], 0.5, 0.0),
        lambda: many_runs([1.0, 2.0], [1.0, 2.0], 1.0, 0.0),
        lambda: many_runs([1.0, math.nan], [1.0, 2.0], 0.5, 0.0),
    ],
)
def test_nonsense_is_refused(call) -> None:
    with pytest.raises(BenchError):
        call()
