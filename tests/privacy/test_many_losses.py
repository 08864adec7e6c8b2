"""Compositions of many small losses: against exact figures, from both sides, and single losses against integrals."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from bench.core.types import Adjacency
from bench.privacy.accounting.accountants import ORDERS, pld, proven, rdp
from bench.privacy.accounting.distributions import at_least, loss_distribution
from bench.privacy.events import composing
from bench.privacy.events.conversions import exact_gaussian_epsilon, improved_epsilon, optimal_composition
from bench.privacy.events.events import (
    DPSGD,
    AllocatedSteps,
    Event,
    FixedBatches,
    Gaussian,
    Laplace,
    LNMax,
    PermuteAndFlip,
    RandomizedResponse,
)
from bench.privacy.events.losses import rounding
from bench.privacy.events.sampled_losses import loss_deviation, sampled_gaussian_pld, symmetric_gaussian_pld

DELTA = 1e-5
MU = 0.3
"""The mu of the whole: many small losses sum to nearly one Gaussian release's."""


def rate_of(steps: int, noise: float) -> float:
    """Return the sampling rate at which `steps` steps have the variance of a Gaussian release of :data:`MU`."""
    return MU / math.sqrt(steps * math.expm1(noise**-2))


MANY: dict[str, Callable[[int], Event]] = {
    "dp-sgd": lambda n: DPSGD(rate_of(n, 1.0), 1.0, n),
    "dp-sgd, replaced": lambda n: DPSGD(rate_of(n, 1.0) / 2, 1.0, n, adjacency=Adjacency.REPLACE),
    "laplace": lambda n: Laplace(math.sqrt(n) / MU, n),
    "lnmax": lambda n: LNMax(MU / math.sqrt(2 * n), n),
    "permute-and-flip": lambda n: PermuteAndFlip(MU / math.sqrt(n), n),
    "randomised response": lambda n: RandomizedResponse(MU / math.sqrt(n), 2, n),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("count", [10**6 + 7, 10**7, 10**9])
@pytest.mark.parametrize("kind", MANY)
def test_many_small_losses_cost_what_their_sum_costs(kind: str, count: int) -> None:
    event = MANY[kind](count)
    found, least = pld([event], DELTA), at_least([event], DELTA)
    assert found is not None
    assert least is not None
    # A replaced record's losses have a variance of 4 sinh instead of expm1.
    mu = MU * (1.0 if kind != "dp-sgd, replaced" else math.sqrt(math.sinh(1.0) / math.expm1(1.0)))
    truth = exact_gaussian_epsilon(mu, DELTA)
    assert truth * 0.995 <= found.epsilon <= exact_gaussian_epsilon(mu, DELTA - rounding(event.composed)) * 1.01
    assert truth * 0.97 <= least <= truth * 1.005
    assert least < found.epsilon
    assert proven([event], DELTA).epsilon <= found.epsilon


@settings(max_examples=20, deadline=None)
@given(
    total=st.floats(0.05, 3.0), count=st.integers(2, 10**8), delta=st.floats(1e-6, 1e-2), coarse=st.floats(1.0, 20.0)
)
def test_both_bounds_enclose_the_exact_figure(total: float, count: int, delta: float, coarse: float) -> None:
    step = total / math.sqrt(count)
    exact = optimal_composition(step, count, delta)
    found = loss_distribution([RandomizedResponse(step, 2, count)], coarse)
    assert found is not None
    least = found.at_least(delta)
    assert least is not None
    assert least <= exact * (1 + 1e-9) + 1e-12
    assert exact <= found.epsilon(delta) * (1 + 1e-9) + 1e-12


def test_the_bound_from_below_closes_in_as_the_grid_gets_finer() -> None:
    event = DPSGD(0.01, 1.0, 1000)
    coarse, fine = (loss_distribution([event], factor) for factor in (10.0, 0.3))
    assert coarse is not None
    assert fine is not None
    gaps = [found.epsilon(DELTA) - (found.at_least(DELTA) or 0.0) for found in (coarse, fine)]
    assert 0 < gaps[1] < gaps[0] / 10
    assert coarse.at_least(DELTA) <= fine.at_least(DELTA) <= fine.epsilon(DELTA) <= coarse.epsilon(DELTA)  # type: ignore[operator]


def test_no_bound_from_below_where_more_than_single_losses_is_rounded() -> None:
    assert at_least([AllocatedSteps(1.0, 20, 3)], DELTA) is None
    assert at_least([Gaussian(1.0)], DELTA) is None
    assert at_least([DPSGD(1e-4, 2.0, 10**8)], 1e-7) is None  # beyond the rounding of that many losses
    assert at_least([Gaussian(3.0, adjacency=Adjacency.ADD_REMOVE), DPSGD(0.01, 1.0, 100)], DELTA) is not None


@pytest.mark.parametrize("count", [4**3, 1000, 4**5 + 3])
def test_a_finer_grid_for_single_losses_is_the_same_composition(count: int) -> None:
    def make(interval: float) -> object:
        return sampled_gaussian_pld(1.0, 0.01, interval)

    interval, deviation = 1e-2, 0.013
    assert composing.halvings(count, interval, deviation) >= 3
    found = composing.many_composed(make, count, interval, deviation)
    fine = composing.self_composed(make(interval / 64), count)
    blurred = composing.self_composed(make(interval), count)
    assert found is not None
    assert fine is not None
    assert blurred is not None
    for delta in (1e-3, 1e-6):
        exact, ours, before = (one.get_epsilon_for_delta(delta) for one in (fine, found, blurred))
        assert exact <= ours < exact + 0.02 * (before - exact) + 1e-4
        assert before > 1.005 * exact


# -------------------------------------------------------------------------------------------------------- single losses


def exact_deltas(noise: float, rate: float, epsilon: float, replaced: bool) -> tuple[float, float]:
    """Return both deltas of one release, by an integral over its noise."""
    x = np.arange(-14.0, 14.0 + 1 / noise, 1e-3)
    present = (1 - rate) * stats.norm.pdf(x) + rate * stats.norm.pdf(x, 1 / noise)
    absent = (1 - rate) * stats.norm.pdf(x) + rate * stats.norm.pdf(x, -1 / noise) if replaced else stats.norm.pdf(x)
    p, q = present, absent
    return tuple(float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * 1e-3) for a, b in ((p, q), (q, p)))  # type: ignore[return-value]


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.5, 0.3), (3.0, 0.999), (0.25, 1e-3), (2.0, 1e-5)])
def test_one_release_costs_what_an_integral_says(noise: float, rate: float, replaced: bool) -> None:
    deviation = loss_deviation(noise, rate, replaced=replaced)
    interval = deviation / 20
    found = sampled_gaussian_pld(noise, rate, interval, replaced=replaced)
    for epsilon in (*(deviation * np.array([-1.31, -0.2, 0.0, 0.7, 2.03])), 0.5):
        for pmf, truth in zip(
            (found._pmf_remove, found._pmf_add), exact_deltas(noise, rate, epsilon, replaced), strict=True
        ):
            delta = float(pmf.get_delta_for_epsilon(epsilon))
            # A chord is above its curve by at most an eighth of the interval's square times the density of losses.
            assert truth - 1e-7 <= delta <= truth + interval / 20 + 1e-7
    for pmf in (found._pmf_remove, found._pmf_add):
        assert pmf._probs.sum() + pmf._infinity_mass == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.5, 0.3), (2.0, 1e-3)])
def test_a_symmetric_curve_is_that_of_removing_a_record_at_positive_epsilons(noise: float, rate: float) -> None:
    found = symmetric_gaussian_pld(noise, rate, 1e-3)
    for epsilon in (0.0, 0.1, 1.0):
        removed, _ = exact_deltas(noise, rate, epsilon, False)
        assert removed - 1e-7 <= found.get_delta_for_epsilon(epsilon) <= removed * 1.001 + 1e-7
    for epsilon in (-0.1, -1.0):
        removed, _ = exact_deltas(noise, rate, -epsilon, False)
        mirrored = 1 - math.exp(epsilon) + math.exp(epsilon) * removed
        assert found.get_delta_for_epsilon(epsilon) == pytest.approx(mirrored, abs=1e-6)


@pytest.mark.parametrize("event", [DPSGD(0.02, 0.05, 3), FixedBatches(0.5, 0.1, 2)])
def test_hardly_any_noise_costs_as_much_as_none_is_sampled(event: DPSGD | FixedBatches) -> None:
    found = pld([event], DELTA)
    assert found is not None
    runs = event.steps
    assert found.epsilon <= exact_gaussian_epsilon(math.sqrt(runs) / event.relative_noise, DELTA) * 1.001
    assert math.isfinite(found.epsilon)


def test_one_more_loss_never_costs_less_at_a_delta_near_one() -> None:
    """Composing multiplies all masses by what one loss's lack: at such a delta that outweighs one loss."""
    scale, count = 0.054592363303731205, 135_138
    fewer, more = (proven([LNMax(scale, count + extra)], 1 - 1e-9).epsilon for extra in (0, 1))
    assert fewer <= more


@pytest.mark.slow
def test_so_many_losses_that_a_power_overflows_still_have_a_cost() -> None:
    assert math.isfinite(proven([Laplace(1e6, 10**12)], 1e-2).epsilon)


# ------------------------------------------------------------------------------------------------- orders above 1,024


@settings(max_examples=30, deadline=None)
@given(total=st.floats(1e-4, 0.02), count=st.integers(10, 10**6), delta=st.floats(1e-12, 1e-4))
@example(total=1e-4, count=25, delta=6.103515625e-05)  # 1.01e-6 between two orders, where the best real order gives 0
def test_high_orders_bring_renyi_accounting_near_the_truth_for_tiny_epsilons(
    total: float, count: int, delta: float
) -> None:
    step = total / math.sqrt(count)
    event = RandomizedResponse(step, 2, count)
    found = rdp([event], delta)
    assert found is not None
    low, _ = improved_epsilon(ORDERS, event.rdp(ORDERS), delta)
    assert optimal_composition(step, count, delta) - 1e-9 <= found.epsilon <= low
    # All real orders of Gaussian noise of the same variance.
    gaussian = rdp([Gaussian(1 / total)], delta)
    assert gaussian is not None
    assert found.epsilon <= gaussian.epsilon * 1.1 + 2e-6


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_high_orders_of_sampled_noise(adjacency: Adjacency) -> None:
    event = DPSGD(0.1, 1000.0, 100, adjacency=adjacency)
    found, least = rdp([event], 1e-9), at_least([event], 1e-9)
    assert found is not None
    assert found.order is not None
    assert found.order > 1024
    assert least is not None
    low, _ = improved_epsilon(ORDERS, event.rdp(ORDERS), 1e-9)
    assert least < found.epsilon < 0.9 * low
