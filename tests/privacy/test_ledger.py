"""The ledger validates, charges and lets its executor answer; each argument of a mechanism is private or public."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.privacy.events.base_event import Event
from bench.privacy.events.events import Bypass, Gaussian, GNMax
from bench.privacy.events.label_events import LabelResponse, PriorRandomizedResponse, RandomizedResponse
from bench.privacy.mechanisms.charging import mechanism
from bench.privacy.mechanisms.executors import A, Call, Noisy
from bench.privacy.mechanisms.ledger import PRIVATE, Ledger
from bench.privacy.mechanisms.noise import Noise, SeededNoise, ZeroNoise
from helpers.ledgers import seeded_ledger

VOTES = np.array([[5, 3, 2], [1, 8, 1]])
GAUSSIAN = {"sensitivity": 1.0, "noise_multiplier": 2.0}
OTHERS = {
    "answered", "adjacency", "asked", "at_most", "bypass", "bypasses", "charging_again", "check_sanitised",
    "data_dependent", "events", "from_events", "private_votes", "record_level", "sanitised", "unit",
}  # fmt: skip


class Watching(Noisy):
    """Keeps the calls it answers."""

    def __init__(self, noise: Noise | None = None) -> None:
        super().__init__(noise or SeededNoise(np.random.default_rng(0)))
        self.begun: list[Call] = []
        self.calls: list[Call] = []

    def begin(self, call: Call) -> Call:
        self.begun.append(call)
        return call

    def answer(self, call: Call, release: Callable[[Noise], A]) -> A:
        self.calls.append(call)
        return super().answer(call, release)


def watched(adjacency: Adjacency = Adjacency.REPLACE, **options: Any) -> tuple[Ledger, Watching]:
    executor = Watching(**options)
    return Ledger(PrivacyUnit.RECORD, adjacency, executor), executor


def test_every_public_method_is_a_mechanism_or_releases_nothing() -> None:
    assert {name for name in dir(Ledger) if not name.startswith("_")} - OTHERS == set(PRIVATE)


@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_private_arguments_are_values_of_records(name: str) -> None:
    arguments = list(inspect.signature(getattr(Ledger, name)).parameters)
    assert set(PRIVATE[name]) < set(arguments)
    kept = {"votes", "values", "labels", "scores", "distances", "updates", "function", "images"}
    assert set(PRIVATE[name]) == kept & set(arguments)


def test_an_executor_gets_all_arguments_by_name_with_defaults_and_the_charge() -> None:
    book, executor = watched()
    book.laplace(np.ones(2), **GAUSSIAN)
    book.laplace(values=np.ones(2), entries=1, **GAUSSIAN)
    assert [call.name for call in executor.calls] == ["laplace", "laplace"]
    for call, event, entries in zip(executor.calls, book.events, (None, 1), strict=True):
        assert list(call.private) == ["values"]
        assert call.public == {**GAUSSIAN, "entries": entries}
        assert call.arguments == {**call.private, **call.public}
        assert (call.unit, call.charged) == (PrivacyUnit.RECORD, (event,))


def test_arguments_that_do_not_fit_are_one_error_with_those_that_do() -> None:
    book, _ = watched()
    with pytest.raises(BenchError, match=r"ledger\.gaussian: too many .* Its arguments are \(values, \*, sensitivity"):
        book.gaussian(np.ones(2), 1.0, noise_multiplier=2.0)  # type: ignore[misc]


def test_dp_sgd_shows_its_data_as_private_and_the_rest_as_public() -> None:
    book, executor = watched(Adjacency.ADD_REMOVE)
    run = DPSGDRun(
        lambda parameters: torch.optim.SGD(parameters, lr=0.1), torch.nn.functional.cross_entropy,
        noise_multiplier=1.0, clipping=Flat(1.0), expected_batch_size=4, steps=1, records=20,
    )  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    book.dp_sgd(model, torch.rand(20, 1, 2, 2), torch.zeros(20, dtype=torch.int64), run)
    (call,) = executor.calls
    assert set(call.private) == {"images", "labels"}
    assert call.public == {"model": model, "run": run}


def test_a_mechanism_must_name_private_arguments_that_it_has() -> None:
    def release(self: Ledger, values: Any) -> None: ...

    for names in ((), ("votes",)):
        with pytest.raises(TypeError, match="needs private arguments"):
            mechanism(*names)(release)
    assert "release" not in PRIVATE


def test_what_is_no_mechanism_gets_no_answer() -> None:
    class Forgetful(Ledger):
        def forgotten(self, values: Any) -> Any:
            return self._ask(lambda noise: noise.gaussian((1,), 1.0))

    with pytest.raises(AssertionError, match="mechanism"):
        Forgetful(PrivacyUnit.RECORD, Adjacency.REPLACE, Watching()).forgotten(1.0)


def test_an_executor_may_answer_itself_and_the_ledger_counts_its_answers() -> None:
    class Silent(Noisy):
        def answer(self, call: Call, release: Callable[[Noise], Any]) -> Any:
            return np.array([-1, 2])

    book = Ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, Silent(ZeroNoise(exact=False)))
    given = {"threshold": 1.0, "sigma1": 1.0, "sigma2": 1.0, "max_answers": 2}
    assert book.confident_noisy_max(VOTES, teachers=10, **given).tolist() == [-1, 2]
    assert (book.asked, book.answered) == (2, 1)
    assert book.private_votes()[0].answered.tolist() == [False, True]


def test_neither_a_ledger_nor_what_answers_it_can_be_copied() -> None:
    """A copy would draw the noise of the next answers."""
    executor = Noisy(ZeroNoise(exact=False))
    for held in (executor, Ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, executor)):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(BenchError, match="cannot be copied or pickled"):
                copied(held)


def test_an_executor_may_replace_arguments_before_the_charge() -> None:
    class Louder(Watching):
        def begin(self, call: Call) -> Call:
            return Call(call.name, call.unit, call.private, {**call.public, "noise_multiplier": 9.0})

    book = Ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, Louder())
    book.gaussian(np.ones(1), **GAUSSIAN)
    assert book.events == (Gaussian(9.0, unit=PrivacyUnit.RECORD, adjacency=Adjacency.REPLACE),)


@pytest.mark.parametrize(
    "ask",
    [
        lambda book: book.gaussian(np.ones(1), sensitivity=-1.0, noise_multiplier=1.0),
        lambda book: book.laplace(np.ones(1), entries=-512, **GAUSSIAN),
        lambda book: book.noisy_max(VOTES, teachers=9, gamma=1.0),
        lambda book: book.sampled_gaussian(np.ones(3), max_norm=1.0, sampling_rate=0.5, noise_multiplier=1.0),
        lambda book: book.prior_randomized_response([0, 1], np.ones((2, 2)), rows=[0, 0], epsilon=1.0),
    ],
)
def test_what_is_refused_costs_nothing_and_is_not_answered(ask: Callable[[Ledger], Any]) -> None:
    book, executor = watched()
    with pytest.raises(BenchError):
        ask(book)
    assert book.events == ()
    assert (len(executor.begun), executor.calls) == (1, [])
    book.gaussian(np.ones(1), **GAUSSIAN)
    assert len(executor.calls[0].charged) == 1


def test_a_mechanism_that_fails_is_charged_and_the_next_one_is_a_call_again() -> None:
    book, executor = watched()
    settings = {"entries": 2, "max_norm": 1.0, "sampling_rate": 1.0, "noise_multiplier": 1.0}
    with pytest.raises(ValueError, match="no client"):
        book.sampled_updates(fail, 1, **settings)
    book.gaussian(np.ones(1), **GAUSSIAN)
    assert [call.name for call in executor.calls] == ["sampled_updates", "gaussian"]
    assert len(book.events) == 2


def fail(number: int) -> Any:
    raise ValueError("no client")


def test_a_mechanism_inside_another_is_charged_and_part_of_its_call() -> None:
    book, executor = watched()

    def update(number: int) -> np.ndarray:
        return book.gaussian(np.zeros(2), **GAUSSIAN)

    book.sampled_updates(update, 2, entries=2, max_norm=1.0, sampling_rate=1.0, noise_multiplier=1.0)
    assert [call.name for call in executor.calls] == ["sampled_updates"]
    assert len(book.events) == 3


def test_answers_are_those_of_the_noise_in_the_order_of_the_calls() -> None:
    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(7))
    found = [book.gaussian(np.ones(3), **GAUSSIAN), book.laplace(np.ones(3), **GAUSSIAN)]
    generator = np.random.default_rng(7)
    assert np.array_equal(found[0], 1 + generator.normal(0.0, 2.0, 3))
    assert np.array_equal(found[1], 1 + generator.laplace(0.0, 2.0, 3))


def test_charging_again_charges_and_moves_the_noise_on_but_tells_nothing() -> None:
    books = [seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(7)) for _ in range(2)]
    books[0].gaussian(np.ones(3), **GAUSSIAN)
    with books[1].charging_again():
        assert not books[1].gaussian(np.ones(3), **GAUSSIAN).any()
        with pytest.raises(BenchError, match="does not support votes"):
            books[1].noisy_max(VOTES, teachers=10, gamma=1.0)
    later = [book.gaussian(np.ones(3), **GAUSSIAN) for book in books]
    assert np.array_equal(*later)
    assert books[0].events == books[1].events


def test_a_ledger_of_events_has_their_cost() -> None:
    events = [Event.from_dict(event.as_dict()) for event in asked_labels().events]
    for unit in PrivacyUnit:
        again = Ledger.from_events(unit, Adjacency.REPLACE, events)
        assert again.events == tuple(events)
        assert (again.record_level(1e-5) is None) == (unit not in (PrivacyUnit.LABEL, PrivacyUnit.QUERY_LABEL))
    book = Ledger.from_events(PrivacyUnit.RECORD, Adjacency.REPLACE, [GNMax(2.0, 3), Bypass("looks")])
    assert (book.bypasses, book.asked) == (["looks"], 0)
    assert asked_labels().record_level(1e-5) == Ledger.from_events(
        PrivacyUnit.QUERY_LABEL, Adjacency.REPLACE, events
    ).record_level(1e-5)


def asked_labels() -> Ledger:
    book = seeded_ledger(PrivacyUnit.QUERY_LABEL, Adjacency.REPLACE, np.random.default_rng(0))
    for _ in range(2):
        book.randomized_response(np.arange(4), epsilon=1.0, classes=4)
    return book


def test_equal_answers_for_query_labels_join_one_event() -> None:
    (event,) = asked_labels().events
    assert isinstance(event, LabelResponse)
    assert event.answers == 8


# -------------------------------------------------------------------------------------------------------------- maximum


def noisy(book: Ledger, times: int = 1, noise: float = 2.0) -> None:
    for _ in range(times):
        book.gaussian(np.ones(2), sensitivity=1.0, noise_multiplier=noise)


def test_a_declared_maximum_is_charged_whatever_is_spent() -> None:
    for spent in (0, 1, 3):
        book, executor = watched()
        book.at_most([Gaussian(2.0, 2), GNMax(3.0, 5), Gaussian(2.0)])
        noisy(book, spent)
        assert book.events == (Gaussian(2.0, 2), GNMax(3.0, 5), Gaussian(2.0))
        assert [call.charged for call in executor.calls] == [(Gaussian(2.0),)] * spent


def test_what_exceeds_a_declared_maximum_is_refused_without_an_answer() -> None:
    book, executor = watched()
    noisy(book)
    book.at_most([Gaussian(2.0, 2), GNMax(3.0, 3)])
    noisy(book, 2)
    book.noisy_max_gaussian(VOTES, teachers=10, sigma=3.0)
    before = len(executor.calls), book.events
    for exceeding in (
        lambda: noisy(book),
        lambda: noisy(book, noise=1.0),
        lambda: noisy(book, noise=4.0),
        lambda: book.noisy_max_gaussian(VOTES, teachers=10, sigma=3.0),
        lambda: book.laplace(np.ones(2), **GAUSSIAN),
    ):
        with pytest.raises(BenchError, match="declared"):
            exceeding()
    assert (len(executor.calls), book.events) == before
    book.noisy_max_gaussian(VOTES[:1], teachers=10, sigma=3.0)
    assert book.asked == 3
    assert book.data_dependent(1e-5) == []


def test_one_maximum_that_protects_as_stated() -> None:
    book, _ = watched()
    with pytest.raises(BenchError, match="protects one label"):
        book.at_most([RandomizedResponse(1.0, 10)])
    with pytest.raises(BenchError, match="protects"):
        book.at_most([Gaussian(1.0, adjacency=Adjacency.ADD_REMOVE)])
    assert book.events == ()
    book.at_most([])
    with pytest.raises(BenchError, match="one maximum"):
        book.at_most([Gaussian(2.0)])
    with pytest.raises(BenchError, match="0 such runs"):
        noisy(book)


def test_answers_of_a_maximum_are_runs_for_query_labels_alone() -> None:
    """Labels of records may be queried again and then compose."""
    event = RandomizedResponse(1.0, 3, answers=4, unit=PrivacyUnit.QUERY_LABEL)
    labels = np.array([0, 1])
    for unit, calls in ((PrivacyUnit.QUERY_LABEL, 2), (PrivacyUnit.LABEL, 0)):
        book = Ledger(unit, Adjacency.REPLACE, Watching())
        declared = dataclasses.replace(event, unit=unit)
        book.at_most([declared])
        for _ in range(calls):
            book.randomized_response(labels, epsilon=1.0, classes=3)
        with pytest.raises(BenchError, match="declared"):
            book.randomized_response(labels, epsilon=1.0, classes=3)
        assert book.events == (declared,)
    with pytest.raises(BenchError, match="rows"):
        Ledger(PrivacyUnit.LABEL, Adjacency.REPLACE, Watching()).at_most([PriorRandomizedResponse(1.0, 3)])


class Matching(Gaussian):
    """An event with little noise that compares equal to one with much noise."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(Gaussian(2.0))


def test_a_maximum_holds_the_program_s_own_events() -> None:
    book, _ = watched()
    with pytest.raises(BenchError, match="Matching is not an event of bench"):
        book.at_most([Matching(100.0)])
    assert book.events == ()


def test_no_class_takes_another_s_place_in_records() -> None:
    with pytest.raises(TypeError, match="takes the kind 'gaussian' of Gaussian"):
        type("Other", (Gaussian,), {"kind": "gaussian"})


def test_what_is_charged_does_not_change_afterwards() -> None:
    book, _ = watched()
    declared = Gaussian(2.0)
    book.at_most([declared])
    for event in (declared, *book.events):
        object.__setattr__(event, "noise_multiplier", 100.0)  # it is frozen
    assert book.events == (Gaussian(2.0),)


class Growing:
    """A number that is larger at the second read."""

    reads = 0

    def __float__(self) -> float:
        self.reads += 1
        return float(self.reads)


def test_numbers_are_read_once() -> None:
    book, executor = watched()
    book.gaussian([Growing(), 1.0], sensitivity=Growing(), noise_multiplier=2.0)  # type: ignore[arg-type,list-item]
    assert executor.calls[0].private == {"values": [1.0, 1.0]}
    assert executor.calls[0].public["sensitivity"] == 1.0
    with pytest.raises(BenchError, match="not of objects"):
        book.gaussian(np.array([Growing()]), **GAUSSIAN)


def test_noise_for_one_query_label_bounds_no_record() -> None:
    """A record may change every label, so only responses of single labels compose to a figure."""
    onehot = np.eye(10)[np.zeros(1000, dtype=np.int64)]
    for ask in (
        lambda ledger: ledger.laplace(onehot, sensitivity=2.0, noise_multiplier=1.0),
        lambda ledger: ledger.gaussian(onehot, sensitivity=2**0.5, noise_multiplier=2.0),
    ):
        ledger = Ledger(PrivacyUnit.QUERY_LABEL, Adjacency.REPLACE, Noisy(SeededNoise(np.random.default_rng(0))))
        ask(ledger)
        level = ledger.record_level(1e-5)
        assert level is not None
        assert level.epsilon == np.inf
        assert "may change all of them" in level.note
