"""Proven epsilons against what an attacker can do, over the whole range of rates, noise, counts and delta."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import fft, special

from bench.core.types import Adjacency
from bench.privacy.accounting.accountants import account, proven, rdp, replace_one
from bench.privacy.accounting.distributions import loss_distribution
from bench.privacy.events import composing, sampled_losses
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.privacy.events.events import DPSGD, Event, Laplace, LNMax, RandomizedResponse, SampledGNMax


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log10(low), math.log10(high)).map(lambda power: float(10**power))


rates = st.one_of(powers(1e-8, 1.0), powers(1e-12, 0.1).map(lambda rest: 1 - rest), st.just(1.0))
noises, counts = powers(0.3, 1e3), powers(1, 1e7).map(int)
deltas = st.one_of(powers(1e-200, 1e-4), powers(1e-12, 1e-4))


def shown_by_the_sum(rate: float, noise: float, count: int, delta: float, replaced: bool) -> float:
    """Return an epsilon that thresholds on the sum of all answers refute. The sum is ``K + noise sqrt(count) z`` with
    binomial K for one set; the other has ``-K`` or 0 instead of K.
    """
    deviation = math.sqrt(count * rate * (1 - rate))
    low = max(0, math.floor(count * rate - 40 * deviation - 40))
    high = min(count, math.ceil(count * rate + 40 * deviation + 1200))  # all but a mass below every delta
    if high - low > 4000:
        return 0.0
    k = np.arange(low, high + 1.0)
    log_mass = special.gammaln(count + 1) - special.gammaln(k + 1) - special.gammaln(count - k + 1)
    log_mass += special.xlogy(k, rate) + special.xlog1py(count - k, -rate)
    scale = noise * math.sqrt(count)
    cuts = np.concatenate([np.linspace(-45 * scale, 45 * scale + high, 400), np.linspace(low, high, 100)])

    def log_above(centre: np.ndarray) -> np.ndarray:
        found = special.logsumexp(log_mass[:, None] + special.log_ndtr((centre[:, None] - cuts) / scale), axis=0)
        return np.asarray(found)

    one, other = log_above(k), log_above(-k if replaced else 0 * k)
    seen = one > math.log(delta)
    gain = one[seen] + np.log(-np.expm1(math.log(delta) - one[seen]))
    return float(np.max(gain - np.logaddexp(other[seen], -600), initial=0.0))


def check(rate: float, noise: float, count: int, delta: float) -> None:
    event = DPSGD(rate, noise, count)
    own, replaced = proven([event], delta).epsilon, replace_one([event], delta).epsilon
    assert own <= replaced
    # The accuracy of the binomial's log masses is that of gammaln at the count.
    slack = 1 - 1e-6
    assert own >= shown_by_the_sum(rate, noise, count, delta, replaced=False) * slack
    assert replaced >= shown_by_the_sum(rate, noise, count, delta, replaced=True) * slack
    if rate == 1:
        assert replaced >= exact_gaussian_epsilon(2 * math.sqrt(count) / noise, delta) * (1 - 1e-9)
    if count * rate * (1 - rate) > 1e4:  # The sum is nearly normal.
        spread = math.sqrt(count * (noise**2 + rate * (1 - rate)))
        if delta > 1e-8:
            assert replaced >= exact_gaussian_epsilon(2 * rate * count / spread, delta) * 0.99


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(rate=rates, noise=noises, count=counts, delta=deltas)
@example(rate=1e-7, noise=5.0, count=10**7, delta=1e-7)  # A sum of logarithms gave 0.
@example(rate=0.999, noise=20.0, count=1, delta=1e-200)  # For orders 512 and 1,024 the sum ended before its peak.
@example(rate=1e-8, noise=1e3, count=10**7, delta=1e-10)
def test_replacing_one_costs_no_less_than_removing_it_nor_than_the_sum_shows(
    rate: float, noise: float, count: int, delta: float
) -> None:
    check(rate, noise, count, delta)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(rate=rates, noise=noises, count=counts, delta=deltas)
def test_the_same_of_many_more(rate: float, noise: float, count: int, delta: float) -> None:
    check(rate, noise, count, delta)


@settings(max_examples=15, deadline=None)
@given(rate=rates, sigma=noises, queries=counts, delta=deltas)
def test_replacing_a_voting_record_costs_no_less_than_removing_it(
    rate: float, sigma: float, queries: int, delta: float
) -> None:
    events = [SampledGNMax(rate, sigma, queries)]
    assert proven(events, delta).epsilon <= replace_one(events, delta).epsilon


@settings(max_examples=40, deadline=None)
@given(rate=rates.filter(lambda rate: rate < 1), noise=noises, order=st.floats(1.05, 1024))
@example(rate=0.999, noise=20.0, order=1024.0)
@example(rate=1e-8, noise=5.0, order=2.0)
def test_renyi_divergences_lie_between_their_limits(rate: float, noise: float, order: float) -> None:
    """It is ``rate^2 (e^(1 / noise^2) - 1)`` at order 2, and grows with the order and for a replaced record."""
    own = sampled_losses.sampled_gaussian_rdp(noise, rate, [2.0, order])
    replaced = sampled_losses.sampled_gaussian_rdp(noise, rate, [2.0, order], replaced=True)
    assert own[0] == pytest.approx(math.log1p(rate**2 * math.expm1(noise**-2)), rel=1e-9)
    assert (own <= replaced * (1 + 1e-9)).all()
    assert (replaced <= np.array([2.0, order]) * 2 / noise**2 * (1 + 1e-9)).all()
    if rate**2 * math.expm1(noise**-2) < 1e-6 and order**2 / noise**2 < 1e-3:  # Quadratic in the losses.
        assert own[1] == pytest.approx(own[0] * order / 2, rel=0.01)
        assert replaced[1] == pytest.approx(4 * own[1], rel=0.01)
    rising = own[::-1] if order < 2 else own
    assert rising[0] <= rising[1] * (1 + 1e-9)


@pytest.mark.parametrize("order", [512.0, 1024.0])
def test_a_large_rate_at_large_orders_is_summed_to_its_peak(order: float) -> None:
    """Nearly every sample contains the record, so the divergence is nearly ``2 order / noise^2``."""
    found = sampled_losses.sampled_gaussian_rdp(20.0, 0.999, [order], replaced=True)[0]
    (whole,) = sampled_losses.sampled_gaussian_rdp(20.0, 1 - 1e-15, [order], replaced=True)
    assert whole == pytest.approx(2 * order / 400, rel=1e-6)
    x = np.linspace(-20, 2 * order / 20 + 40, 2_000_001)
    first, other = (np.logaddexp(math.log(0.001), math.log(0.999) + shift * x / 20 - 1 / 800) for shift in (1.0, -1.0))
    log_moment = special.logsumexp(order * first - (order - 1) * other - x**2 / 2)
    log_moment += math.log((x[1] - x[0]) / math.sqrt(2 * math.pi))
    assert found == pytest.approx(log_moment / (order - 1), rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(epsilon=powers(1e-9, 1e-3), count=counts, delta=powers(1e-12, 1e-4))
@pytest.mark.parametrize("classes", [2, 10])
def test_small_pure_epsilons_cost_no_less_than_a_vote_count_shows(
    epsilon: float, count: int, delta: float, classes: int
) -> None:
    """The number of true answers of randomised response is nearly normal: mu is its shift divided by its deviation."""
    keep = 1 / (1 + (classes - 1) * math.exp(-epsilon))
    other = keep * math.exp(-epsilon)
    mu = math.sqrt(count) * (keep - other) / math.sqrt(keep * (1 - keep))
    if count > 10**4:
        events: list[Event] = [RandomizedResponse(epsilon, classes, count)]
        if classes == 2:
            events += [Laplace(1 / epsilon, count), Laplace(1 / epsilon, count, grid_steps=7)]
        for event in events:
            found = rdp([event], delta)
            assert found is not None
            assert found.epsilon >= 0.99 * exact_gaussian_epsilon(mu, delta)


SLOW: list[Event] = [DPSGD(0.5, 200.0, 10**6), LNMax(0.01, 10**5), RandomizedResponse(0.001, 10, 10**6)]


@pytest.mark.parametrize(
    "event",
    [DPSGD(1e-4, 0.7, 10**7, adjacency=Adjacency.REPLACE), *(pytest.param(e, marks=pytest.mark.slow) for e in SLOW)],
    ids=lambda event: event.kind,
)
def test_the_error_of_a_composed_distribution_is_within_what_is_added(
    event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same composition with transforms in extended precision."""
    if np.finfo(np.longdouble).eps > 1e-18:
        pytest.skip("this machine has no floats longer than double")
    from dp_accounting.pld import common

    found = loss_distribution([event])
    assert found is not None

    def exact(given: np.ndarray, times: int, tail: float = 0.0) -> tuple[int, np.ndarray]:
        low, high = common.compute_self_convolve_bounds(given, times, tail)
        size = fft.next_fast_len(max(high - low + 1, len(given)))
        with np.errstate(divide="ignore"):
            power = np.exp(times * np.log(fft.fft(np.asarray(given, dtype=np.longdouble), size)))
        return low, np.roll(np.real(fft.ifft(power)), -low)[: high - low + 1].astype(float)

    monkeypatch.setattr(common, "self_convolve", exact)
    longer = SimpleNamespace(
        next_fast_len=fft.next_fast_len,
        rfft=lambda masses: fft.rfft(np.asarray(masses, dtype=np.longdouble)),
        irfft=lambda spectrum, size: fft.irfft(spectrum, size).astype(float),
    )
    monkeypatch.setattr(composing, "fft", longer)
    wanted = loss_distribution([event])
    assert wanted is not None
    epsilons = np.linspace(0.0, found.epsilon(1e-5), 50)
    error = np.abs(found.deltas(epsilons) - wanted.deltas(epsilons)).max()
    assert 0 < error < found.rounding / 4


def test_a_distribution_of_many_losses_tells_nothing_of_a_small_delta() -> None:
    """Its rounding error is larger than delta, so only Renyi accounting gives a number."""
    few, many = ({row.name for row in account([DPSGD(1e-4, 2.0, steps)], 1e-7)} for steps in (10**5, 10**8))
    assert "pld" in few
    assert "pld" not in many
