"""Choices by noisy scores: their distributions, the cost of a range of losses, and exact samplers."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import special, stats

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.accounting.accountants import ORDERS, proven
from bench.privacy.auditing.vote_laws import log_flipped
from bench.privacy.events.conversions import zcdp_improved_epsilon
from bench.privacy.events.events import Exponential, PermuteAndFlip
from bench.privacy.events.losses import bounded_range_pld, bounded_range_rdp
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import Law, SecureNoise, SeededNoise
from helpers.ledgers import seeded_ledger

SCORES = np.array([2.0, 0.5, 0.0, 1.8])


def ledger(seed: int = 0) -> Ledger:
    return seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(seed))


def flipped(scores: np.ndarray) -> np.ndarray:
    """Return permute-and-flip's distribution by its definition: in random order, a coin accepts each candidate."""
    law, coins = np.zeros(len(scores)), np.exp(scores - scores.max())
    orders = list(permutations(range(len(scores))))
    for order in orders:
        left = 1.0
        for place in order:
            law[place] += left * coins[place] / len(orders)
            left *= 1 - coins[place]
    return law


def worst(epsilon: float, t: float) -> tuple[np.ndarray, np.ndarray]:
    """Return both neighbours' distributions over two candidates with losses `t` and ``t - epsilon``."""
    first = (math.exp(epsilon) - math.exp(t)) / math.expm1(epsilon)
    one = np.array([first, 1 - first])
    return one, one * np.exp([-t, epsilon - t])


@pytest.mark.parametrize(("monotonic", "scale"), [(False, 0.8), (True, 0.4)])
def test_choices_have_the_odds_of_their_scores(monotonic: bool, scale: float) -> None:
    rows = np.tile(SCORES, (20_000, 1))
    settings = {"sensitivity": 0.2, "epsilon": 0.5, "monotonic": monotonic}
    laws = special.softmax(SCORES / scale), flipped(SCORES / scale)
    for name, law in zip(("exponential_mechanism", "permute_and_flip"), laws, strict=True):
        counts = np.bincount(getattr(ledger(), name)(rows, **settings), minlength=4)
        assert stats.chisquare(counts, law * len(rows)).pvalue > 1e-6


@pytest.mark.parametrize("law", ["gumbel", "exponential"])
def test_exact_choices_have_the_same_law(law: Law) -> None:
    pytest.importorskip("opendp")
    rows = np.tile(SCORES, (3_000, 1))
    wanted = special.softmax(SCORES / 0.7) if law == "gumbel" else flipped(SCORES / 0.7)
    for source in (SecureNoise(), SeededNoise(np.random.default_rng(0))):
        counts = np.bincount(source.largest(rows, 0.7, law), minlength=4)
        assert stats.chisquare(counts, wanted * len(rows)).pvalue > 1e-6


def test_exact_probabilities_of_permute_and_flip() -> None:
    for scores in (SCORES, np.zeros(5), np.array([0.0, -40.0, -3.0]), np.array([0.0])):
        assert_allclose(np.exp(log_flipped((scores - scores.max())[None])[0]), flipped(scores), rtol=1e-12)
    many = np.random.default_rng(0).normal(size=(2, 1000)) * [[0.1], [30.0]]
    assert_allclose(np.exp(log_flipped(many - many.max(axis=1, keepdims=True))).sum(axis=1), 1, rtol=1e-11)
    with pytest.raises(BenchError, match="1,024"):
        log_flipped(np.zeros((1, 1025)))


@settings(max_examples=60, deadline=None)
@given(epsilon=st.floats(1e-3, 20), share=st.floats(0.001, 0.999), place=st.integers(0, len(ORDERS) - 1))
def test_a_range_of_losses_costs_no_less_than_any_of_its_laws(epsilon: float, share: float, place: int) -> None:
    one, two = worst(epsilon, share * epsilon)
    order = float(ORDERS[place])
    moment = special.logsumexp(order * np.log(one) - (order - 1) * np.log(two)) / (order - 1)
    (found,) = bounded_range_rdp(epsilon, [order])
    assert moment <= found + 1e-12
    assert found <= min(epsilon, order * epsilon**2 / 8) * (1 + 1e-9)


@pytest.mark.few(3)
@pytest.mark.parametrize("order", [1.1, 2.0, 32.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_cost_of_a_range_is_that_of_one_of_its_laws(order: float, epsilon: float) -> None:
    laws = [worst(epsilon, t) for t in np.linspace(0, epsilon, 2_001)[1:-1]]
    moments = [special.logsumexp(order * np.log(one) - (order - 1) * np.log(two)) / (order - 1) for one, two in laws]
    assert bounded_range_rdp(epsilon, [order])[0] == pytest.approx(max(moments), rel=1e-4)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 6.0])
def test_the_distribution_of_a_range_has_the_largest_delta_of_its_laws(epsilon: float) -> None:
    one = bounded_range_pld(epsilon, 1, epsilon / 1000)
    assert one is not None
    for at in (0.0, 0.3 * epsilon, 0.9 * epsilon):
        laws = (worst(epsilon, t) for t in np.linspace(0, epsilon, 2001)[1:-1])
        largest = max(np.maximum(p - math.exp(at) * q, 0).sum() for p, q in laws)
        assert largest - 1e-9 <= one.get_delta_for_epsilon(at) <= largest + 1e-5


@pytest.mark.parametrize("count", [2, 5, 20])
def test_composed_choices_cost_no_less_than_equal_laws(count: int) -> None:
    """Of k choices with the same t, a binomial number has loss t - epsilon and the rest has loss t."""
    epsilon, delta = 0.4, 1e-3
    found = proven([Exponential(epsilon, count)], delta).epsilon
    for t in np.linspace(0.01, 0.99, 41) * epsilon:
        p = worst(epsilon, t)[0][1]
        lower = np.arange(count + 1)
        losses = count * t - lower * epsilon
        mass = stats.binom.pmf(lower, count, p)
        assert (mass * np.maximum(-np.expm1(found - losses), 0)).sum() <= delta * (1 + 1e-6)
    assert found < proven([PermuteAndFlip(epsilon, count)], delta).epsilon


def test_many_choices_cost_what_gaussian_noise_of_half_the_epsilon_does() -> None:
    """For small losses the Renyi divergence is near ``count order epsilon^2 / 8``, as for this Gaussian noise."""
    choices, flips = (proven([kind(0.05, 400)], 1e-5) for kind in (Exponential, PermuteAndFlip))
    assert choices.epsilon == pytest.approx(2.1623, abs=1e-3)
    assert choices.epsilon == pytest.approx(zcdp_improved_epsilon(0.5**2 / 2, 1e-5)[0], rel=3e-3)
    assert flips.epsilon == pytest.approx(4.3597, abs=1e-3)


def test_other_shapes_and_settings_are_refused_before_a_charge() -> None:
    book = ledger()
    for scores in (np.zeros(3), np.zeros((2, 0)), np.zeros((0, 3))):
        with pytest.raises(BenchError, match="choices, candidates"):
            book.exponential_mechanism(scores, sensitivity=1.0, epsilon=1.0)
    for wrong in ({"sensitivity": 0.0, "epsilon": 1.0}, {"sensitivity": 1.0, "epsilon": math.inf}):
        with pytest.raises(BenchError):
            book.permute_and_flip(np.zeros((1, 3)), **wrong)
    assert book.events == ()
