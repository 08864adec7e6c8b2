"""Costs of mechanisms for neighbours that replace one record: epsilons, divergences and the dominating pairs."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from bench.core.types import Adjacency
from bench.privacy.accounting.accountants import proven, replace_one
from bench.privacy.events import sampled_losses
from bench.privacy.events.base_event import restored
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
    SampledGaussian,
    SampledGNMax,
    TreeSums,
)
from helpers.by_dp_accounting import by_dp_accounting
from helpers.paths import ROOT

ADD_REMOVE, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("noise", "own", "replaced"), [(1.4225, 0.905, 1.64), (0.8373, 2.53, 3.52), (0.5613, 8.56, 9.91)]
)
def test_ten_epochs_of_dp_sgd_on_mnist_for_replace_neighbours(noise: float, own: float, replaced: float) -> None:
    steps = [DPSGD(512 / 60_000, noise, 1172)]
    assert f"{proven(steps, 1e-5).epsilon:.3g}" == f"{own:.3g}"
    assert f"{replace_one(steps, 1e-5).epsilon:.3g}" == f"{replaced:.3g}"


@pytest.mark.parametrize(
    ("key", "own", "replaced"),
    [("mnist-dp-linear-gd-eps10-quick-s0", 9.32, 22.6), ("cifar10-dp-linear-eps11.35-paper-s0", 11.35, 21.2)],
)
def test_add_remove_rows_of_the_board_for_replace_neighbours(key: str, own: float, replaced: float) -> None:
    (path,) = (ROOT / "leaderboards" / "records").glob(f"{key}-*.json")
    privacy = json.loads(path.read_text())["privacy"]
    events = restored(privacy["events"])
    assert privacy["proven"]["epsilon"] == pytest.approx(own, rel=5e-3)
    assert replace_one(events, privacy["delta"]).epsilon == pytest.approx(replaced, rel=5e-3)
    assert f"{replace_one(events, privacy['delta']).epsilon:.3g}" == f"{replaced:.3g}"


@pytest.mark.few(1)
@pytest.mark.parametrize(("rate", "noise", "runs"), [(0.05, 1.0, 200), (0.5, 4.0, 20)])
def test_replaced_dp_sgd_is_dp_accountings(rate: float, noise: float, runs: int) -> None:
    wanted = by_dp_accounting(rate, noise, runs, NeighboringRelation.REPLACE_ONE, 1e-5)
    assert replace_one([DPSGD(rate, noise, runs)], 1e-5).epsilon == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("order", [1.1, 2.0, 7.5, 32.0])
@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.5, 0.5), (0.01, 4.0)])
def test_renyi_divergence_of_the_replaced_pair(order: float, rate: float, noise: float) -> None:
    def log_density(x: float, shift: float) -> float:
        centre, moved = math.log(1 - rate) - x**2 / 2, math.log(rate) - (x - shift) ** 2 / 2
        return float(np.logaddexp(centre, moved)) - math.log(2 * math.pi) / 2

    mu = 1 / noise

    def exponent(x: float) -> float:
        return order * log_density(x, mu) - (order - 1) * log_density(x, -mu)

    cuts = np.linspace(-12 - mu, 12 + order * mu, 41)
    top = max(map(exponent, cuts))  # The integral may overflow.
    parts = (
        integrate.quad(lambda x: math.exp(exponent(x) - top), a, b, epsabs=1e-12)[0]
        for a, b in itertools.pairwise(cuts)
    )
    moment = math.fsum(parts)
    wanted = (math.log(moment) + top) / (order - 1)
    (found,) = sampled_losses.sampled_gaussian_rdp(noise, rate, [order], replaced=True)
    assert found == pytest.approx(wanted, rel=1e-8, abs=1e-12)


def test_hardly_any_noise_costs_a_finite_amount_in_little_memory() -> None:
    """An untrusted record may state such noise."""
    for event in (DPSGD(0.5, 1e-6, 10), SampledGaussian(0.5, 1e-6, 10), SampledGNMax(0.5, 1e-6, 10)):
        assert proven([event], 1e-5).epsilon <= replace_one([event], 1e-5).epsilon * (1 + 1e-6) < math.inf
    few = [DPSGD(0.1, noise, 5).replaced().rdp([8.0])[0] for noise in (0.12, 0.126, 0.2)]
    assert few == sorted(few, reverse=True)


GRID = np.linspace(-9, 9, 361)
X, Y = np.meshgrid(GRID, GRID)
CELL = (GRID[1] - GRID[0]) ** 2


def hockey_stick(rate: float, first: np.ndarray, other: np.ndarray, alpha: float) -> float:
    """Integrate ``(P - alpha Q)+`` over the plane, P and Q mixtures of N_0 and a shifted normal."""

    def mixture(shift: np.ndarray) -> np.ndarray:
        centre, moved = (np.exp(-((X - a) ** 2 + (Y - b) ** 2) / 2) for a, b in ((0.0, 0.0), shift))
        return np.asarray(((1 - rate) * centre + rate * moved) / (2 * math.pi))

    return float(np.maximum(mixture(first) - alpha * mixture(other), 0).sum() * CELL)


shifts = st.tuples(st.floats(0, 1), st.floats(0, 2 * math.pi)).map(
    lambda polar: 1.5 * polar[0] * np.array([math.cos(polar[1]), math.sin(polar[1])])
)


@settings(max_examples=40, deadline=None)
@given(rate=st.floats(0.05, 1.0), first=shifts, other=shifts, alpha=st.floats(0.1, 10.0))
def test_opposite_shifts_dominate_all_others(rate: float, first: np.ndarray, other: np.ndarray, alpha: float) -> None:
    most = np.array([1.5, 0.0])
    assert hockey_stick(rate, first, other, alpha) <= hockey_stick(rate, most, -most, alpha) + 1e-6


@settings(max_examples=40, deadline=None)
@given(rate=st.floats(0.05, 0.99), log_alpha=st.floats(-2.5, 2.5), scale=st.floats(0.2, 1.6), taken=st.integers(0, 3))
def test_replaced_votes_stay_below_the_symmetric_curve(rate: float, log_alpha: float, scale: float, taken: int) -> None:
    """Classes are the corners of an equilateral triangle: the plane of counts that sum to k, in units of sqrt(2)."""
    corners = scale * np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])
    # The removed neighbour has class 0; the two records have two of the three classes.
    first, other = corners[[(1, 2), (1, 0), (0, 1), (2, 1)][taken],]
    curve = sampled_losses.symmetric_gaussian_pld(1 / scale, rate, 1e-3)
    bound = curve.get_delta_for_epsilon(log_alpha)
    assert hockey_stick(rate, first, other, math.exp(log_alpha)) <= bound + 1e-4
    removed = hockey_stick(rate, corners[1], corners[0], math.exp(abs(log_alpha)))
    if log_alpha > 0:
        assert bound == pytest.approx(removed, abs=3e-4)  # the grid's error at the kink


@pytest.mark.parametrize(
    ("event", "twice"),
    [
        (LNMax(0.1, 5, adjacency=ADD_REMOVE), LNMax(0.2, 5)),
        (LNMax(0.1, 5, 16, adjacency=ADD_REMOVE), LNMax(0.2, 5, 32)),
        (GNMax(4.0, 5, adjacency=ADD_REMOVE), GNMax(2.0, 5)),
        (ConfidentGNMax(9.0, 4.0, 3.0, 5, 2, adjacency=ADD_REMOVE), ConfidentGNMax(9.0, 2.0, 1.5, 5, 2)),
        (Gaussian(3.0, 5, adjacency=ADD_REMOVE), Gaussian(1.5, 5)),
        (Laplace(3.0, 5, adjacency=ADD_REMOVE), Laplace(1.5, 5)),
        (Laplace(3.0, 5, grid_steps=7, adjacency=ADD_REMOVE), Laplace(1.5, 5, grid_steps=14)),
        (TreeSums(3.0, 9, 5, adjacency=ADD_REMOVE), TreeSums(1.5, 9, 5)),
        (BandedSums(3.0, 9, 2, 4, adjacency=ADD_REMOVE), BandedSums(1.5, 9, 2, 4)),
        (Exponential(0.5, 5, adjacency=ADD_REMOVE), Exponential(1.0, 5)),
        (PermuteAndFlip(0.5, 5, adjacency=ADD_REMOVE), PermuteAndFlip(1.0, 5)),
        (GNMax(4.0, 5), GNMax(4.0, 5)),
        (DPSGD(0.1, 1.0, 5), DPSGD(0.1, 1.0, 5, adjacency=REPLACE)),
    ],
    ids=str,
)
def test_replacing_is_removing_and_adding(event: Event, twice: Event) -> None:
    assert event.replaced() == twice
    assert proven([twice], 1e-5).epsilon >= proven([event], 1e-5).epsilon
    assert Event.from_dict(event.replaced().as_dict()) == twice


def test_a_bypass_stays_infinite() -> None:
    assert replace_one([DPSGD(0.1, 1.0, 5), Bypass("it reads the labels")], 1e-5).epsilon == math.inf
