"""Tapes: a replayed run gets the recorded answers whatever its inputs, and any divergence is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.check.sensitivity import Given
from bench.evaluation.check.tape import Recording, Replaying, TapeDifference
from bench.methods.dpsgd.dp_sgd import continued
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise

VOTES = np.array([[5, 3, 2], [1, 8, 1], [4, 4, 2]])
OTHER = np.array([[0, 3, 7], [9, 0, 1], [2, 2, 6]])


def source(seed: int) -> SeededNoise:
    return SeededNoise(np.random.default_rng(seed))


def pair(
    adjacency: Adjacency = Adjacency.REPLACE, unit: PrivacyUnit = PrivacyUnit.RECORD
) -> tuple[Ledger, Callable[[], tuple[Ledger, Replaying]]]:
    """Return a recording ledger, and a function that gives one that replays its tape."""
    recording = Recording(source(0))

    def replaying() -> tuple[Ledger, Replaying]:
        taping = Replaying(source(1), recording.calls)
        return Ledger(unit, adjacency, taping), taping

    return Ledger(unit, adjacency, recording), replaying


MECHANISMS: list[Callable[[Ledger, np.ndarray], np.ndarray]] = [
    lambda book, votes: book.noisy_max(votes, teachers=10, gamma=0.5),
    lambda book, votes: book.noisy_max_gaussian(votes, teachers=10, sigma=2.0),
    lambda book, votes: book.gaussian(votes, sensitivity=1.0, noise_multiplier=2.0),
    lambda book, votes: book.laplace(votes, sensitivity=1.0, noise_multiplier=2.0),
    lambda book, votes: book.confident_noisy_max(
        votes, teachers=10, threshold=6.0, sigma1=1.0, sigma2=1.0, max_answers=2
    ),
    lambda book, votes: book.tree_sum(votes, step=0, steps=4, sensitivity=1.0, noise_multiplier=2.0),
]


@pytest.mark.parametrize("ask", MECHANISMS)
def test_the_answers_are_the_tapes(ask: Callable[[Ledger, np.ndarray], np.ndarray]) -> None:
    first, replaying = pair()
    answers = [ask(first, VOTES), ask(first, OTHER)]
    second, taping = replaying()
    again = [ask(second, OTHER), ask(second, OTHER)]
    assert all(np.array_equal(a, b) for a, b in zip(answers, again, strict=True))
    assert [event.as_dict() for event in first.events] == [event.as_dict() for event in second.events]
    assert (first.asked, first.answered) == (second.asked, second.answered)
    taping.finish(second.events)
    assert taping.difference == ""
    again[0][:] = 0  # a method that changes an answer does not change the tape
    assert np.array_equal(ask(replaying()[0], VOTES), answers[0])


def test_labels_are_answered_too() -> None:
    (first, replaying), labels = pair(unit=PrivacyUnit.QUERY_LABEL), np.arange(8) % 4
    answers = [first.randomized_response(labels, epsilon=1.0, classes=4) for _ in range(2)]
    second, _ = replaying()
    again = [second.randomized_response(3 - labels, epsilon=1.0, classes=4) for _ in range(2)]
    assert all(np.array_equal(a, b) for a, b in zip(answers, again, strict=True))


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda book: book.gaussian(VOTES, sensitivity=1.0, noise_multiplier=2.0), "its call 1 is gaussian, not noisy"),
        (lambda book: book.noisy_max(VOTES, teachers=10, gamma=0.4), "call 1 of noisy_max has another gamma"),
        (lambda book: book.noisy_max(VOTES[:2], teachers=10, gamma=0.5), "call 1 of noisy_max"),
        (lambda book: [book.noisy_max(VOTES, teachers=10, gamma=0.5) for _ in range(2)], "more than 1 times"),
    ],
)
def test_another_call_leaves_the_tape(ask: Callable[[Ledger], object], says: str) -> None:
    first, replaying = pair()
    first.noisy_max(VOTES, teachers=10, gamma=0.5)
    second, taping = replaying()
    with pytest.raises(TapeDifference, match=says):
        ask(second)
    with pytest.raises(TapeDifference):  # a method that catches the error is still found
        ask(second)
    assert taping.difference


def test_too_few_calls_leave_the_tape() -> None:
    first, replaying = pair()
    first.noisy_max(VOTES, teachers=10, gamma=0.5)
    _, taping = replaying()
    taping.finish(())
    assert "0 times, not 1" in taping.difference


def trained(book: Ledger, seed: int, bias: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    images, labels = torch.rand(40, 1, 2, 2, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3, bias=bias))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1)
    run = DPSGDRun(
        lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9), torch.nn.functional.cross_entropy,
        noise_multiplier=1.0, clipping=Flat(1.0), expected_batch_size=8, steps=5, records=40,
    )  # fmt: skip
    book.dp_sgd(model, images, labels, run)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_dp_sgd_takes_its_steps_from_the_tape() -> None:
    first, replaying = pair(Adjacency.ADD_REMOVE)
    weights = trained(first, 0)
    assert not trained(pair(Adjacency.ADD_REMOVE)[0], 1).equal(weights)
    second, taping = replaying()
    assert trained(second, 1).equal(weights)
    assert [len(call.answers) for call in taping.calls] == [5]


def test_an_optimiser_that_a_method_keeps_for_its_next_call_replays() -> None:
    """Compared at the second call, it must hold nothing of the check, such as the first run's gradients."""

    def twice(book: Ledger, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        images, labels = torch.rand(40, 1, 2, 2, generator=generator), torch.randint(0, 3, (40,), generator=generator)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        run = DPSGDRun(
            continued(lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9)),
            torch.nn.functional.cross_entropy,
            noise_multiplier=1.0, clipping=Flat(1.0), expected_batch_size=8, steps=3, records=40,
        )  # fmt: skip
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.1)
        book.dp_sgd(model, images, labels, run)
        book.dp_sgd(model, images, labels, run)
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    first, replaying = pair(Adjacency.ADD_REMOVE)
    weights = twice(first, 0)
    second, taping = replaying()
    assert twice(second, 1).equal(weights)
    taping.finish(second.events)
    assert not taping.difference


def strides_seen(book: Ledger, seed: int) -> list[tuple[int, ...]]:
    """Return the strides of a convolution's gradients as an optimiser sees them."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = torch.rand(40, 3, 4, 4, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), torch.nn.AvgPool2d(2), torch.nn.Flatten())
    seen: list[tuple[int, ...]] = []

    class Watched(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            seen.extend(parameter.grad.stride() for group in self.param_groups for parameter in group["params"])
            return super().step(closure)

    run = DPSGDRun(
        lambda parameters: Watched(parameters, lr=0.5), torch.nn.functional.cross_entropy,
        noise_multiplier=1.0, clipping=Flat(1.0), expected_batch_size=8, steps=2, records=40,
    )  # fmt: skip
    book.dp_sgd(model, images, labels, run)
    return seen


def test_a_replayed_gradient_has_the_strides_of_the_recorded_one() -> None:
    first, replaying = pair(Adjacency.ADD_REMOVE)
    recorded = strides_seen(first, 0)
    second, _ = replaying()
    assert strides_seen(second, 1) == recorded


def test_dp_sgd_of_another_net_leaves_the_tape() -> None:
    first, replaying = pair(Adjacency.ADD_REMOVE)
    trained(first, 0)
    second, _ = replaying()
    with pytest.raises(TapeDifference, match="call 1 of dp_sgd has another model"):
        trained(second, 1, bias=False)


@pytest.mark.parametrize(("leaks", "moved"), [(False, 1.0), (True, 16.0)])
def test_a_function_that_uses_more_than_its_sample_moves_other_parts(leaks: bool, moved: float) -> None:
    given = []
    for value in (1.0, 2.0):  # of the last record
        images = torch.ones(20, 2)
        images[-1] = value
        everyone = images.clone()
        taping = Recording(source(0))
        book = Ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, taping)
        book.sampled_function(
            lambda rows, labels, used=everyone if leaks else None: (rows if used is None else used).sum(0).numpy(),
            images, torch.zeros(20), entries=2, max_norm=100.0, sampling_rate=0.1, noise_multiplier=1.0,
        )  # fmt: skip
        given += taping.given
    assert given[0].moved(given[1]) == moved


def test_large_inputs_are_compared_by_a_digest_of_each_record() -> None:
    values = np.random.default_rng(0).normal(size=(1, 40, 4000))
    values[0, 3, 7] = np.nan
    moved = values.copy()
    moved[0, [5, 9], 11] += 1e-9
    first, second = (Given("dp_sgd", each, "records", 1.0).packed() for each in (values, moved))
    assert first.values.shape == (1, 40)
    assert first.moved(second) == 2
    assert first.without(5).moved(second.without(5)) == 1
    assert first.moved(Given("dp_sgd", values.copy(), "records", 1.0).packed()) == 0
    small = Given("dp_sgd", values[:, :, :3], "records", 1.0)
    assert small.packed() is small
    sums = Given("gaussian", values, "l2", 1.0)
    assert sums.packed() is sums
