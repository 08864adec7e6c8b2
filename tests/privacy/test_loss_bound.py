"""Bounds on epsilon from sampled losses: coverage, power, choice of the tilt, and steps on samples along one record."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from bench.core.errors import BenchError
from bench.privacy.auditing.loss_bound import best_tilt, refuted_by_losses
from bench.privacy.auditing.sampled_loss import sampled_shift, shift_log_moment
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.privacy.events.losses import gaussian_pld
from bench.privacy.events.sampled_losses import sampled_gaussian_pld

DELTA = 1e-5
STEPS = [(0.01, 1.0, 200), (0.125, 1.2, 8), (1.0, 4.0, 30)]


def gaussian_runs(mu: float, tilt: float, runs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    loss = np.random.default_rng(seed).normal(mu**2 / 2 + tilt * mu**2, mu, runs)
    return loss, -tilt * loss + tilt * (tilt + 1) * mu**2 / 2


def gaussian_tilt(mu: float) -> float:
    return best_tilt(lambda tilt: tilt * (tilt + 1) * mu**2 / 2, DELTA)


def sampled_runs(rate: float, noise: float, steps: int, present: bool, runs: int, tilt: float) -> np.ndarray:
    generator = np.random.default_rng(4)
    found = [sampled_shift(rate, 1 / noise, generator, tilt, present)[1:] for _ in range(runs * steps)]
    return np.array(found).reshape(runs, steps, 2).sum(axis=1).T


def sampled_epsilon(rate: float, noise: float, steps: int, present: bool) -> float:
    one = sampled_gaussian_pld(noise, rate, 1e-4) if rate < 1 else gaussian_pld(1 / noise, 1e-4)
    pld = one.self_compose(steps)
    pmf = pld._pmf_remove if present or pld._symmetric else pld._pmf_add
    return float(pmf.get_epsilon_for_delta(DELTA))


# --------------------------------------------------------------------------------------------------------------- bound


@pytest.mark.few(1)
@pytest.mark.parametrize("mu", [0.2, 2.0])
def test_bound_on_gaussian_losses_covers_and_is_near(mu: float) -> None:
    truth, tilt = exact_gaussian_epsilon(mu, DELTA), gaussian_tilt(mu)
    found = np.array([refuted_by_losses(*gaussian_runs(mu, tilt, 100, seed), DELTA, 0.95) for seed in range(400)])
    assert (found > truth).mean() <= 0.05
    assert found.mean() > 0.93 * truth


def test_bound_covers_where_runs_are_looked_at_one_by_one_and_seldom_at_low_confidence() -> None:
    truth, above = exact_gaussian_epsilon(1.0, 0.01), 0
    for seed in range(60):
        losses, weights = gaussian_runs(1.0, 1.0, 20, seed)
        found = [refuted_by_losses(losses[:n], weights[:n], 0.01, 0.5) for n in range(1, 21)]
        assert (np.diff(found) > -1e-9).all()
        above += max(found) > truth
    assert 1 <= above <= 30


def test_half_the_noise_is_refuted_at_the_epsilon_of_the_whole() -> None:
    losses, weights = gaussian_runs(2.0, gaussian_tilt(2.0), 30, 0)
    assert refuted_by_losses(losses, weights, DELTA) > 2 * exact_gaussian_epsilon(1.0, DELTA)


def test_without_loss_nothing_is_refuted() -> None:
    assert refuted_by_losses([], [], DELTA) == 0
    for runs in (1, 1000):
        assert refuted_by_losses(np.zeros(runs), np.zeros(runs), DELTA) == 0
    assert refuted_by_losses(-np.ones(1000), np.zeros(1000), DELTA) == 0


def test_one_run_with_a_huge_loss_gives_nearly_the_loss() -> None:
    assert 999.99 < refuted_by_losses([1000.0], [0.0], DELTA) < 1000
    assert refuted_by_losses([math.inf], [0.0], DELTA) == math.inf
    # It occurs in a share delta of the runs.
    assert refuted_by_losses([math.inf] * 10, [math.log(DELTA)] * 10, DELTA) == 0
    # The weight overflows.
    assert 999.99 < refuted_by_losses([1000.0], [2000.0], DELTA) <= 1000


@pytest.mark.parametrize(
    ("losses", "weights", "delta", "message"),
    [
        ([1.0, 2.0], [0.0], DELTA, "one entry per run"),
        ([math.nan], [0.0], DELTA, "find the cause of the NaN"),
        ([1.0], [0.0], 0.0, "delta"),
    ],
)
def test_bad_arguments_are_refused(losses: list[float], weights: list[float], delta: float, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        refuted_by_losses(losses, weights, delta)


# ---------------------------------------------------------------------------------------------------------------- tilt


@pytest.mark.parametrize("mu", [0.2, 1.0, 20.0])
def test_tilted_gaussian_losses_have_epsilon_as_their_mean(mu: float) -> None:
    assert gaussian_tilt(mu) == pytest.approx(exact_gaussian_epsilon(mu, DELTA) / mu**2 - 0.5, rel=0.02)


def test_tilt_without_losses_and_of_losses_that_never_suffice() -> None:
    assert best_tilt(lambda tilt: 0.0, DELTA) == 0
    # One randomised response: the largest loss alone has more mass than delta.
    keep = special.expit(1.0)
    tilt = best_tilt(lambda tilt: float(np.logaddexp(math.log(keep) + tilt, math.log(1 - keep) - tilt)), DELTA)
    assert tilt > 10


# ------------------------------------------------------------------------------------------------- one record's samples


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize(("rate", "distance"), [(0.01, 1.0), (0.3, 2.5), (1.0, 0.5), (0.2, 1e-4), (0.2, 0.0)])
def test_a_shift_has_the_law_and_loss_of_a_mixture(rate: float, distance: float, present: bool) -> None:
    generator = np.random.default_rng(5)
    drawn = np.array([sampled_shift(rate, distance, generator, 0.0, present) for _ in range(5000)])
    along, loss, log_weight = drawn.T
    centre = distance * present

    def below(x: np.ndarray) -> np.ndarray:
        return (1 - rate) * stats.norm.cdf(x) + rate * stats.norm.cdf(x, centre)

    assert stats.kstest(along, below).pvalue > 1e-6
    densities = [
        special.logsumexp([stats.norm.logpdf(along), stats.norm.logpdf(along, mean)], axis=0, b=[[1 - rate], [rate]])
        for mean in (distance * present, distance * (not present))
    ]
    np.testing.assert_allclose(loss, densities[0] - densities[1], atol=1e-9)
    assert not log_weight.any()


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize(("rate", "noise", "steps"), STEPS)
def test_tilted_steps_give_the_exact_delta_and_nearly_epsilon(
    rate: float, noise: float, steps: int, present: bool
) -> None:
    truth = sampled_epsilon(rate, noise, steps, present)
    tilt = best_tilt(lambda tilt: shift_log_moment(rate, [1 / noise] * steps, tilt, present), DELTA)
    loss, log_weight = sampled_runs(rate, noise, steps, present, 300, tilt)
    shown = np.exp(log_weight) * np.maximum(-np.expm1(truth - loss), 0)
    error = shown.std() / math.sqrt(len(shown))
    assert error < 0.25 * DELTA
    assert abs(shown.mean() - DELTA) < 5 * error + 0.01 * DELTA
    assert 0.9 * truth < refuted_by_losses(loss, log_weight, DELTA) < truth


def test_a_tilted_shift_of_a_record_without_contribution_has_no_loss() -> None:
    generator = np.random.default_rng(7)
    drawn = np.array([sampled_shift(0.2, 0.0, generator, 5.0, True) for _ in range(2000)])
    assert stats.kstest(drawn[:, 0], "norm").pvalue > 1e-6
    assert not drawn[:, 1:].any()


def test_moments_of_steps_are_those_of_their_draws() -> None:
    distances = [0.5, 0.5, 1.0]
    generator = np.random.default_rng(6)
    draws = [[sampled_shift(0.2, distance, generator, 2.0, True)[1:] for distance in distances] for _ in range(200)]
    loss, log_weight = np.array(draws).sum(axis=1).T
    moments = log_weight + 2.0 * loss
    assert moments.std() < 0.05
    assert moments.mean() == pytest.approx(shift_log_moment(0.2, distances, 2.0, True), abs=0.01)
    # A record displaces none, or an opposite one, and is twice as far then.
    assert shift_log_moment(0.2, [0.5, 0.5], 2.0, True, [0.0, 0.0]) == shift_log_moment(0.2, [0.5, 0.5], 2.0, True)
    assert shift_log_moment(0.2, [0.5], 1.0, True, [-0.5]) > shift_log_moment(0.2, [0.5], 1.0, True)
