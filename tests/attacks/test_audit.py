"""Audits by scores: no bound from scores without information, the cap from perfect ones, and no effect of the order."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.core.errors import BenchError
from bench.evaluation.audit.guesses import check_power, many_run_errors, right_guesses
from bench.privacy.auditing.bounds import many_run_epsilon
from bench.privacy.auditing.curve_bounds import many_run_by_curve
from bench.privacy.auditing.one_run import guesses_needed, one_run_epsilon
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.privacy.events.events import Gaussian


def fresh(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_scores_that_ignore_the_coins_prove_nothing() -> None:
    silent = 0
    for seed in range(100):
        generator = fresh(seed)
        scores, coins = generator.normal(size=1000), generator.random(1000) < 0.5
        silent += one_run_epsilon(1000, 100, right_guesses(scores, coins, 50, 50, generator), 1e-5) == 0.0
    assert silent >= 95


def test_scores_that_know_the_coins_are_all_right() -> None:
    coins = fresh().random(1000) < 0.5
    assert right_guesses(coins + 0.1 * fresh(1).random(1000), coins, 50, 50, fresh()) == 100
    # With the scores reversed, every guess is wrong.
    assert right_guesses(-coins.astype(float), coins, 50, 50, fresh()) == 0


def test_an_audit_of_randomised_response_is_right_in_95_of_100() -> None:
    epsilon, above, found = 1.0, 0, []
    for seed in range(400):
        generator = fresh(seed)
        coins = generator.random(400) < 0.5
        answers = np.where(generator.random(400) < 1 / (1 + math.exp(-epsilon)), coins, ~coins)
        # The scores carry a single bit, so the generator decides which of the equal scores are guessed.
        found.append(one_run_epsilon(400, 200, right_guesses(answers, coins, 100, 100, generator), 0.0))
        above += found[-1] > epsilon
    assert above <= 20 + 13, "5% of 400, and three standard errors"
    assert np.median(found) > 0.6 * epsilon


def test_ties_are_broken_by_the_generator_and_not_by_order() -> None:
    # The coins are sorted: with equal scores, guessing in order would get all of them right.
    coins = np.repeat([False, True], 500)
    correct = [right_guesses(np.zeros(1000), coins, 50, 50, fresh(seed)) for seed in range(200)]
    assert np.mean(correct) == pytest.approx(50, abs=1.5)
    assert correct[7] == right_guesses(np.zeros(1000), coins, 50, 50, fresh(7))
    scores, order = fresh(3).normal(size=1000), fresh(4).permutation(1000)
    moved = right_guesses(scores[order], coins[order], 30, 20, fresh(9))
    assert moved == right_guesses(scores, coins, 30, 20, fresh(1))


def test_guesses_are_the_extremes() -> None:
    assert right_guesses([5.0, 4.0, 3.0, 2.0, 1.0], [1, 0, 0, 0, 0], 2, 1, fresh()) == 2
    assert right_guesses([5.0, 4.0, -math.inf], [1, 0, 0], 1, 0, fresh()) == 1
    assert right_guesses([5.0, 4.0, -math.inf], [1, 0, 1], 0, 1, fresh()) == 0


def test_power_is_checked_before_a_run() -> None:
    assert check_power(1000, 100, 3.0, 1e-5) == pytest.approx(3.465, abs=1e-3)
    needed = guesses_needed(4.5, 1000, 1e-5)
    with pytest.raises(BenchError, match=f"too few canaries to reach epsilon 4.5.*{needed} guesses"):
        check_power(1000, 100, 4.5, 1e-5)
    with pytest.raises(BenchError, match="too few canaries") as caught:
        check_power(100, 100, 6.0, 0.0)
    more = int(str(caught.value).split("At least ")[1].split()[0])
    assert guesses_needed(6.0, more, 0.0) == more
    assert guesses_needed(6.0, more - 1, 0.0) is None
    with pytest.raises(BenchError, match="No number of canaries"):
        check_power(100, 100, 10.0, 0.01)
    with pytest.raises(BenchError, match="of at least 1"):
        check_power(100, 100, 1.0, 0.0, group=0)


def test_many_runs_count_only_runs_that_did_not_choose() -> None:
    generator = fresh()
    found = many_run_errors(generator.normal(8, 1, 625), generator.normal(0, 1, 625), 0.2, 1e-5)
    assert found == (0, 500, 0, 500)
    bound = many_run_epsilon(*found, 1e-5)
    assert bound.epsilon == bound.cap == pytest.approx(4.91, abs=0.01)


def test_many_runs_of_a_gaussian_mechanism_are_right_in_95_of_100_and_near() -> None:
    mu, delta, found = 1.0, 1e-3, []
    exact = exact_gaussian_epsilon(mu, delta)
    for seed in range(200):
        generator = fresh(seed)
        errors = many_run_errors(generator.normal(mu, 1, 1000), generator.normal(0, 1, 1000), 0.3, delta)
        by_curve = many_run_by_curve([Gaussian(1 / mu)], *errors, delta)
        assert by_curve is not None
        found.append((many_run_epsilon(*errors, delta).epsilon, by_curve.epsilon))
    assert (np.mean(np.array(found) > exact, axis=0) <= 0.05).all()
    assert (np.median(found, axis=0) > [0.25 * exact, 0.6 * exact]).all()
    nothing = [many_run_errors(fresh(s).normal(size=300), fresh(s + 999).normal(size=300), 0.3, 0) for s in range(100)]
    assert sum(many_run_epsilon(*errors, 0.0).epsilon == 0 for errors in nothing) >= 95


@pytest.mark.parametrize(
    "call",
    [
        lambda: right_guesses([1.0, 2.0], [True], 1, 0, fresh()),
        lambda: right_guesses([1.0, math.nan], [True, False], 1, 0, fresh()),
        lambda: right_guesses([1.0, 2.0], [2, 0], 1, 0, fresh()),
        lambda: right_guesses([1.0, 2.0], [True, False], 2, 1, fresh()),
        lambda: right_guesses([1.0, 2.0], [True, False], 0, 0, fresh()),
        lambda: right_guesses([1.0, 2.0], [True, False], -1, 2, fresh()),
        lambda: right_guesses([], [], 1, 1, fresh()),
        lambda: many_run_errors([1.0, math.nan], [1.0, 2.0], 0.5, 0.0),
    ],
)
def test_invalid_input_is_refused(call) -> None:
    with pytest.raises(BenchError):
        call()
