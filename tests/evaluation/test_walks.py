"""Private sets on which a check runs a method again: a lone record, few records, other clients."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.check.check_data import CHECK_FACTS, Hub, Lone, clients_replaced, generated, lone_sets, variant_of
from bench.evaluation.check.noninterference import check_method
from bench.training.by_record import in_equal_batches
from cheats.honest import Given
from cheats.inner_functions import HonestFunction


@pytest.mark.parametrize("which", [one for one in lone_sets(100) if isinstance(one, Lone)])
def test_sets_with_a_lone_record_differ_from_their_neighbours_in_it_alone(which: Lone) -> None:
    data = generated(dataclasses.replace(CHECK_FACTS, private_records=100)).private
    alone = dataclasses.replace(which, present=False)
    for adjacency, records in ((Adjacency.ADD_REMOVE, 99), (Adjacency.REPLACE, 100)):
        first, second = (variant_of(data, one, PrivacyUnit.RECORD, adjacency, 3) for one in (which, alone))
        assert (len(first), len(second)) == (100, records)
        images, copies = first.images.unique(dim=0, return_counts=True)
        assert sorted(copies.tolist()) == [1, 99]
        (place,) = torch.nonzero((first.images == images[copies.argmin()]).flatten(1).all(1))[0].tolist()
        kept = torch.arange(100) != place
        images, labels = (second.images, second.labels) if records == 99 else (second.images[kept], second.labels[kept])
        assert torch.equal(first.images[kept], images)
        assert torch.equal(first.labels[kept], labels)
        mates = int((labels == first.labels[place]).sum())
        assert mates in ((0,) if which.apart else (which.copies - 1, which.copies) if which.copies else (99,))


@pytest.mark.parametrize("step", sorted(one.step for one in lone_sets(100) if isinstance(one, Hub)))
def test_a_hub_is_nearer_to_all_others_than_these_are_to_each_other(step: int) -> None:
    data = generated(dataclasses.replace(CHECK_FACTS, private_records=100)).private
    first = variant_of(data, Hub(step), PrivacyUnit.RECORD, Adjacency.REPLACE, 3)
    others = first.images[1:].unique(dim=0).float().flatten(1)
    assert len(others) == 16
    assert len(first.labels.unique()) == 1
    for norm in (1.0, 2.0):
        near = torch.cdist(first.images[:1].float().flatten(1), others, norm)
        apart = torch.cdist(others, others, norm)[~torch.eye(16, dtype=torch.bool)]
        assert apart.min() > 1.4 * near.max() > 0
    for adjacency, records in ((Adjacency.ADD_REMOVE, 99), (Adjacency.REPLACE, 100)):
        second = variant_of(data, Hub(step, present=False), PrivacyUnit.RECORD, adjacency, 3)
        assert len(second) == records
        assert torch.equal(second.images[-99:], first.images[1:])
        assert len(second.images.unique(dim=0)) == 16


def test_half_of_the_clients_get_other_images_under_their_labels() -> None:
    data = generated(CHECK_FACTS).private
    clients = [np.arange(first, len(data), 5) for first in range(5)]
    for which, number in (("client", 1), ("clients", 2)):
        other, changed = clients_replaced(data, clients, which, seed=3)
        moved = [not torch.equal(data.images[rows], other.images[rows]) for rows in clients]
        assert changed == sum(moved) == number
        assert torch.equal(data.labels, other.labels)


def test_one_client_gets_other_labels_of_one_class_under_its_images() -> None:
    data = generated(CHECK_FACTS).private
    clients = [np.arange(first, len(data), 5) for first in range(5)]
    other, changed = clients_replaced(data, clients, "client's labels", seed=3)
    moved = [rows for rows in clients if not torch.equal(data.labels[rows], other.labels[rows])]
    assert changed == len(moved) == 1
    assert len(other.labels[moved[0]].unique()) == 1
    assert torch.equal(data.images, other.images)


def test_products_that_test_positions_are_not_among_those_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process makes them once, so that one of two runs may make them and the other not."""
    made: list[int] = []

    class EqualBatches(HonestFunction):
        name = "equal-batches"

        def extras(self, given: Given) -> dict[str, torch.Tensor]:
            flat = given.public.images.float().flatten(1) / 255
            return {"projected": torch.cat([*in_equal_batches(lambda some: some @ flat[:4].T, flat, 16)])}

    def products() -> None:
        made.append(len(made))
        for size in range(1, 1 + len(made) % 3):
            torch.ones(size, size) @ torch.ones(size, size)

    monkeypatch.setattr("bench.evaluation.check.check_runs.require_fixed_positions", products)
    check = check_method(EqualBatches, seeds=(0,), seconds=1.0)
    assert check.ok, check.reason
    assert made


def test_a_verdict_says_if_not_all_inputs_were_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(HonestFunction):
        name = "twice"

        def answer(self, given: Given, votes: np.ndarray) -> np.ndarray:
            super().answer(given, votes)
            return super().answer(given, votes)

    said = "than they are charged for, of which 1,024 MiB were compared"
    assert said not in check_method(Twice, seeds=(0,), seconds=0.0).reason
    monkeypatch.setattr("bench.evaluation.check.tape.ROOM", 1)
    assert said in check_method(Twice, seeds=(0,), seconds=0.0).reason
