"""Calibration finds the largest count and the smallest noise within a budget."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.errors import BenchError
from bench.core.types import Adjacency, Basis, Budget, TargetAdjacency
from bench.interface.method import Method
from bench.privacy.accounting import accountants, claims
from bench.privacy.accounting.accountants import proven, replace_one
from bench.privacy.accounting.calibrate import largest_count, smallest_noise
from bench.privacy.events.events import DPSGD, Gaussian, GNMax, Laplace, LNMax

deltas = st.floats(1e-9, 1e-2)


def within(epsilon: float, basis: Basis = Basis.PROVEN, **more: Any) -> Budget:
    return Budget(epsilon, 1e-5, basis, **more)


@pytest.mark.parametrize("budget", [0.5, 3.0, 10.0])
@pytest.mark.parametrize("name", ["proven", "rdp", "optimal-composition", "pate-2017-closed-form"])
def test_largest_count_is_the_largest(name: str, budget: float) -> None:
    accountant = accountants.accountant(name)
    found = largest_count(lambda n: [LNMax(0.05, n)], within(budget, Basis.CLAIMED), claimed=name)
    assert largest_count(lambda n: [LNMax(0.05, n)], within(budget), claimed=name) == largest_count(
        lambda n: [LNMax(0.05, n)], within(budget)
    )
    cost = [accountant([LNMax(0.05, n)], 1e-5) for n in (found, found + 1)]
    assert cost[0] is not None
    assert cost[1] is not None
    assert cost[0].epsilon <= budget < cost[1].epsilon
    if name == "pate-2017-closed-form":
        assert claims.advanced_largest_count(2 * 0.05, budget, 1e-5) == found


def test_a_method_without_charges_is_told_to_define_them() -> None:
    with pytest.raises(BenchError, match=r"define charges\(\)"):
        largest_count(lambda n: Method.charges(None), within(1.0))


def test_not_even_one_query() -> None:
    with pytest.raises(BenchError, match=r"not reachable with even one query: one costs 3\.99"):
        largest_count(lambda n: [LNMax(2.0, n)], within(1.0))
    with pytest.raises(BenchError, match="not reachable with even one query"):
        claims.advanced_largest_count(2 * 2.0, 1.0, 1e-5)
    assert largest_count(lambda n: [Gaussian(1e9, n)], within(1.0), most=500) == 500


@settings(max_examples=50, deadline=None)
@given(eps0=st.floats(1e-3, 1.0), budget=st.floats(0.5, 100), delta=deltas)
def test_inverse_of_the_closed_form(eps0: float, budget: float, delta: float) -> None:
    one = claims.dgd(eps0, 1, delta).epsilon
    if one > budget:
        with pytest.raises(BenchError, match="even one"):
            claims.dgd_largest_count(eps0, budget, delta)
        return
    found = claims.dgd_largest_count(eps0, budget, delta)
    assert claims.dgd(eps0, found, delta).epsilon <= budget < claims.dgd(eps0, found + 1, delta).epsilon


@pytest.mark.parametrize("budget", [0.1, 1.0, 10.0])
def test_smallest_noise_is_the_smallest(budget: float) -> None:
    for make in (lambda s: [Gaussian(s, 10)], lambda s: [GNMax(s, 100)], lambda s: [Laplace(s, 10)]):
        found = smallest_noise(make, within(budget))
        assert proven(make(found), 1e-5).epsilon <= budget
        assert proven(make(found * (1 - 1e-4)), 1e-5).epsilon > budget
    sigma = claims.dpsd_smallest_sigma(1e-3, 10, 256, 200, budget, 1e-5)
    assert claims.dpsd(1e-3, 10, 256, 200, sigma, 1e-5).epsilon == pytest.approx(budget, rel=1e-6)


@pytest.mark.slow
def test_a_proven_target_bounds_the_adjacency_asked_for() -> None:
    def steps(noise: float) -> list[DPSGD]:
        return [DPSGD(0.01, noise, 200)]

    def sums(noise: float) -> list[Gaussian]:
        return [Gaussian(noise, 10, adjacency=Adjacency.ADD_REMOVE)]

    own = TargetAdjacency.OWN
    assert smallest_noise(sums, within(2.0)) == pytest.approx(2 * smallest_noise(sums, within(2.0, adjacency=own)))
    replaced = smallest_noise(steps, within(2.0), sound="pld", tolerance=1e-3)
    assert 1.95 < replace_one(steps(replaced), 1e-5).epsilon <= 2.0
    kept = smallest_noise(steps, within(2.0, adjacency=own), sound="pld", tolerance=1e-3)
    assert 1.95 < proven(steps(kept), 1e-5).epsilon <= 2.0
    claimed = smallest_noise(sums, within(2.0, Basis.CLAIMED), claimed="rdp-classic")
    assert claimed == pytest.approx(smallest_noise(sums, within(2.0, adjacency=own), sound="rdp-classic"))


def test_an_accountant_that_does_not_apply() -> None:
    with pytest.raises(BenchError, match="'rdp-classic' does not apply to lnmax"):
        largest_count(lambda n: [LNMax(0.1, n)], within(1.0, Basis.CLAIMED), claimed="rdp-classic")
