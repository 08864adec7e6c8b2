"""Risk: bounds on attackers by the proven curve, against closed forms, another Fourier transform and a real attack."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bench.core.errors import BenchError
from bench.core.types import PrivacyUnit
from bench.privacy.accounting.accountants import proven, rdp
from bench.privacy.accounting.risk import NAMES, PRIORS, RATES, UNBOUNDED, Risk, reconstruction, risk
from bench.privacy.events.base_event import Event
from bench.privacy.events.events import DPSGD, Bypass, Gaussian, Laplace, LNMax, RandomizedResponse, RepeatAndSelect

GAUSSIAN = [(4.0, 0.0995, (0.15114, 0.01893, 0.00225)), (1.0, 0.3829, (0.38914, 0.09236, 0.01830))]


@pytest.mark.parametrize(("noise", "advantage", "named"), GAUSSIAN)
def test_gaussian_noise_has_its_exact_curve(noise: float, advantage: float, named: tuple[float, ...]) -> None:
    found = risk([Gaussian(noise)])
    assert found.advantage == pytest.approx(advantage, abs=6e-5)
    assert found.reconstruction == pytest.approx(named, abs=6e-6)
    assert found.tpr == found.reconstruction[1:], "a rate of 1% is a prior of 1 in 100"


def by_fourier(rate: float, noise: float, steps: int) -> tuple[list[float], list[float]]:
    """Return g at :data:`PRIORS` in both directions, from the distribution of the sampled loss on a separate grid."""
    width, size = 2e-5, 2**20
    draws = np.linspace(-11 * noise, 11 * noise, 1_000_001)
    weight = stats.norm.pdf(draws, 0, noise)
    place = np.log1p(rate * np.expm1((2 * draws - 1) / (2 * noise**2))) / width
    low = np.floor(place).astype(int)
    law = np.zeros(size)
    for cell, share in ((low, low + 1 - place), (low + 1, place - low)):  # the mean stays exact
        np.add.at(law, cell % size, share * weight / weight.sum())
    law = np.fft.irfft(np.fft.rfft(law) ** steps, size).clip(0)
    loss = np.where(np.arange(size) >= size // 2, np.arange(size) - size, np.arange(size)) * width
    order = np.argsort(-loss)
    absent = law[order]
    present = absent * np.exp(np.minimum(loss[order], 9))
    below, above = np.cumsum(absent), np.cumsum(present)
    removed = [float(np.interp(x, below, above)) for x in PRIORS]
    added = [1 - float(np.interp(1 - x, above, below)) for x in PRIORS]
    return removed, added


@pytest.mark.parametrize(
    ("event", "advantage"), [(DPSGD(512 / 60_000, 1.23, 4680), 0.2208), (DPSGD(0.01, 4.0, 1000), 0.0320)]
)
def test_dp_sgd_has_the_worse_curve_of_both_directions(event: DPSGD, advantage: float) -> None:
    removed, added = by_fourier(event.sampling_rate, event.noise_multiplier, event.steps)
    found = risk([event])
    assert found.advantage == pytest.approx(advantage, abs=6e-5)
    assert found.reconstruction == pytest.approx([max(pair) for pair in zip(removed, added, strict=True)], rel=2e-4)
    coarse = risk([event], coarseness=5.0)
    for value, looser in zip(found.as_dict().values(), coarse.as_dict().values(), strict=True):
        # Where the grid is coarse, single losses are composed on a finer one.
        assert value * (1 - 2e-4) <= looser <= value * 1.005


def test_randomised_response_is_its_epsilon_alone() -> None:
    epsilon = 1.0
    found = risk([RandomizedResponse(epsilon, 2, unit=PrivacyUnit.LABEL)])
    # With two answers, the curve's corner is the set of one of them.
    kept = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert found.advantage == pytest.approx(2 * kept - 1, rel=1e-3)
    assert found.reconstruction == pytest.approx([math.exp(epsilon) * prior for prior in PRIORS], rel=1e-3)


def test_a_loss_without_a_distribution_is_bounded_by_its_epsilons() -> None:
    tuned = RepeatAndSelect([(Gaussian(4.0),)], 1.0, 10.0)
    found = risk([tuned])
    by_renyi = rdp([tuned], 1e-5)
    assert by_renyi is not None
    epsilon = by_renyi.epsilon
    for prior, named in zip(PRIORS, found.reconstruction, strict=True):
        assert prior < named <= math.exp(epsilon) * prior + 1e-5
    assert found.advantage < 1


def test_one_epsilon_and_delta_alone_bound_as_stated() -> None:
    from bench.privacy.accounting import risk as module

    alone = module.least_of_lines(np.exp([1.0, -1.0]), np.array([1e-5, 1 - (1 - 1e-5) * math.exp(-1)]))
    assert alone(np.array(PRIORS)) == pytest.approx([0.27184, 0.02719, 0.00273], abs=6e-6)


def test_seven_records_of_one_person_are_the_gaussian_of_seven_times_the_distance() -> None:
    assert risk([Gaussian(7.0)], group=7).as_dict() == pytest.approx(risk([Gaussian(1.0)]).as_dict())
    event = DPSGD(0.01, 4.0, 100)
    one, several = risk([event]), risk([event], group=7)
    assert all(a < b for a, b in zip(one.as_dict().values(), several.as_dict().values(), strict=True))
    assert several.advantage <= 7 * one.advantage + 1e-6, "total variation is a distance"


def test_a_bypass_is_unbounded_and_nothing_taken_is_a_guess() -> None:
    assert risk([Gaussian(4.0), Bypass("its teacher is released")]) == UNBOUNDED
    assert risk([]) == Risk(0.0, RATES, PRIORS)
    assert Risk.from_values(UNBOUNDED.as_dict().values()) == UNBOUNDED
    assert tuple(UNBOUNDED.as_dict()) == NAMES


@pytest.mark.parametrize("prior", [0.0, 1.0, -0.1, math.nan])
def test_a_prior_is_a_probability(prior: float) -> None:
    with pytest.raises(BenchError, match="a prior is a probability between 0 and 1"):
        reconstruction([Gaussian(1.0)], prior)


def test_a_group_has_records() -> None:
    with pytest.raises(BenchError, match="at least one record, not 0"):
        risk([Gaussian(1.0)], group=0)


EVENTS = st.one_of(
    st.builds(Gaussian, st.floats(0.3, 50), st.integers(1, 20)),
    st.builds(Laplace, st.floats(0.3, 50), st.integers(1, 5)),
    st.builds(lambda epsilon, classes: RandomizedResponse(epsilon, classes), st.floats(0.1, 3), st.integers(2, 100)),
)


@pytest.mark.slow
@settings(max_examples=15)  # each setting composes up to three curves
@given(st.lists(EVENTS, min_size=1, max_size=3))
def test_no_bound_is_below_a_guess_nor_above_what_epsilon_and_delta_allow(events: list[Event]) -> None:
    events = [replace(event, unit=PrivacyUnit.RECORD) for event in events]  # type: ignore[type-var]
    found, epsilon = risk(events, coarseness=5.0), proven(events, 1e-5).epsilon
    for prior, named in zip(PRIORS, found.reconstruction, strict=True):
        assert prior <= named <= min(1.0, math.exp(epsilon) * prior + 1e-5) * 1.01 + 1e-9
    assert 0 <= found.advantage <= math.tanh(epsilon / 2) + 2e-5 + 0.002


@pytest.mark.parametrize("candidates", [10, 100, 1000])
def test_the_best_attack_on_a_gaussian_release_stays_below_the_bound(candidates: int) -> None:
    """Orthogonal candidates, each at distance mu from the absent record: the attacker names the largest coordinate."""
    mu, draws = 1.0, np.random.default_rng(0)
    seen = draws.standard_normal((20_000, candidates))
    seen[:, 0] += mu
    right = int((seen.argmax(1) == 0).sum())
    at_least = stats.binomtest(right, len(seen)).proportion_ci(0.999).low
    at_most = reconstruction([Gaussian(1 / mu)], 1 / candidates)
    assert at_least <= at_most
    assert right / len(seen) >= 0.8 * at_most, "the bound is not far from what an attack reaches"


def test_a_loss_far_above_what_a_float_can_exponentiate_is_certain_to_be_seen() -> None:
    """Arithmetic warnings are errors in tests; infinity times 0 raised one."""
    found = risk([LNMax(queries=1000, gamma=10.0)], coarseness=5.0)
    assert found == UNBOUNDED
