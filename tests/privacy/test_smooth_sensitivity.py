"""PATE's bounds against brute force: exact two-class divergences, moved votes, smoothness; and checks of votes."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special

from bench.core.errors import BenchError
from bench.privacy.accounting import pate
from bench.privacy.accounting import smooth_sensitivity as pate_smooth
from bench.privacy.accounting.data_dependent import release_rows
from bench.privacy.accounting.pate import check_votes
from bench.privacy.events.events import ConfidentGNMax, Gaussian, GNMax, LNMax
from helpers.epsilons import confident_epsilon, gnmax_epsilon

Floats = NDArray[np.float64]
MANY = settings(max_examples=100, deadline=None)


@st.composite
def vote_rows(draw: st.DrawFn, teachers: int = 250) -> Floats:
    """Draw (queries, classes) counts of one ensemble, from unanimous to tied."""
    classes = draw(st.integers(2, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    agree = draw(st.floats(0, 1))
    share = np.full(classes, (1 - agree) / classes)
    share[0] += agree
    return rng.multinomial(teachers, share, size=draw(st.integers(1, 6))).astype(np.float64)


def moves(votes: Floats) -> Floats:
    """Return every row that results from moving one vote of the row `votes`."""
    found = []
    for source, target in itertools.permutations(range(votes.size), 2):
        if votes[source] > 0:
            moved = votes.copy()
            moved[source] -= 1
            moved[target] += 1
            found.append(moved)
    return np.array(found)


# ------------------------------------------------------------------------------------------------------------ soundness


@MANY
@given(top=st.integers(50, 100), gamma=st.floats(0.01, 1.0), moment=st.integers(1, 32))
def test_lnmax_moments_bound_two_classes_exactly(top: int, gamma: float, moment: int) -> None:
    def lose(gap: float) -> float:
        tail = (2 + gamma * abs(gap)) / 4 * math.exp(-gamma * abs(gap))
        return tail if gap >= 0 else 1 - tail

    gap = 2 * top - 100
    here = lose(gap)
    votes = np.array([[top, 100 - top]], dtype=float)
    assert math.exp(pate.lnmax_log_q(votes, gamma)[0]) == pytest.approx(min(here, 0.5))
    bound = pate.lnmax_moments(pate.lnmax_log_q(votes, gamma), gamma, [moment])[0, 0]
    for moved in (gap - 2, gap + 2):
        there = lose(moved)
        exact = math.log(here * (here / there) ** moment + (1 - here) * ((1 - here) / (1 - there)) ** moment)
        assert exact <= bound + 1e-12


@MANY
@given(top=st.integers(50, 100), sigma=st.floats(2, 60), order=st.floats(1.1, 40))
def test_gnmax_divergence_bounds_two_classes_exactly(top: int, sigma: float, order: float) -> None:
    def log_both(gap: float) -> Floats:
        scaled = gap / (math.sqrt(2) * sigma)
        return np.array([special.log_ndtr(-scaled), special.log_ndtr(scaled)])

    gap = 2 * top - 100
    bound = pate.gnmax_rdp(np.array([[top, 100.0 - top]]), sigma, [order])[0, 0]
    for moved in (gap - 2, gap + 2):
        exact = special.logsumexp(order * log_both(gap) + (1 - order) * log_both(moved)) / (order - 1)
        assert exact <= bound + 1e-12


@MANY
@given(top=st.integers(0, 250), sigma1=st.floats(2, 200), order=st.floats(1.1, 40))
def test_threshold_divergence_bounds_the_answer_exactly(top: int, sigma1: float, order: float) -> None:
    def log_both(count: float) -> Floats:
        return np.array([special.log_ndtr((count - 200) / sigma1), special.log_ndtr((200 - count) / sigma1)])

    bound = pate.threshold_rdp(np.array([[float(top), 0.0]]), 200, sigma1, [order])[0, 0]
    for moved in (top - 1, top + 1):
        exact = special.logsumexp(order * log_both(top) + (1 - order) * log_both(moved)) / (order - 1)
        assert exact <= bound + 1e-12


# ----------------------------------------------------------------------------------------------------------- properties


@MANY
@given(votes=vote_rows(), gamma=st.floats(0.005, 2), sigma=st.floats(1, 200), delta=st.floats(1e-9, 1e-2))
def test_looking_at_votes_never_costs_more(votes: Floats, gamma: float, sigma: float, delta: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moments = np.arange(1.0, 65)
        found = pate.lnmax_moments(pate.lnmax_log_q(votes, gamma), gamma, moments)
        rdp = pate.gnmax_rdp(votes, sigma)
        threshold = pate.threshold_rdp(votes, 200, sigma)
        dependent, _ = pate.lnmax_epsilon(votes, gamma, delta)
    plain = np.minimum(2 * gamma**2 * moments * (moments + 1), 2 * gamma * moments)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert (found <= plain * (1 + 1e-12)).all()
    assert np.isfinite(rdp).all()
    assert (rdp >= 0).all()
    assert (rdp <= pate.ORDERS / sigma**2 * (1 + 1e-12)).all()
    assert (threshold <= pate.ORDERS / (2 * sigma**2) * (1 + 1e-12)).all()
    assert dependent <= pate.pure_moments_epsilon(2 * gamma, len(votes), delta)[0] + 1e-12


@MANY
@given(votes=vote_rows(), seed=st.integers(0, 1000))
def test_class_names_do_not_matter(votes: Floats, seed: int) -> None:
    shuffled = np.random.default_rng(seed).permuted(votes, axis=1)
    assert pate.lnmax_log_q(shuffled, 0.05) == pytest.approx(pate.lnmax_log_q(votes, 0.05))
    assert pate.gnmax_rdp(shuffled, 40.0) == pytest.approx(pate.gnmax_rdp(votes, 40.0))
    assert pate.confident_rdp(shuffled, 200, 150, 40) == pytest.approx(pate.confident_rdp(votes, 200, 150, 40))


@MANY
@given(votes=vote_rows())
def test_one_more_teacher_who_agrees_makes_a_surprise_rarer(votes: Floats) -> None:
    more = votes.copy()
    more[np.arange(len(votes)), votes.argmax(axis=1)] += 1
    assert (pate.lnmax_log_q(more, 0.05) <= pate.lnmax_log_q(votes, 0.05) + 1e-12).all()
    assert (pate.gnmax_log_q(more, 40) <= pate.gnmax_log_q(votes, 40) + 1e-12).all()
    assert (pate.log_answered(more, 200, 150) > pate.log_answered(votes, 200, 150)).all()


@MANY
@given(votes=vote_rows(), delta=st.floats(1e-8, 1e-3))
def test_more_queries_and_larger_moments(votes: Floats, delta: float) -> None:
    twice = np.concatenate([votes, votes])
    assert pate.lnmax_epsilon(votes, 0.05, delta)[0] <= pate.lnmax_epsilon(twice, 0.05, delta)[0]
    assert gnmax_epsilon(votes, 40, delta)[0] <= gnmax_epsilon(twice, 40, delta)[0]
    assert pate.lnmax_epsilon(votes, 0.05, delta, 64)[0] <= pate.lnmax_epsilon(votes, 0.05, delta, 8)[0]


def test_published_figure_can_be_too_small() -> None:
    """With unanimous teachers the doubled gamma costs less than the true one, so it is not a bound."""
    votes = np.tile([250.0, 0, 0, 0, 0, 0, 0, 0, 0, 0], (20_000, 1))
    published, _ = pate.lnmax_epsilon_published(votes, 0.05, 1e-5)
    assert published < pate.lnmax_epsilon(votes, 0.05, 1e-5)[0]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e6])
def test_extreme_votes_give_numbers(scale: float) -> None:
    votes = np.array([[1e6, 0, 0], [5e5, 5e5, 0], [333334, 333333, 333333]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = [
            pate.lnmax_moments(pate.lnmax_log_q(votes, scale), scale, [1, 8, 64]),
            pate.gnmax_rdp(votes, scale),
            pate.threshold_rdp(votes, 6e5, scale),
        ]
    assert all(np.isfinite(result).all() and (result >= 0).all() for result in results)


# --------------------------------------------------------------------------------------------------- smooth sensitivity

SMALL = [(5.0, 3.0), (8.0, 4.0), (40.0, 14.0)]
"""Noise and order at which 30 votes already matter, and the paper's."""


@pytest.mark.few(1)
@pytest.mark.parametrize(("sigma", "order"), SMALL)
@settings(max_examples=60, deadline=None)
@given(votes=vote_rows(teachers=30))
def test_local_sensitivity_bounds_every_moved_vote(sigma: float, order: float, votes: Floats) -> None:
    for row in votes:
        neighbours = moves(row)
        log_q = pate.gnmax_log_q(row[None], sigma)
        there = pate.gnmax_log_q(neighbours, sigma)
        assert (there <= pate_smooth.shifted_log_q(log_q, sigma, row.size, up=True) + 1e-9).all()
        # The cap of q hides how far the neighbours' bound lies below it, so only uncapped bounds are compared.
        if log_q[0] < math.log1p(-1 / row.size):
            assert (there >= pate_smooth.shifted_log_q(log_q, sigma, row.size, up=False) - 1e-9).all()
        change = np.abs(
            pate.gnmax_rdp(neighbours, sigma, [order])[:, 0] - pate.gnmax_rdp(row[None], sigma, [order])[0, 0]
        )
        bound = pate_smooth.gnmax_sensitivity_at_distance(row[None], sigma, order)
        assert change.max() <= bound[0, 0] + 1e-12


@pytest.mark.few(1)
@pytest.mark.parametrize(("sigma", "order"), SMALL)
@settings(max_examples=30, deadline=None)
@given(votes=vote_rows(teachers=30), seed=st.integers(0, 1000))
def test_distances_cover_what_so_many_moves_reach(sigma: float, order: float, votes: Floats, seed: int) -> None:
    rng = np.random.default_rng(seed)
    here = votes[:1]
    reach = pate_smooth.gnmax_sensitivity_at_distance(here, sigma, order)[0]
    assert (np.diff(reach) >= -1e-12).all()
    there = here
    for distance in range(1, 12):
        options = moves(there[0])
        there = options[rng.integers(len(options))][None]
        assert pate_smooth.gnmax_sensitivity_at_distance(there, sigma, order)[0, 0] <= reach[distance] + 1e-12


@pytest.mark.few(1)
@pytest.mark.parametrize(("sigma", "order"), SMALL)
@settings(max_examples=30, deadline=None)
@given(votes=vote_rows(teachers=30), beta=st.floats(0.005, 0.1), seed=st.integers(0, 1000))
def test_smooth_sensitivity_is_smooth_and_dominates(
    sigma: float, order: float, votes: Floats, beta: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    answered = rng.random(len(votes)) < 0.5
    # One changed record changes one teacher, whose vote may change on every query.
    moved = np.stack([options[rng.integers(len(options))] for options in map(moves, votes)])
    for threshold in (None, 15.0):

        def sensitivity(given: Floats, threshold: float | None = threshold) -> float:
            return pate_smooth.smooth_sensitivity(given, sigma, order, beta, threshold, sigma, answered)

        here, there = sensitivity(votes), sensitivity(moved)
        assert math.exp(-beta) * there - 1e-12 <= here <= math.exp(beta) * there + 1e-12
    plain = pate_smooth.smooth_sensitivity(votes, sigma, order, beta)
    assert plain >= pate_smooth.gnmax_sensitivity_at_distance(votes, sigma, order)[:, 0].sum() - 1e-12


@MANY
@given(top=st.integers(0, 30), distance=st.integers(0, 29))
def test_threshold_sensitivity_covers_its_surroundings(top: int, distance: int) -> None:
    sigma1, order = 6.0, 3.0
    cost = pate.threshold_rdp(np.arange(31.0)[:, None], 20, sigma1, [order])[:, 0]
    change = np.abs(np.diff(cost))
    near = [c for i, c in enumerate(change) if max(top - distance - 1, 0) <= i <= min(top + distance, 29)]
    votes = np.array([[float(top), 30.0 - top]]) if top >= 15 else np.array([[float(top), 15.0, 15.0 - top]])
    found = pate_smooth.threshold_sensitivity_at_distance(votes, 20, sigma1, order)[0, distance]
    if top >= 15:
        assert found == pytest.approx(max(near))


def test_sanitised_release() -> None:
    votes = np.tile([214.0, 20, 16, 0, 0, 0, 0, 0, 0, 0], (50, 1))
    found = pate_smooth.sanitise(votes, GNMax(40, len(votes)), 1e-5, 14)
    draws = np.array([found.release(np.random.default_rng(seed)) for seed in range(2000)])
    assert draws.mean() == pytest.approx(found.mean, abs=4 * found.deviation / math.sqrt(2000))
    assert draws.std() == pytest.approx(found.deviation, rel=0.1)
    assert found.deviation == pytest.approx(found.smooth_sensitivity * found.sigma_ss)
    assert found.mean > gnmax_epsilon(votes, 40, 1e-5, [14])[0]
    answered = np.arange(50) < 20
    assert (
        pate_smooth.sanitise(
            votes, ConfidentGNMax(200, 150, 40, len(votes), len(votes)), 1e-5, 14, answered=answered
        ).mean
        < found.mean
    )


def test_release_refuses_what_it_cannot_do() -> None:
    votes = np.tile([214.0, 20, 16], (5, 1))
    with pytest.raises(BenchError, match="smaller beta"):
        pate_smooth.sanitise(votes, GNMax(40, len(votes)), 1e-5, 14, beta=0.05)
    with pytest.raises(BenchError, match="Renyi order"):
        pate_smooth.sanitise(votes, GNMax(40, len(votes)), 1e-5, math.nan)
    with pytest.raises(BenchError, match="more noise or another order"):
        pate_smooth.sanitise(votes, GNMax(1, len(votes)), 1e-5, 14)
    with pytest.raises(BenchError, match="delta"):
        pate_smooth.sanitise(votes, GNMax(40, len(votes)), 0, 14)


# ------------------------------------------------------------------------------------------------------ checks of votes


@pytest.mark.parametrize(
    ("votes", "said"),
    [
        ([[5, 5], [5, 4]], "row 1 does not sum to 10, as row 0 does"),
        ([[5, 5], [11, -1]], "row 1 has a negative count"),
        ([[5, 5], [5, 5], [math.nan, 5]], "row 2 has a count that is not finite"),
        ([[5, 5], [math.inf, 5]], "row 1 has a count that is not finite"),
        ([[5.5, 4.5]], "row 0 has a count that is not whole"),
        ([[0, 0]], "no teacher voted"),
        ([5, 5], "shape"),
        ([[5], [5]], "shape"),
        (np.zeros((0, 10)), "shape"),
        ([["a", "b"]], "must be numbers"),
        (np.array([[None, 1]], dtype=object), "must be numbers"),
    ],
)
def test_votes_that_cannot_be(votes: object, said: str) -> None:
    with pytest.raises(BenchError, match=said):
        check_votes(votes)  # type: ignore[arg-type]


def test_votes_of_another_number_of_teachers() -> None:
    assert check_votes([[6, 4], [10, 0]], 10).dtype == np.float64
    with pytest.raises(BenchError, match="row 0 does not sum to 11, the number of teachers"):
        check_votes([[6, 4], [10, 0]], 11)
    with pytest.raises(BenchError, match="yes or no"):
        pate.confident_rdp(check_votes([[6, 4], [10, 0]]), 5, 1, 1, answered=[True])


# ------------------------------------------------------------------------------------------------------- whole ledgers


def test_votes_of_a_whole_ledger_compose() -> None:
    votes = check_votes(np.tile([214.0, 20, 16], (50, 1)))
    answered = np.arange(50) < 20
    everything = np.ones(50, dtype=bool)
    laplace, gaussian = LNMax(0.05, 50), GNMax(40.0, 50)
    confident = ConfidentGNMax(200.0, 150.0, 40.0, 50, 50)
    (found,) = release_rows([(laplace, votes[:20], everything[:20]), (laplace, votes[20:], everything[20:])], 1e-5)
    assert (found.epsilon, found.order) == pytest.approx(pate.lnmax_epsilon(votes, 0.05, 1e-5))
    assert found.data_dependent
    assert found.sound
    assert not found.releasable
    row, _ = release_rows([(gaussian, votes, everything)], 1e-5)
    assert (row.epsilon, row.order) == pytest.approx(gnmax_epsilon(votes, 40, 1e-5))
    row, _ = release_rows([(confident, votes, answered)], 1e-5)
    expected = confident_epsilon(votes, 200, 150, 40, 1e-5, answered=answered)
    assert (row.epsilon, row.order) == pytest.approx(expected)
    (mixed,) = release_rows([(laplace, votes, everything), (gaussian, votes, everything)], 1e-5)
    assert max(found.epsilon, row.epsilon) < mixed.epsilon < found.epsilon + gnmax_epsilon(votes, 40, 1e-5)[0]
    (discrete,) = release_rows([(LNMax(0.05, 50, 1024), votes, everything)], 1e-5)
    assert not discrete.sound
    assert release_rows([], 1e-5) == []
    with pytest.raises(BenchError, match="no accountant uses the votes"):
        release_rows([(Gaussian(1.0), votes, everything)], 1e-5)
