"""Canaries: a coin chooses between two sets that are neighbours in the sense of the claim."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.errors import BenchError
from bench.core.types import Adjacency, Facts, Family, PrivacyUnit, PrivateData
from bench.evaluation.audit.canaries import CanaryPlan, draw_canaries, place

SHAPE = (1, 12, 12)


def private(records: int = 400, classes: int = 5, seed: int = 0) -> PrivateData:
    generator = np.random.default_rng(seed)
    images = torch.from_numpy(generator.integers(0, 256, (records, *SHAPE)).astype(np.uint8))
    labels = torch.from_numpy(np.arange(records) % classes)
    return PrivateData(images, labels, Facts("made", records, 0, 10, classes, SHAPE))


PLAN = CanaryPlan(outlier=20, natural=30, mislabelled=10, duplicated=3, copies=4, seed=7)


def rows(data: PrivateData) -> list[bytes]:
    return [x.numpy().tobytes() + bytes([int(y)]) for x, y in zip(data.images, data.labels, strict=True)]


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("number", [0, 25, 55])
def test_one_coin_makes_neighbours_of_the_declared_kind(adjacency: Adjacency, number: int) -> None:
    data = private()
    canaries = draw_canaries(data, PLAN, PrivacyUnit.RECORD, adjacency)
    coins = canaries.coins(0, 0)
    other = coins.copy()
    other[number] ^= True
    first, second = place(data, canaries, coins), place(data, canaries, other)
    if adjacency is Adjacency.REPLACE:
        assert sum(x != y for x, y in zip(rows(first), rows(second), strict=True)) == 1
    else:
        longer, shorter = sorted([rows(first), rows(second)], key=len, reverse=True)
        assert len(longer) == len(shorter) + 1
        for row in shorter:
            longer.remove(row)
        assert len(longer) == 1
    # A method computes steps, rates and divisors from this number, so it must not reveal the coins.
    public = len(data) if adjacency is Adjacency.ADD_REMOVE else len(first)
    assert first.facts.private_records == second.facts.private_records == public


def test_a_duplicated_canary_changes_a_group_of_its_stated_size() -> None:
    data = private()
    canaries = draw_canaries(data, PLAN, PrivacyUnit.RECORD, Adjacency.REPLACE)
    number = int(canaries.of(Family.DUPLICATED)[0])
    coins = canaries.coins(0, 0)
    other = coins.copy()
    other[number] ^= True
    first, second = place(data, canaries, coins), place(data, canaries, other)
    assert int((first.labels != second.labels).sum()) == canaries.group(Family.DUPLICATED) == 4
    assert canaries.group(Family.OUTLIER) == 1


def test_for_the_unit_label_only_labels_ever_differ() -> None:
    data = private()
    canaries = draw_canaries(data, PLAN, PrivacyUnit.LABEL, Adjacency.REPLACE)
    first = place(data, canaries, np.zeros(len(canaries), dtype=bool))
    second = place(data, canaries, np.ones(len(canaries), dtype=bool))
    assert torch.equal(first.images, second.images)
    assert int((first.labels != second.labels).sum()) == PLAN.places()


def test_two_alternatives_of_a_canary_always_differ() -> None:
    for unit, adjacency in ((PrivacyUnit.RECORD, Adjacency.REPLACE), (PrivacyUnit.LABEL, Adjacency.REPLACE)):
        canaries = draw_canaries(private(), PLAN, unit, adjacency)
        same = (canaries.images[:, 0] == canaries.images[:, 1]).flatten(1).all(1)
        assert not bool((same & (canaries.labels[:, 0] == canaries.labels[:, 1])).any())


def test_labels_are_wrong_where_they_are_meant_to_be() -> None:
    data = private()
    canaries = draw_canaries(data, PLAN, PrivacyUnit.RECORD, Adjacency.REPLACE)
    truth = {x.numpy().tobytes(): int(y) for x, y in zip(data.images, data.labels, strict=True)}
    for number in canaries.of(Family.MISLABELLED):
        for side in (0, 1):
            assert truth[canaries.images[number, side].numpy().tobytes()] != int(canaries.labels[number, side])
    for number in canaries.of(Family.NATURAL):
        for side in (0, 1):
            assert truth[canaries.images[number, side].numpy().tobytes()] == int(canaries.labels[number, side])


def test_a_withdrawn_record_is_in_the_set_only_as_a_canary() -> None:
    data = private()
    canaries = draw_canaries(data, PLAN, PrivacyUnit.RECORD, Adjacency.REPLACE)
    coins = canaries.coins(0, 0)
    inside = set(rows(place(data, canaries, coins)))
    assert len(canaries.withdrawn) == PLAN.natural
    for position, number in zip(canaries.withdrawn, canaries.of(Family.NATURAL), strict=True):
        row = data.images[position].numpy().tobytes() + bytes([int(data.labels[position])])
        assert (row in inside) is not bool(coins[number])


def test_coins_are_fair_independent_and_do_not_move_with_other_things() -> None:
    canaries = draw_canaries(private(), PLAN, PrivacyUnit.RECORD, Adjacency.REPLACE)
    table = np.stack([canaries.coins(seed, index) for seed in range(20) for index in range(20)])
    assert abs(table.mean() - 0.5) < 0.02
    assert np.abs(np.corrcoef(table.T) - np.eye(len(canaries))).max() < 0.25
    assert np.array_equal(canaries.coins(3, 4), canaries.coins(3, 4))
    assert not np.array_equal(canaries.coins(0, 1), canaries.coins(1, 0))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(0, 40), st.integers(0, 30), st.integers(0, 5))
def test_no_class_loses_more_than_half_of_its_records(classes: int, outlier: int, natural: int, doubled: int) -> None:
    data = private(300, classes)
    plan = CanaryPlan(outlier=outlier, natural=natural, duplicated=doubled, mislabelled=1)
    canaries = draw_canaries(data, plan, PrivacyUnit.RECORD, Adjacency.REPLACE)
    given_up = np.concatenate([canaries.place, canaries.withdrawn])
    assert len(set(given_up.tolist())) == len(given_up)
    lost = np.bincount(data.labels.numpy()[given_up], minlength=classes)
    assert (lost <= np.bincount(data.labels.numpy(), minlength=classes) // 2).all()


def test_too_many_canaries_are_refused_with_the_number_that_would_do() -> None:
    with pytest.raises(BenchError, match=r"too few private records.*Lower --canaries"):
        draw_canaries(private(60), CanaryPlan(outlier=50), PrivacyUnit.RECORD, Adjacency.REPLACE)
    with pytest.raises(BenchError, match="2 or more copies"):
        CanaryPlan(outlier=1, copies=1)
