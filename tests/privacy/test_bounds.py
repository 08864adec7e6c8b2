"""Bounds from counts, against values computed elsewhere, properties, and simulated audits of known mechanisms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bench.core.errors import BenchError
from bench.privacy.auditing import bounds, one_run

MANY_RUNS = [
    (100, 0, 0, 0.03622, 0.03622, 3.28),
    (500, 0, 0, 0.00735, 0.00735, 4.91),
    (500, 25, 250, 0.07293, 0.54471, 1.83),
    (1000, 0, 0, 0.00368, 0.00368, 5.60),
    (1000, 0, 500, 0.00368, 0.53145, 4.85),
    (5000, 250, 2500, 0.05641, 0.51396, 2.15),
]


@pytest.mark.parametrize(("runs", "fp", "fn", "fpr", "fnr", "epsilon"), MANY_RUNS)
def test_many_runs(runs: int, fp: int, fn: int, fpr: float, fnr: float, epsilon: float) -> None:
    found = bounds.many_run_epsilon(fp, runs, fn, runs, 1e-5)
    assert found.fpr_upper == pytest.approx(fpr, abs=5e-6)
    assert found.fnr_upper == pytest.approx(fnr, abs=5e-6)
    assert found.epsilon == pytest.approx(epsilon, abs=5e-3)
    assert found.cap == bounds.many_run_epsilon(0, runs, 0, runs, 1e-5).epsilon >= found.epsilon


ONE_RUN = [
    (1000, 100, 100, 3.493, 3.465),
    (1000, 100, 90, 1.631, 1.626),
    (1000, 100, 75, 0.702, 0.699),
    (1000, 1000, 600, 0.297, 0.297),
    (500, 50, 50, 2.785, 2.771),
    (5000, 500, 500, 5.114, 4.978),
    (5000, 500, 350, 0.683, 0.681),
]


@pytest.mark.parametrize(("canaries", "guesses", "correct", "pure", "approximate"), ONE_RUN)
def test_one_run(canaries: int, guesses: int, correct: int, pure: float, approximate: float) -> None:
    # The printed digits may be truncated or rounded.
    assert one_run.one_run_epsilon(canaries, guesses, correct, 0.0) == pytest.approx(pure, abs=6e-4)
    found = one_run.one_run_epsilon(canaries, guesses, correct, 1e-5)
    assert found == pytest.approx(approximate, abs=6e-4)
    assert one_run.p_value(canaries, guesses, correct, found, 1e-5) < 0.05
    assert one_run.p_value(canaries, guesses, correct, found + 1e-5, 1e-5) >= 0.05


def test_the_one_run_p_value_is_the_papers_formula() -> None:
    canaries, guesses, correct, epsilon, delta = 300, 60, 45, 0.4, 1e-3
    coins = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    alpha = max(sum(coins.pmf(correct - j) for j in range(1, i + 1)) / i for i in range(1, correct + 1))
    expected = coins.sf(correct - 1) + 2 * canaries * delta * alpha
    assert one_run.p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(expected, rel=1e-10)


def test_guesses_needed_is_the_fewest() -> None:
    for epsilon in (0.5, 2.0, 3.0):
        for delta in (0.0, 1e-5, 1e-4):
            needed = one_run.guesses_needed(epsilon, 1000, delta)
            assert needed is not None
            enough = [one_run.one_run_cap(1000, r, delta) >= epsilon for r in (needed - 1, needed)]
            assert enough == [False, True]
    assert one_run.guesses_needed(8.0, 100, 0.0) is None
    assert one_run.guesses_needed(8.0, 10_000, 0.5) is None


def test_canaries_that_stand_several_times_bound_the_epsilon_of_one() -> None:
    assert one_run.one_run_epsilon(1000, 100, 100, 0.0, group=5) == pytest.approx(3.4930 / 5, abs=1e-4)
    # With a delta, five copies of the record cost more than a fifth of the bound says.
    found = one_run.one_run_epsilon(1000, 100, 100, 1e-5, group=5)
    assert found < one_run.one_run_epsilon(1000, 100, 100, 1e-5) / 5
    delta = 1e-5 * math.expm1(5 * found) / math.expm1(found)
    assert one_run.p_value(1000, 100, 100, 5 * found, delta) == pytest.approx(0.05, abs=1e-4)
    assert one_run.guesses_needed(found - 1e-6, 1000, 1e-5, group=5) == 100


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 400), st.data(), st.floats(0, 1e-2), st.floats(0, 6), st.floats(0.5, 0.999), st.integers(1, 4)
)  # fmt: skip
def test_one_run_properties(
    guesses: int, data: st.DataObject, delta: float, epsilon: float, confidence: float, group: int
) -> None:
    correct = data.draw(st.integers(0, guesses))
    canaries = data.draw(st.integers(guesses, 1000))
    p = one_run.p_value(canaries, guesses, correct, epsilon, delta)
    assert 0 <= p <= 1
    found = one_run.one_run_epsilon(canaries, guesses, correct, delta, confidence, group)
    assert 0 <= found <= one_run.one_run_cap(canaries, guesses, delta, confidence, group) + 1e-6
    assert found <= one_run.one_run_epsilon(canaries, guesses, correct, 0.0, confidence, group) + 1e-6
    assert one_run.one_run_epsilon(canaries, guesses, correct, min(2 * delta, 0.5), confidence, group) <= found + 1e-6
    assert one_run.one_run_epsilon(canaries, guesses, correct, delta, (1 + confidence) / 2, group) <= found + 1e-6
    if correct:
        assert one_run.one_run_epsilon(canaries, guesses, correct - 1, delta, confidence, group) <= found + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.data(), st.floats(0, 0.1), st.floats(0.5, 0.999))
def test_many_run_properties(runs: int, data: st.DataObject, delta: float, confidence: float) -> None:
    fp, fn = data.draw(st.integers(0, runs)), data.draw(st.integers(0, runs))
    found = bounds.many_run_epsilon(fp, runs, fn, runs, delta, confidence)
    assert 0 <= found.epsilon <= found.cap
    assert bounds.many_run_epsilon(fp, runs, fn, runs, delta / 2, confidence).epsilon >= found.epsilon
    assert bounds.many_run_epsilon(fp, runs, fn, runs, delta, (1 + confidence) / 2).epsilon <= found.epsilon
    if fp and fp + fn <= runs:
        assert bounds.many_run_epsilon(fp - 1, runs, fn, runs, delta, confidence).epsilon >= found.epsilon
    low, high = bounds.clopper_pearson(fp, runs, confidence)
    assert low <= fp / runs <= high


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_an_audit_of_randomised_response_is_right_in_95_of_100_and_near(epsilon: float) -> None:
    generator, canaries, audits = np.random.default_rng(7), 2000, 400
    correct = generator.binomial(canaries, 1 / (1 + math.exp(-epsilon)), audits)
    found = np.array([one_run.one_run_epsilon(canaries, canaries, int(v), 0.0) for v in correct])
    # 5% of 400 plus three standard errors of a binomial.
    assert (found > epsilon).sum() <= 20 + 13
    assert (found > epsilon).sum() >= 5, "the bound would be needlessly loose"
    assert np.median(found) > 0.8 * epsilon


def test_an_audit_of_many_runs_is_right_in_95_of_100_and_near() -> None:
    generator, epsilon, runs, audits = np.random.default_rng(3), 1.0, 2000, 400
    wrong = 1 / (1 + math.exp(epsilon))
    errors = generator.binomial(runs, wrong, (audits, 2))
    found = np.array([bounds.many_run_epsilon(int(a), runs, int(b), runs, 0.0).epsilon for a, b in errors])
    assert (found > epsilon).mean() <= 0.05
    assert np.median(found) > 0.8 * epsilon


def test_clopper_pearson_agrees_with_scipy() -> None:
    for hits, trials in ((10, 100), (300, 1000), (0, 7), (7, 7)):
        exact = stats.binomtest(hits, trials).proportion_ci(0.95, "exact")
        assert bounds.clopper_pearson(hits, trials) == pytest.approx((exact.low, exact.high), abs=1e-9)


@pytest.mark.parametrize(("epsilon", "tpr"), [(1, 0.0027), (2, 0.0074), (4, 0.0546), (8, 0.9997), (10, 0.99995)])
def test_the_rates_that_epsilon_allows(epsilon: float, tpr: float) -> None:
    assert float(bounds.allowed_tpr(0.001, epsilon, 0.0)) == pytest.approx(tpr, abs=5e-5)


def test_the_allowed_rates_by_hand() -> None:
    assert bounds.allowed_tpr([0.001, 0.9], 1.0, 0.0) == pytest.approx([0.001 * math.e, 1 - 0.1 / math.e])
    assert bounds.allowed_tpr([0.0], 1.0, 1e-5)[0] == pytest.approx(1e-5)
    assert bounds.allowed_tpr([0.3], 0.0, 0.0)[0] == pytest.approx(0.3)
    for epsilon in (600.0, 720.0, 800.0):
        assert bounds.allowed_tpr([0.0, 0.5, 1.0], epsilon, 0.1).tolist() == [pytest.approx(0.1), 1.0, 1.0]


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1), st.floats(0, 20), st.floats(0, 0.5))
def test_allowed_rates_keep_their_order(fpr: float, epsilon: float, delta: float) -> None:
    allowed = float(bounds.allowed_tpr(fpr, epsilon, delta))
    assert fpr - 1e-12 <= allowed <= 1
    assert float(bounds.allowed_tpr(fpr, epsilon + 0.1, delta)) >= allowed - 1e-12


@pytest.mark.parametrize(
    "call",
    [
        lambda: bounds.clopper_pearson(3, 2),
        lambda: bounds.clopper_pearson(0, 0),
        lambda: bounds.clopper_pearson(1, 2, 1.0),
        lambda: bounds.clopper_pearson(0.5, 2),  # type: ignore[arg-type]
        lambda: bounds.many_run_epsilon(5, 4, 0, 4, 0.0),
        lambda: bounds.many_run_epsilon(0, 4, 0, 4, 1.0),
        lambda: one_run.one_run_epsilon(100, 50, 51, 0.0),
        lambda: one_run.one_run_epsilon(100, 101, 51, 0.0),
        lambda: one_run.one_run_epsilon(100, 0, 0, 0.0),
        lambda: one_run.one_run_epsilon(100, 50, 50, -1e-9),
        lambda: one_run.one_run_epsilon(100, 50, 50, 0.0, group=0),
        lambda: one_run.guesses_needed(0.0, 100, 0.0),
        lambda: bounds.allowed_tpr(1.5, 1.0, 0.0),
    ],
)
def test_invalid_input_is_refused(call) -> None:
    with pytest.raises(BenchError):
        call()
