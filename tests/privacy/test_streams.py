"""Running sums over steps: their releases, the cost of one unit, and checks of the order of steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.check.sensitivity import violation
from bench.evaluation.check.tape import Recording
from bench.privacy.accounting.accountants import proven
from bench.privacy.auditing.compared import GaussianVectors
from bench.privacy.auditing.transcript_loss import compare
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.privacy.events.gaussian_events import BandedSums, TreeSums, square_root
from bench.privacy.mechanisms.executors import A, Call, Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import Noise, SecureNoise, SeededNoise, ZeroNoise
from bench.privacy.mechanisms.streams import Banded, BinaryTree, Stream
from helpers.audits import half_noise, lower_bound
from helpers.ledgers import seeded_ledger

Kind = dict[str, int]
TREE: Kind = {}
BANDED: Kind = {"bands": 3, "separation": 4}
KINDS = pytest.mark.parametrize("kind", [TREE, BANDED], ids=["tree", "banded"])


def sums(book: Ledger, kind: Kind, leaves: np.ndarray, *, noise: float = 2.0, sensitivity: float = 1.0) -> np.ndarray:
    call = book.banded_sum if kind else book.tree_sum
    settings = {"steps": len(leaves), "sensitivity": sensitivity, "noise_multiplier": noise, **kind}
    return np.array([call(values, step=step, **settings) for step, values in enumerate(leaves)])


def ledger(noise: Noise | None = None) -> Ledger:
    return Ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, Noisy(noise or SeededNoise(np.random.default_rng(0))))


def matrix(make: Callable[[], Stream], steps: int) -> np.ndarray:
    """Return the matrix (releases, steps) by which a stream multiplies the values."""
    columns = []
    for step in range(steps):
        stream = make()
        columns.append([stream.released(np.array([float(t == step)]))[0] for t in range(steps)])
    return np.array(columns).T


def estimator(make: Callable[[], Stream], steps: int) -> np.ndarray:
    """Return the matrix (totals, releases) by which a stream computes totals from noisy releases."""
    columns = []
    for step in range(steps):
        stream, column = make(), []
        for t in range(steps):
            stream.released(np.zeros(1))
            column.append(stream.total(np.array([float(t == step)]))[0])
        columns.append(column)
    return np.array(columns).T


@KINDS
def test_without_noise_totals_are_the_sums_so_far(kind: Kind) -> None:
    leaves = np.random.default_rng(0).normal(size=(13, 2, 3))
    assert_allclose(sums(ledger(ZeroNoise(exact=False)), kind, leaves), leaves.cumsum(axis=0), atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 9, 31])
def test_a_unit_in_one_step_of_a_tree_costs_as_many_nodes_as_are_above_it(steps: int) -> None:
    squares = (matrix(BinaryTree, steps) ** 2).sum(axis=0)
    assert squares.max() == squares[0] == math.floor(math.log2(steps)) + 1
    assert TreeSums(1.0, steps).zcdp() == squares.max() / 2


@pytest.mark.parametrize("steps", [1, 5, 8, 100, 1023, 1024])
def test_a_tree_costs_what_dp_accounting_says(steps: int) -> None:
    orders = [1.5, 2.0, 8.0, 32.0]
    accountant = RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(3.0, steps), 2)
    assert_allclose(TreeSums(3.0, steps, 2).rdp(orders), accountant._rdp, rtol=1e-12)


@settings(max_examples=50, deadline=None)
@given(steps=st.integers(1, 20), shares=st.lists(st.floats(0, 1), min_size=20, max_size=20))
def test_a_unit_in_several_steps_costs_no_more_where_its_distances_add_up_to_one(
    steps: int, shares: list[float]
) -> None:
    moved = np.array(shares[:steps]) + 1e-9
    released = matrix(BinaryTree, steps) @ (moved / moved.sum())
    assert (released**2).sum() <= 2 * TreeSums(1.0, steps).zcdp() * (1 + 1e-9)


@pytest.mark.parametrize(("bands", "separation"), [(1, 1), (1, 3), (2, 2), (3, 4), (4, 4)])
@pytest.mark.parametrize("steps", [1, 2, 5, 8, 9, 11])
def test_the_sensitivity_of_bands_is_the_largest_over_all_participations(
    steps: int, bands: int, separation: int
) -> None:
    """A unit may choose a sign at each of its steps."""
    encoder = matrix(lambda: Banded(square_root(bands)), steps)
    largest = 0.0
    for signs in itertools.product((0, 1), repeat=steps):
        places = np.flatnonzero(signs)
        if (np.diff(places) >= separation).all():
            largest = max(largest, float(((encoder @ np.array(signs)) ** 2).sum()))
    assert BandedSums(1.0, steps, bands, separation).squared_sensitivity == pytest.approx(largest, rel=1e-12)


def test_bands_are_those_of_a_square_root() -> None:
    root = matrix(lambda: Banded(square_root(12)), 12)
    assert_allclose(root @ root, np.tril(np.ones((12, 12))), atol=1e-12)


@pytest.mark.parametrize("make", [BinaryTree, lambda: Banded(square_root(4))], ids=["tree", "banded"])
def test_the_noise_of_totals_is_that_of_the_estimator(make: Callable[[], Stream]) -> None:
    estimated = estimator(make, 11)
    assert_allclose(estimated @ matrix(make, 11), np.tril(np.ones((11, 11))), atol=1e-12)
    kind = TREE if make is BinaryTree else {"bands": 4, "separation": 4}
    drawn = sums(ledger(), kind, np.zeros((11, 40_000)), noise=2.0, sensitivity=3.0)
    assert_allclose(drawn.std(axis=1), 6.0 * np.linalg.norm(estimated, axis=1), rtol=0.03)


def test_a_tree_has_the_noise_of_as_many_nodes_as_its_steps_have_ones() -> None:
    squares = (estimator(BinaryTree, 40) ** 2).sum(axis=1)
    assert squares.tolist() == [(step + 1).bit_count() for step in range(40)]


def shown(kind: Kind, source: Callable[[np.random.Generator], Noise], draws: int = 100_000) -> float:
    """Return the epsilon that the best statistic refutes for a unit in every step that the separation allows."""
    steps, noise = 8, 3.0
    present = np.arange(steps) % kind.get("separation", steps) == 0
    make = (lambda: Banded(square_root(kind["bands"]))) if kind else BinaryTree
    released = matrix(make, steps) @ present
    mu = float(np.linalg.norm(released)) / noise
    outputs = []
    for seed, side in enumerate((1.0, 0.0)):
        book = ledger(source(np.random.default_rng(seed)))
        totals = sums(book, kind, np.tile(side * present[:, None], (1, draws)), noise=noise)
        noisy = np.linalg.solve(estimator(make, steps), totals)
        outputs.append(released @ noisy / np.linalg.norm(released) / noise)
        event = BandedSums(noise, steps, **kind) if kind else TreeSums(noise, steps)
        assert book.events == (event,)
        assert mu == pytest.approx(event.gaussian_mu())
    cuts = [exact_gaussian_epsilon(mu, 0.01) / mu + mu / 2, mu]
    found = max(lower_bound(outputs[0] > cut, outputs[1] > cut, 0.01) for cut in cuts)
    return found / proven([event], 0.01).epsilon


@KINDS
def test_draws_on_adjacent_values_stay_below_what_is_charged_and_show_half_the_noise(kind: Kind) -> None:
    assert 0.8 < shown(kind, lambda generator: SeededNoise(generator)) < 1
    assert shown(kind, half_noise) > 1


class Watching(Noisy):
    def __init__(self) -> None:
        super().__init__(SeededNoise(np.random.default_rng(0)))
        self.calls: list[Call] = []

    def answer(self, call: Call, release: Callable[[Noise], A]) -> A:
        self.calls.append(call)
        return super().answer(call, release)


@KINDS
def test_the_loss_of_the_transcript_is_that_of_all_that_is_released(kind: Kind) -> None:
    first = np.random.default_rng(0).normal(size=(9, 2))
    second = first.copy()
    second[[0, 4]] += [[0.3, 0.0], [0.0, 0.4]]
    calls = []
    for leaves in (first, second):
        executor = Watching()
        sums(Ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, executor), kind, leaves, noise=1.5, sensitivity=2.0)
        calls.append(executor.calls)
    compared = [compare(one.name, one.arguments, two.arguments) for one, two in zip(*calls, strict=True)]
    assert all(isinstance(one, GaussianVectors) for one in compared)
    encoder = matrix((lambda: Banded(square_root(3))) if kind else BinaryTree, 9)
    distance = np.linalg.norm(encoder @ (first - second))
    assert math.hypot(*(one.mu for one in compared)) == pytest.approx(distance / 3.0)  # type: ignore[attr-defined]
    assert [len(call.charged) for call in calls[0]] == [1] + [0] * 8


@pytest.mark.parametrize(
    ("kind", "moved", "wrong"),
    [(TREE, [3], False), (TREE, [0, 8], True), (BANDED, [0, 4, 8], False), (BANDED, [0, 3], True)],
)
def test_a_check_sees_a_record_in_more_steps_than_it_is_charged_for(kind: Kind, moved: list[int], wrong: bool) -> None:
    taped = []
    for leaves in (np.zeros((9, 2)), np.zeros((9, 2))):
        leaves[moved, 0] = len(taped)  # of the second run
        recording = Recording(ZeroNoise(exact=False))
        book = Ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, recording)
        for _ in range(2):  # each run over the steps is charged
            sums(book, kind, leaves)
        taped.append(recording.given)
    assert ("steps in a row" in violation(*taped, Adjacency.REPLACE)) == wrong
    assert not violation(*taped, Adjacency.REPLACE, records=len(moved))


def test_steps_out_of_order_and_changed_settings_are_refused() -> None:
    options = {"steps": 3, "sensitivity": 1.0, "noise_multiplier": 2.0}
    for change in ({"step": 2}, {"step": 0, "steps": 0}, {"noise_multiplier": 3.0}, {"sensitivity": 2.0}, {"steps": 4}):
        book = ledger()
        book.tree_sum(np.zeros(2), step=0, **options)
        with pytest.raises(BenchError):
            book.tree_sum(np.zeros(2), **{"step": 1, **options, **change})
        assert len(book.events) == 1
    book = ledger()
    for step in range(3):
        book.tree_sum(np.zeros(2), step=step, **options)
    with pytest.raises(BenchError, match="charged for 3 steps"):
        book.tree_sum(np.zeros(2), step=3, **options)
    book.tree_sum(np.zeros(5), step=0, **options)
    assert len(book.events) == 2
    with pytest.raises(BenchError, match="separation"):
        book.banded_sum(np.zeros(2), step=0, bands=4, separation=3, **options)
    with book.charging_again(), pytest.raises(BenchError, match="sums over steps"):
        book.tree_sum(np.zeros(5), step=1, **options)


def test_exact_noise_rounds_each_release_and_costs_no_more() -> None:
    pytest.importorskip("opendp")
    book = ledger(SecureNoise())
    totals = sums(book, TREE, np.full((4, 3), 0.1))
    assert book.events == (TreeSums(2.0, 4),)
    steps = totals / SecureNoise().grid_step(2.0, 1.0, 3 * 4**2)  # a unit may move three entries in each of four steps
    assert np.abs(steps - np.round(steps)).max() < 1e-4
    assert proven(book.events, 1e-5) == proven([TreeSums(2.0, 4)], 1e-5)


def test_a_value_that_is_not_finite_leaves_the_others_as_they_are() -> None:
    leaves = np.ones((4, 2))
    leaves[1] = [np.nan, np.inf]
    totals = sums(ledger(ZeroNoise(exact=False)), TREE, leaves)
    assert totals.tolist() == [[1, 1], [1, 1], [2, 2], [3, 3]]


def test_the_tree_of_a_seeded_ledger_repeats() -> None:
    one, two = (
        sums(seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(3)), TREE, np.zeros((5, 2)))
        for _ in range(2)
    )
    assert np.array_equal(one, two)
