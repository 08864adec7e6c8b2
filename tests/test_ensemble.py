"""Teachers: each depends on its own part and stream only, whatever is beside it; votes are counted as they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.ensemble import (
    Labels,
    TeacherTask,
    check_disjoint,
    count_votes,
    train_teachers,
)
from bench.errors import BenchError
from bench.seeds import Streams
from bench.training import FitSettings

TEACHERS = 5


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor, TeacherTask, list[Labels]]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    images = torch.randint(0, 256, (360, 1, 8, 8), dtype=torch.uint8, generator=generator)
    for label in range(3):
        # A weak mark only: the queries lie near the teachers' boundaries, so that other weights give other votes.
        images[:60][labels == label, :, label * 2 : label * 2 + 2] //= 4
    images, queries = images[:60], images[60:]
    task = TeacherTask("small_cnn", 3, queries, FitSettings(steps=30, batch_size=5, shift=1), {"width": 4})
    return images, labels, task, np.array_split(np.random.default_rng(0).permutation(60), TEACHERS)


def trained(data: tuple[Tensor, Tensor, TeacherTask, list[Labels]], **options: object) -> Labels:
    images, labels, task, parts = data
    return train_teachers(task, images, labels, parts, Streams(3), **options)  # type: ignore[arg-type]


def test_result_is_the_same_for_every_chunk_thread_count_and_worker(
    data: tuple[Tensor, Tensor, TeacherTask, list[Labels]],
) -> None:
    expected = trained(data)
    assert expected.shape == (TEACHERS, 300)
    assert np.array_equal(expected, trained(data, chunk=1))
    assert np.array_equal(expected, trained(data, chunk=2, workers=2))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert np.array_equal(expected, trained(data, chunk=3))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert len({row.tobytes() for row in expected}) > 1


def test_one_record_changes_one_teacher(data: tuple[Tensor, Tensor, TeacherTask, list[Labels]]) -> None:
    images, labels, task, parts = data
    expected = trained(data)
    for teacher in (0, 3):
        record = int(parts[teacher][2])
        other_images, other_labels = images.clone(), labels.clone()
        other_images[record] = 255 - other_images[record]
        other_labels[record] = (other_labels[record] + 1) % 3
        found = train_teachers(task, other_images, other_labels, parts, Streams(3))
        changed = [number for number in range(TEACHERS) if not np.array_equal(found[number], expected[number])]
        assert changed == [teacher]
        assert np.abs(count_votes(found, 3) - count_votes(expected, 3)).sum(1).max() <= 2


def test_other_teachers_and_the_global_generator_do_not_matter(
    data: tuple[Tensor, Tensor, TeacherTask, list[Labels]],
) -> None:
    images, labels, task, parts = data
    expected = trained(data)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert np.array_equal(train_teachers(task, images, labels, parts[:2], Streams(3)), expected[:2])
    assert torch.equal(torch.get_rng_state(), state)
    assert not np.array_equal(train_teachers(task, images, labels, parts, Streams(4)), expected)


def test_a_killed_run_continues_from_its_chunks(data: tuple[Tensor, Tensor, TeacherTask, list[Labels]]) -> None:
    stored: dict[tuple[int, int], Labels] = {}

    def keep(first: int, last: int, make: Callable[[], Labels]) -> Labels:
        if (first, last) not in stored:
            if len(stored) == limit:
                raise KeyboardInterrupt
            stored[first, last] = make()
        return stored[first, last]

    limit = 2
    with pytest.raises(KeyboardInterrupt):
        trained(data, chunk=2, keep=keep)
    assert list(stored) == [(0, 2), (2, 4)]
    limit = 99
    assert np.array_equal(trained(data, chunk=2, keep=keep), trained(data))


def test_a_class_missing_from_a_part_stays_among_the_outputs(
    data: tuple[Tensor, Tensor, TeacherTask, list[Labels]],
) -> None:
    images, labels, task, parts = data
    only_one = labels.clone()
    only_one[torch.from_numpy(parts[0])] = 1
    found = train_teachers(task, images, only_one, parts, Streams(3))
    assert count_votes(found, 3).shape == (300, 3)
    assert np.mean(found[0] == 1) > 0.9


def test_overlapping_or_foreign_parts_are_refused() -> None:
    with pytest.raises(BenchError, match="overlap"):
        check_disjoint([np.array([0, 1]), np.array([1, 2])], 5)
    with pytest.raises(BenchError, match="outside"):
        check_disjoint([np.array([0, 5])], 5)
    with pytest.raises(BenchError, match="of its own"):
        check_disjoint([np.array([0]), np.array([], dtype=np.int64)], 5)


def test_votes_are_counted() -> None:
    predictions = np.array([[0, 2], [0, 1], [2, 2]])
    assert count_votes(predictions, 4).tolist() == [[2, 0, 1, 0], [0, 1, 2, 0]]
    with pytest.raises(BenchError, match=r"outside 0\.\.1"):
        count_votes(predictions, 2)
    with pytest.raises(BenchError, match="shape"):
        count_votes(np.zeros(3, dtype=np.int64), 2)
