"""Mechanisms on Poisson samples: their events against dp-accounting, the dominating pairs, and the ledger's checks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.accounting.accountants import account, proven, replace_one
from bench.privacy.events import losses
from bench.privacy.events.events import DPSGD, Event, GNMax, SampledGaussian, SampledGNMax
from bench.privacy.mechanisms import mechanisms
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise, ZeroNoise
from helpers.by_dp_accounting import by_dp_accounting
from helpers.draws import DELTA, best
from helpers.ledgers import seeded_ledger

FEW = settings(max_examples=10, deadline=None)
ADD_REMOVE, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE
rates = st.floats(0.01, 1.0)
noises = st.floats(0.7, 20.0)


def ledger(adjacency: Adjacency = ADD_REMOVE) -> Ledger:
    return seeded_ledger(PrivacyUnit.RECORD, adjacency, np.random.default_rng(3))


# ------------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(("rate", "sigma", "queries"), [(0.05, 4.0, 200), (0.3, 10.0, 50), (0.01, 2.0, 500)])
def test_sampled_votes_cost_what_dp_accounting_says(rate: float, sigma: float, queries: int) -> None:
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    wanted = by_dp_accounting(rate, sigma / math.sqrt(2), queries, relation, 1e-5)
    assert proven([SampledGNMax(rate, sigma, queries)], 1e-5).epsilon == pytest.approx(wanted, abs=1e-3)
    same = SampledGaussian(rate, sigma / math.sqrt(2), queries), DPSGD(rate, sigma / math.sqrt(2), queries)
    for event in same:
        assert proven([event], 1e-5).epsilon == pytest.approx(wanted, abs=1e-3)
        assert replace_one([event], 1e-5) == replace_one([same[0]], 1e-5)


@FEW
@given(sigma=noises, queries=st.integers(1, 50))
def test_without_sampling_the_votes_are_those_of_gnmax(sigma: float, queries: int) -> None:
    whole = proven([GNMax(sigma, queries)], 1e-5).epsilon
    assert proven([SampledGNMax(1.0, sigma, queries)], 1e-5).epsilon == pytest.approx(whole, rel=1e-9)
    assert replace_one([SampledGNMax(1.0, sigma, queries)], 1e-5).epsilon == pytest.approx(whole, rel=1e-9)


@pytest.mark.slow
@FEW
@given(rate=rates, more=st.floats(1.0, 1.5), sigma=noises, queries=st.integers(1, 50), replaced=st.booleans())
def test_more_sampling_costs_more_and_more_noise_less(
    rate: float, more: float, sigma: float, queries: int, replaced: bool
) -> None:
    def cost(rate: float, sigma: float) -> float:
        event: Event = SampledGNMax(min(rate, 1.0), sigma, queries)
        pld = (event.replaced() if replaced else event).pld(1e-3)
        return losses.Composed(pld, losses.rounding(queries)).epsilon(1e-5)

    here = cost(rate, sigma) * (1 - 1e-3) - 1e-3
    assert here <= cost(rate * more, sigma)
    assert cost(rate, sigma * more) * (1 - 1e-3) - 1e-3 <= cost(rate, sigma)
    assert here <= proven([GNMax(sigma, queries)], 1e-5).epsilon


@pytest.mark.few(2)
@pytest.mark.parametrize("event", [SampledGNMax(0.1, 2.0, 40), SampledGaussian(0.1, 1.0, 40), DPSGD(0.1, 1.0, 40)])
@pytest.mark.parametrize("replaced", [False, True])
def test_accountants_of_a_sampled_mechanism_agree_in_order(event: Event, replaced: bool) -> None:
    found = {row.name: row.epsilon for row in account([event.replaced() if replaced else event], 1e-5)}
    assert 0 < found["pld"] < found["rdp"] < 2 * found["pld"] + 1


# -------------------------------------------------------------------------------------------------------------- ledger


def test_the_nearest_sampled_records_vote() -> None:
    distances = np.array([[3.0, 1.0, 2.0, 1.0], [0.0, 9.0, 9.0, 9.0]])
    labels = np.array([0, 1, 1, 2])
    silent = ZeroNoise(exact=False)  # its uniform draws are 0: every record is sampled
    assert mechanisms.sampled_gnmax(distances, labels, 3, 3, 0.5, 1.0, silent).tolist() == [1, 1]
    assert mechanisms.sampled_gnmax(distances, labels, 3, 1, 0.5, 1.0, silent).tolist() == [1, 0]
    book = ledger()
    assert (
        book.sampled_noisy_max(
            np.zeros((400, 50)), np.full(50, 2), classes=3, neighbours=50, sampling_rate=0.5, sigma=0.1
        ).tolist()
        == [2] * 400
    )
    assert book.events == (SampledGNMax(0.5, 0.1, 400),)
    assert (book.asked, book.answered) == (400, 400)


def test_each_query_has_a_sample_of_its_own() -> None:
    shown = mechanisms.poisson_sample((2000, 50), 0.2, SeededNoise(np.random.default_rng(0)))
    assert shown.mean() == pytest.approx(0.2, abs=5 * math.sqrt(0.16 / shown.size))
    assert len(np.unique(shown, axis=0)) > 1900
    assert mechanisms.poisson_sample((100,), 1.0, SeededNoise(np.random.default_rng(0))).all()


@FEW
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_one_record_moves_two_counts_by_one(seed: int, neighbours: int) -> None:
    """Includes equal distances: without a fixed order among them, one record could move several votes."""
    generator = np.random.default_rng(seed)
    distances, labels = generator.integers(0, 3, (20, 12)).astype(float), generator.integers(0, 4, 12)

    class Counts(ZeroNoise):
        seen: np.ndarray

        def gaussian(self, shape: tuple[int, ...], std: float) -> np.ndarray:
            return np.zeros(shape)

    def counts(present: slice) -> np.ndarray:
        found = []
        for label in range(4):  # The real mechanism's votes, one class at a time.
            ones = (labels[present] == label).astype(np.int64)
            votes = [
                mechanisms.sampled_gnmax(distances[:, present], ones, 2, neighbours, 1.0, 1.0, Threshold(cut - 0.5))
                for cut in range(1, neighbours + 1)
            ]
            found.append(np.sum(votes, axis=0))
        return np.stack(found, axis=1)

    class Threshold(ZeroNoise):
        """Class 1 wins if its lead over class 0 exceeds the threshold."""

        def __init__(self, cut: float) -> None:
            super().__init__(exact=False)
            self.cut = cut

        def gaussian(self, shape: tuple[int, ...], std: float) -> np.ndarray:
            total = min(neighbours, size)
            return np.tile([2 * self.cut - total, 0.0], (shape[0], 1))

    size = 12
    with_it = counts(slice(0, 12))
    size = 11
    without = counts(slice(1, 12))
    moved = np.abs(with_it - without)
    assert moved.max() <= 1
    assert (moved.sum(axis=1) <= 2).all()


def test_sampled_sums_are_clipped_and_unbiased() -> None:
    values = np.zeros((2000, 3, 2))
    values[:, 0, 0], values[:, 1] = 100.0, (0.3, 0.4)
    book = ledger()
    sums = book.sampled_gaussian(values, max_norm=2.0, sampling_rate=0.25, noise_multiplier=0.01)
    assert sums.shape == (2000, 2)
    assert sums.mean(axis=0) == pytest.approx([0.25 * 2.3, 0.25 * 0.4], abs=0.1)
    assert sums.max() < 2.3 + 0.1
    assert book.events == (SampledGaussian(0.25, 0.01, 2000),)


def of_clients() -> Ledger:
    return seeded_ledger(PrivacyUnit.CLIENT, ADD_REMOVE, np.random.default_rng(3))


SENT = {"entries": 2, "max_norm": 2.0, "sampling_rate": 0.25, "noise_multiplier": 0.01}


def test_sampled_clients_alone_are_asked_and_their_updates_clipped() -> None:
    values, asked = np.array([[100.0, 0.0], [0.3, 0.4], [math.nan, 5.0]]), np.zeros(3)

    def updates(number: int) -> np.ndarray:
        asked[number] += 1
        return values[number]

    book = of_clients()
    sums = np.stack([book.sampled_updates(updates, 3, **SENT) for _ in range(2000)])
    assert asked / 2000 == pytest.approx([0.25] * 3, abs=0.05)
    assert sums.mean(axis=0) == pytest.approx([0.25 * 2.3, 0.25 * 0.4], abs=0.1)
    assert sums.max() < 2.3 + 0.1
    assert set(book.events) == {SampledGaussian(0.25, 0.01, unit=PrivacyUnit.CLIENT)}


def test_a_client_shows_no_more_than_is_charged() -> None:
    """If every client is sampled, one moves the sum by the whole norm; half the noise would fail."""
    stated, cuts = proven([SampledGaussian(1.0, 1.5)], DELTA).epsilon, (1.0, 2.0, 4.0, 6.0)

    def bound(multiplier: float) -> float:
        noise = SeededNoise(np.random.default_rng(0))
        first, second = (
            np.array([mechanisms.sampled_updates(sent.get, 1, 1, 2.0, 1.0, multiplier, noise)[0] for _ in range(3000)])
            for sent in ({0: np.array([9.0])}, {0: np.zeros(1)})
        )
        return best([(first > cut, second > cut) for cut in cuts], DELTA)

    assert 0.5 * stated < bound(1.5) < stated
    assert bound(0.75) > stated


@pytest.mark.parametrize(
    ("clients", "changed", "message"),
    [
        (0, {}, "number of clients"), (3, {"entries": 1}, r"must have the shape \(1,\), not \(2,\)"),
        (3, {"max_norm": 0.0}, "max_norm"), (3, {"sampling_rate": 2.0}, "at most 1"),
    ],
)  # fmt: skip
def test_sampled_updates_are_checked(clients: int, changed: dict[str, float], message: str) -> None:
    settings = {**SENT, "sampling_rate": 1.0, **changed}
    with pytest.raises(BenchError, match=message):
        of_clients().sampled_updates(lambda number: np.zeros(2), clients, **settings)
    with pytest.raises(BenchError, match="protects one client"):
        ledger().sampled_updates(lambda number: np.zeros(2), 3, **SENT)


# ------------------------------------------------------------------------------------------------ functions of a sample


IMAGES, LABELS = torch.arange(6.0).view(3, 2), torch.arange(3)


def test_a_function_is_given_the_sampled_records_alone_and_clipped() -> None:
    seen = np.zeros(3)

    def function(images: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
        assert torch.equal(images, IMAGES[labels])
        seen[labels.numpy()] += 1
        return np.array([3.0, 4.0]) if len(labels) else np.array([math.nan, 1.0])

    book = ledger()
    found = np.stack([book.sampled_function(function, IMAGES, LABELS, **SENT) for _ in range(2000)])
    assert seen / 2000 == pytest.approx([0.25] * 3, abs=0.05)
    assert found.mean(axis=0) == pytest.approx((1 - 0.75**3) * np.array([1.2, 1.6]), abs=0.1)
    assert np.linalg.norm(found, axis=1).max() < 2.0 + 0.3
    assert set(book.events) == {SampledGaussian(0.25, 0.01)}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6), st.floats(1e-3, 1e3), st.booleans(),
    st.sampled_from([lambda x: x, np.exp, lambda x: x - x.mean(), lambda x: -1 / x, np.sort]),
)  # fmt: skip
def test_one_record_moves_a_function_by_the_stated_sensitivity(
    values: list[float], norm: float, replaced: bool, shape: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Tries any function of the values and replaces or omits the last one; the noise is relative to twice the norm."""
    noise = np.random.default_rng(0).normal(size=3)

    def clipped(given: list[float]) -> np.ndarray:
        with np.errstate(all="ignore"):
            found = mechanisms.clipped_function(
                lambda numbers: shape(np.resize([*np.asarray(given)[numbers], 0.5], 3)), np.arange(len(given)), 3, norm
            )
        assert np.linalg.norm(found) <= norm * (1 + 1e-12)
        return found

    class Known(SeededNoise):
        def gaussian(self, size: tuple[int, ...], std: float) -> np.ndarray:
            assert std == pytest.approx(1.5 * 2 * norm)
            return noise

    other = [*values[:-1], 7.0] if replaced else values[:-1]
    assert np.linalg.norm(clipped(values) - clipped(other)) <= 2 * norm * (1 + 1e-12)
    answer = mechanisms.sampled_function(lambda numbers: noise, 1, 3, norm, 1.0, 1.5, Known(np.random.default_rng(0)))
    assert answer == pytest.approx(noise + noise * min(1, norm / np.linalg.norm(noise)))


@pytest.mark.parametrize(("rate", "least"), [(1.0, 0.5), (0.5, 0.3)])
def test_a_record_shows_no_more_through_a_function_than_is_charged(rate: float, least: float) -> None:
    """A sampled record flips the value's sign, which moves it by twice the norm; half the noise would fail."""
    stated, cuts = proven([SampledGaussian(rate, 1.5)], DELTA).epsilon, np.linspace(-2, 10, 9)

    def bound(multiplier: float) -> float:
        noise = SeededNoise(np.random.default_rng(0))
        first, second = (
            np.array(
                [
                    mechanisms.sampled_function(
                        lambda numbers: np.array([9.0 if len(numbers) else -9.0]),
                        records,
                        1,
                        2.0,
                        rate,
                        multiplier,
                        noise,
                    )[0]
                    for _ in range(3000)
                ]
            )
            for records in (1, 0)
        )
        return best([(first > cut, second > cut) for cut in cuts], DELTA)

    assert least * stated < bound(1.5) < stated
    assert bound(0.75) > stated


@pytest.mark.parametrize(
    ("records", "changed", "message"),
    [
        (3, {"entries": 1}, r"must have the shape \(1,\), not \(2,\)"),
        (3, {"max_norm": 0.0}, "max_norm"), (3, {"sampling_rate": 2.0}, "at most 1"),
    ],
)  # fmt: skip
def test_sampled_functions_are_checked(records: int, changed: dict[str, float], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        ledger().sampled_function(
            lambda images, labels: np.zeros(2), IMAGES[:records], LABELS[:records], **{**SENT, **changed}
        )


def test_what_is_given_is_checked() -> None:
    good = {"classes": 3, "neighbours": 2, "sampling_rate": 0.5, "sigma": 1.0}
    distances, labels = np.zeros((2, 4)), np.zeros(4, dtype=int)
    for changed, message in (
        ({"sampling_rate": 1.5}, "at most 1"),
        ({"neighbours": 0}, "number of neighbours"),
        ({"sigma": 0.0}, "noise of sampled GNMax"),
        ({"labels": labels[:3]}, r"labels \(records,\)"),
    ):
        book = ledger()
        given = {"distances": distances, "labels": labels, **good, **changed}
        with pytest.raises(BenchError, match=message):
            book.sampled_noisy_max(given.pop("distances"), given.pop("labels"), **given)
        assert book.events == ()
    with pytest.raises(BenchError, match="sums, records, entries"):
        ledger().sampled_gaussian(np.zeros((2, 3)), max_norm=1.0, sampling_rate=0.5, noise_multiplier=1.0)


def test_a_method_may_state_replace_neighbours() -> None:
    book = ledger(REPLACE)
    book.sampled_gaussian(np.zeros((2, 3, 1)), max_norm=1.0, sampling_rate=0.5, noise_multiplier=1.0)
    assert book.events == (SampledGaussian(0.5, 1.0, 2, adjacency=REPLACE),)
    assert proven(book.events, 1e-5) == replace_one([SampledGaussian(0.5, 1.0, 2)], 1e-5)
