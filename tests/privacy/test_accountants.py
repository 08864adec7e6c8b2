"""Properties of accountants that hold for all numbers: their order, monotonicity, units, validation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.errors import BenchError, UnknownNameError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.accounting import accountants, claims, pate
from bench.privacy.accounting.accountants import account, common_unit, proven
from bench.privacy.accounting.distributions import merged
from bench.privacy.events import conversions, losses
from bench.privacy.events.events import (
    DPSGD,
    BandedSums,
    Bypass,
    ConfidentGNMax,
    Event,
    Exponential,
    Gaussian,
    GNMax,
    Laplace,
    LNMax,
    PermuteAndFlip,
    PriorRandomizedResponse,
    RandomizedResponse,
    RepeatAndSelect,
    SampledGaussian,
    SampledGNMax,
    TopKRandomizedResponse,
    TreeSums,
)

FEW = settings(max_examples=25, deadline=None)
MANY = settings(max_examples=150, deadline=None)
EVENTS: list[Event] = [
    LNMax(0.05, 100),
    LNMax(0.05, 100, 16),
    GNMax(40.0, 100),
    GNMax(40.0, 100, exact=True),
    ConfidentGNMax(200.0, 150.0, 40.0, 640, 280),
    Gaussian(5.0, 3),
    Laplace(10.0, 20),
    Laplace(10.0, 20, grid_steps=64),
    TreeSums(20.0, 100, 2),
    BandedSums(20.0, 100, 4, 10),
    Exponential(0.5, 4),
    PermuteAndFlip(0.5, 4),
    RandomizedResponse(0.5, 10, 4),
    TopKRandomizedResponse(0.5, 3, 10, 4),
    DPSGD(0.01, 1.0, 100),
    SampledGaussian(0.01, 1.0, 100),
    SampledGNMax(0.01, 2.0, 100, adjacency=Adjacency.REPLACE),
    RepeatAndSelect(((Laplace(10.0, 20), Gaussian(50.0)), (Gaussian(5.0),)), 10.0),
    Bypass("the generator saw everything"),
]
epsilon0 = st.floats(1e-3, 3.0)
count = st.integers(1, 2000)
deltas = st.floats(1e-9, 1e-2)


def rows(events: list[Event], delta: float = 1e-5) -> dict[str, float]:
    return {row.name: row.epsilon for row in account(events, delta)}


# ---------------------------------------------------------------------------------------------------------- conversions


def worst_case_delta(eps0: float, k: int, epsilon: float) -> float:
    """Sum the worst case of `k` mechanisms of pure `eps0` term by term."""
    keep = 1 / (1 + math.exp(-eps0))
    return math.fsum(
        math.comb(k, i) * keep**i * (1 - keep) ** (k - i) * -math.expm1(epsilon - (2 * i - k) * eps0)
        for i in range(k + 1)
        if (2 * i - k) * eps0 > epsilon
    )


@MANY
@given(eps0=epsilon0, k=st.integers(1, 60), delta=st.floats(1e-9, 0.3))
def test_optimal_composition_is_the_root_of_the_sum(eps0: float, k: int, delta: float) -> None:
    epsilon = conversions.optimal_composition(eps0, k, delta)
    found = worst_case_delta(eps0, k, epsilon)
    if epsilon == 0:
        assert found <= delta * (1 + 1e-9)
    else:
        assert found == pytest.approx(delta, rel=1e-6)


@MANY
@given(eps0=epsilon0, k=count, delta=deltas)
def test_optimal_composition_is_the_least(eps0: float, k: int, delta: float) -> None:
    optimal = conversions.optimal_composition(eps0, k, delta)
    assert optimal <= k * eps0
    assert optimal <= k * eps0**2 + eps0 * math.sqrt(-2 * k * math.log(delta))
    assert optimal <= k * eps0 * math.expm1(eps0) + eps0 * math.sqrt(-2 * k * math.log(delta)) + 1e-12
    assert optimal <= conversions.optimal_composition(eps0, k + 1, delta) + 1e-9
    assert optimal <= conversions.optimal_composition(eps0 * 1.1, k, delta) + 1e-9
    assert optimal <= conversions.optimal_composition(eps0, k, delta / 2) + 1e-9


def test_optimal_composition_is_stable_for_many() -> None:
    few, many = (conversions.optimal_composition(0.001, k, 1e-5) for k in (99_999, 100_000))
    assert 0 < few < many < few * 1.001
    # The sum of so many small losses is nearly Gaussian, with mean count * eps0^2 / 2 and mu = sqrt(count) * eps0.
    assert many == pytest.approx(conversions.exact_gaussian_epsilon(math.sqrt(1e5) * 1e-3, 1e-5), rel=1e-2)
    assert conversions.optimal_composition(50.0, 100_000, 1e-5) == pytest.approx(5e6, rel=1e-6)


@MANY
@given(mu=st.floats(1e-3, 20), delta=deltas)
def test_exact_gaussian(mu: float, delta: float) -> None:
    exact = conversions.exact_gaussian_epsilon(mu, delta)
    improved, _ = conversions.zcdp_improved_epsilon(mu**2 / 2, delta)
    classic, _ = conversions.zcdp_classic_epsilon(mu**2 / 2, delta)
    assert exact <= improved + 1e-9
    assert improved <= classic + 1e-9
    if exact > 0:
        assert conversions.gaussian_delta(mu, exact) == pytest.approx(delta, rel=1e-6)


@MANY
@given(rho=st.floats(1e-4, 50), delta=deltas)
def test_conversions_over_real_orders_are_no_worse(rho: float, delta: float) -> None:
    orders = pate.ORDERS
    assert (
        conversions.zcdp_classic_epsilon(rho, delta)[0] <= conversions.classic_epsilon(orders, rho * orders, delta)[0]
    )
    improved = conversions.improved_epsilon(orders, rho * orders, delta)[0]
    assert conversions.zcdp_improved_epsilon(rho, delta)[0] <= improved + 1e-8


def test_improved_conversion_is_that_of_dp_accounting() -> None:
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    orders = accountants.ORDERS
    for scale in (1e-12, 1e-3, 0.1, 3.0):
        expected, order = compute_epsilon(orders.tolist(), (scale * orders).tolist(), 1e-5)
        found = conversions.improved_epsilon(orders, scale * orders, 1e-5)
        assert found[0] == pytest.approx(expected, rel=1e-12)
        if expected > 0:
            assert found[1] == pytest.approx(order)


# --------------------------------------------------------------------------------------------------- single mechanisms


def test_divergences_are_those_of_dp_accounting() -> None:
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant as reference

    orders = np.array([1.05, 1.5, 2.0, 8.1, 64.0, 512.0])
    for epsilon in (0.01, 0.3, 2.0, 20.0):
        expected = [reference._laplace_rdp(epsilon, order) for order in orders]
        assert losses.laplace_rdp(epsilon, orders) == pytest.approx(expected, rel=1e-9)
        for classes in (2, 3, 10, 100):
            noise = classes / (math.exp(epsilon) + classes - 1)
            relation = dp_accounting.NeighboringRelation.REPLACE_ONE
            expected = reference._compute_randomized_response_rdp(noise, classes, orders, relation)
            assert losses.randomized_response_rdp(epsilon, classes, orders) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("granularity", [1, 2, 5, 64])
@pytest.mark.parametrize("epsilon", [0.1, 0.7, 4.0])
def test_discrete_laplace_divergence_is_its_sum(epsilon: float, granularity: int) -> None:
    step = epsilon / granularity
    at = np.arange(-int(60 / step), int(60 / step) + granularity)
    here, there = -step * np.abs(at), -step * np.abs(at - granularity)
    orders = np.array([1.1, 2.0, 8.0, 33.0])
    log_total = math.log(np.exp(here).sum())
    expected = [math.log(np.exp(o * here + (1 - o) * there - log_total).sum()) / (o - 1) for o in orders]
    assert losses.discrete_laplace_rdp(epsilon, granularity, orders) == pytest.approx(expected, rel=1e-9)


def discrete_laplace_delta(epsilon: float, granularity: int, at_epsilon: float) -> float:
    """Sum delta over all outcomes of discrete Laplace noise."""
    step = epsilon / granularity
    at = np.arange(-int(60 / step), int(60 / step) + granularity)
    here, there = np.exp(-step * np.abs(at)), np.exp(-step * np.abs(at - granularity))
    return float(np.maximum(here - math.exp(at_epsilon) * there, 0).sum() / here.sum())


@pytest.mark.parametrize("granularity", [1, 3, 64])
def test_discrete_laplace_distribution_is_its_sum(granularity: int) -> None:
    pld = losses.laplace_pld(0.7, 1, 1e-4, granularity)
    for epsilon in (0.0, 0.1, 0.35, 0.6999):
        exact = discrete_laplace_delta(0.7, granularity, epsilon)
        found = pld.get_delta_for_epsilon(epsilon)
        assert exact - 1e-12 <= found <= exact + 1e-6


def test_secure_noise_costs_what_continuous_noise_does() -> None:
    plain = rows([LNMax(0.05, 1000)])
    fine = rows([LNMax(0.05, 1000, 1024)])
    coarse = rows([LNMax(0.05, 1000, 1)])
    for name in ("pld", "rdp"):
        assert plain[name] == pytest.approx(fine[name], abs=1e-5)
        assert fine[name] >= plain[name] - 1e-9
        assert coarse[name] > plain[name]
    assert coarse["pld"] <= coarse["optimal-composition"]


@FEW
@given(eps0=st.floats(0.01, 2.0), k=st.integers(1, 300), delta=deltas)
def test_two_valued_losses_compose_to_the_optimum(eps0: float, k: int, delta: float) -> None:
    interval = losses.grid_interval(losses.pure_spread(eps0, k), eps0)
    found = losses.Composed(losses.pure_pld(eps0, k, interval), losses.rounding(k)).epsilon(delta)
    optimal = conversions.optimal_composition(eps0, k, delta)
    assert optimal - 1e-9 <= found <= optimal * 1.005 + 1e-3


def test_gaussian_distribution_is_above_the_exact_figure() -> None:
    for mu in (0.05, 0.5, 3.0):
        found = losses.gaussian_pld(mu, 1e-4).get_epsilon_for_delta(1e-5)
        exact = conversions.exact_gaussian_epsilon(mu, 1e-5)
        assert exact - 1e-9 <= found <= exact + 1e-4


# -------------------------------------------------------------------------------------------------------- whole ledgers


@FEW
@given(gamma=st.floats(0.01, 0.5), queries=st.integers(1, 500), delta=st.floats(1e-8, 1e-3))
def test_order_among_the_accountants_of_lnmax(gamma: float, queries: int, delta: float) -> None:
    found = rows([LNMax(gamma, queries)], delta)
    # The grid rounds up the largest loss of each noisy count, which is noticeable with few queries.
    grid = 1e-6 + 2e-4 * min(queries, 20)
    assert found["pld"] <= found["optimal-composition"] + grid
    assert found["pld"] <= found["rdp"] + grid
    assert found["optimal-composition"] <= found["pate-2017-closed-form"] + 1e-9
    assert found["optimal-composition"] <= found["pate-2017-moments-data-independent"] + 1e-9
    assert proven([LNMax(gamma, queries)], delta).epsilon == min(found.values())


MAKERS: dict[str, Callable[[float, int], Event]] = {
    "lnmax": lambda noise, n: LNMax(1 / noise, n),
    "gnmax": lambda noise, n: GNMax(noise, n),
    "confident": lambda noise, n: ConfidentGNMax(100.0, noise, noise, n, n),
    "gaussian": lambda noise, n: Gaussian(noise, n),
    "exact-gaussian": lambda noise, n: Gaussian(noise, n, exact=True),
    "laplace": lambda noise, n: Laplace(noise, n),
    "tree-sums": lambda noise, n: TreeSums(noise, n),
    "banded-sums": lambda noise, n: BandedSums(noise, n, 3, 10),
    "exponential": lambda noise, n: Exponential(1 / noise, n),
    "permute-and-flip": lambda noise, n: PermuteAndFlip(1 / noise, n),
    "randomized-response": lambda noise, n: RandomizedResponse(1 / noise, 10, n),
    "prior-randomized-response": lambda noise, n: PriorRandomizedResponse(1 / noise, 10, n),
    "dp-sgd": lambda noise, n: DPSGD(0.01, noise, n),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=3, deadline=None)
@given(noise=st.floats(0.7, 30), n=st.integers(1, 200), delta=st.floats(1e-7, 1e-4))
def test_monotone_in_count_noise_and_delta(kind: str, noise: float, n: int, delta: float) -> None:
    make = MAKERS[kind]
    base = proven([make(noise, n)], delta).epsilon
    # The grids of losses differ slightly between settings.
    slack = 1e-6 + 1e-4 * base
    assert proven([make(noise, n + 1)], delta).epsilon >= base - slack
    assert proven([make(noise * 1.2, n)], delta).epsilon <= base + slack
    assert proven([make(noise, n)], delta * 2).epsilon <= base + slack
    assert proven([make(noise, n), make(noise, n)], delta).epsilon >= base - slack


@pytest.mark.parametrize(
    "event", [e for e in EVENTS if not isinstance(e, (Bypass, DPSGD))], ids=lambda event: event.describe()
)
def test_renyi_divergence_rises_with_the_order(event: Event) -> None:
    rdp = event.rdp(accountants.ORDERS)
    assert rdp.shape == accountants.ORDERS.shape
    assert np.isfinite(rdp).all()
    assert (np.diff(rdp) >= -1e-12).all()
    assert (rdp <= event.pure_epsilon() + 1e-12).all()


def test_mixed_ledger_costs_between_its_parts_and_their_sum() -> None:
    parts: list[Event] = [LNMax(0.05, 100), Gaussian(5.0), Laplace(3.0), GNMax(40.0, 50)]
    alone = [proven([part], 5e-6).epsilon for part in parts]
    together = proven(parts, 2e-5)
    assert together.name == "pld"
    assert max(alone) * 0.9 < together.epsilon < sum(alone)
    # With one event of exact discrete Gaussian noise, only Renyi accounting applies.
    assert set(rows([*parts, GNMax(40.0, 1, exact=True)])) == {"rdp"}


def test_differing_pure_mechanisms() -> None:
    found = rows([RandomizedResponse(0.5, 10, 20), RandomizedResponse(0.1, 10, 100)])
    assert found["basic-composition"] == pytest.approx(20.0)
    assert found["pld"] < found["optimal-composition"] < found["basic-composition"]
    lower = conversions.optimal_composition(0.5, 20, 1e-5)
    assert found["optimal-composition"] > lower


def test_dp_sgd_with_all_records_is_gaussian_noise() -> None:
    everything = rows([DPSGD(1.0, 5.0, 10)])
    assert everything["exact-gaussian"] == pytest.approx(rows([Gaussian(5.0, 10)])["exact-gaussian"])
    assert proven([DPSGD(0.1, 5.0, 10)], 1e-5).epsilon < everything["exact-gaussian"]


def test_equal_events_are_one() -> None:
    split: list[Event] = [LNMax(0.05, 40), Gaussian(3.0), LNMax(0.05, 60), Gaussian(3.0, 2)]
    assert merged(split) == [LNMax(0.05, 100), Gaussian(3.0, 3)]
    assert rows([LNMax(0.05, 1)] * 100) == rows([LNMax(0.05, 100)])


def test_empty_ledger_and_bypass() -> None:
    assert proven([], 1e-5).epsilon == 0
    found = proven([LNMax(0.05, 10), Bypass("one"), Bypass("two"), Bypass("one")], 1e-5)
    assert found.epsilon == math.inf
    assert found.note == "one; two"
    assert found.as_dict()["epsilon"] == "inf"
    assert proven([Bypass("one")], 1e-5).epsilon == math.inf
    beside = account([LNMax(0.05, 10), Bypass("one")], 1e-5)[1:]
    assert beside
    assert not any(row.sound for row in beside)


def test_small_delta_leaves_out_what_rounding_would_spoil() -> None:
    assert "pld" not in rows([LNMax(0.05, 100)], 1e-14)
    assert proven([LNMax(0.05, 100)], 1e-14).epsilon <= 10


# ---------------------------------------------------------------------------------------------------------------- units


def test_units_do_not_compose_silently() -> None:
    record, label = LNMax(0.05, 10), RandomizedResponse(1.0, 10)
    assert common_unit([record, label]) == (PrivacyUnit.LABEL, Adjacency.REPLACE)
    assert all("for one label" in row.note for row in account([record, label], 1e-5))
    client = Gaussian(3.0, unit=PrivacyUnit.CLIENT)
    assert common_unit([client, record])[0] is PrivacyUnit.RECORD
    with pytest.raises(BenchError, match="different units"):
        account([record, RandomizedResponse(1.0, 10, unit=PrivacyUnit.QUERY_LABEL)], 1e-5)
    with pytest.raises(BenchError, match="add-remove"):
        account([record, DPSGD(0.01, 1.0, 10)], 1e-5)
    stated = LNMax(0.05, 10, adjacency=Adjacency.ADD_REMOVE)
    assert common_unit([stated, DPSGD(0.01, 1.0, 10)]) == (PrivacyUnit.RECORD, Adjacency.ADD_REMOVE)
    with pytest.raises(BenchError, match="no privacy unit"):
        common_unit([])


# --------------------------------------------------------------------------------------------------------------- events


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.describe())
def test_events_go_through_json(event: Event) -> None:
    written = json.loads(json.dumps(event.as_dict(), allow_nan=False))
    assert Event.from_dict(written) == event
    assert event.describe()
    assert isinstance(event.unit, PrivacyUnit)
    assert isinstance(event.adjacency, Adjacency)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda gamma=gamma: LNMax(gamma, 1) for gamma in (0.0, -1.0, math.nan, math.inf)),
        lambda: LNMax(0.1, 0),
        lambda: LNMax(0.1, 1.5),  # type: ignore[arg-type]
        lambda: LNMax(0.1, 1, 0),
        lambda: GNMax(math.nan, 1),
        lambda: ConfidentGNMax(math.nan, 1.0, 1.0, 1, 1),
        lambda: ConfidentGNMax(1.0, 1.0, 1.0, 1, 2),
        lambda: Gaussian(0.0),
        lambda: Laplace(1.0, grid_steps=0),
        lambda: RandomizedResponse(1.0, 1),
        lambda: TopKRandomizedResponse(1.0, 11, 10),
        lambda: DPSGD(1.5, 1.0, 1),
        lambda: Bypass(" "),
        lambda: Event.from_dict({"kind": "lnmaxx", "gamma": 1.0, "queries": 1}),
        lambda: Event.from_dict({"kind": "lnmax", "gama": 1.0, "queries": 1}),
        lambda: Event.from_dict({"kind": "lnmax", "gamma": 1.0}),
        lambda: Event.from_dict({"kind": "lnmax", "gamma": 1.0, "queries": 1, "unit": "image"}),
        lambda: account([LNMax(0.1, 1)], 0.0),
        lambda: account([LNMax(0.1, 1)], math.nan),
        lambda: account([], 1.0),
        lambda: conversions.optimal_composition(0.1, 0, 1e-5),
        lambda: conversions.optimal_composition(math.nan, 1, 1e-5),
        lambda: claims.trpate(0.05, 0, 1e-5),
        lambda: claims.dgd(0.05, 10, 1e-5, -1.0),
        lambda: claims.dpsd(0.0, 10, 1, 1, 1.0, 1e-5),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(BenchError):
        make()


def test_unknown_accountant_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'pld'"):
        accountants.accountant("pldd")
