"""Each teacher depends only on its own part and random stream; votes are counted exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.core.errors import BenchError
from bench.core.seeds import Streams
from bench.training.ensemble import check_disjoint, count_votes, train_teachers
from bench.training.loop import FitSettings, predict
from bench.training.processes import worker_pool
from bench.training.teacher import Arrays, Labels, TeacherTask

TEACHERS = 5
Data = tuple[Tensor, Tensor, Tensor, TeacherTask, list[Labels]]


@pytest.fixture(scope="module")
def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    images = torch.randint(0, 256, (360, 1, 8, 8), dtype=torch.uint8, generator=generator)
    for label in range(3):
        # Use weak marks, so that queries lie near the teachers' boundaries and other weights give other votes.
        images[:60][labels == label, :, label * 2 : label * 2 + 2] //= 4
    images, queries = images[:60], images[60:]
    task = TeacherTask("small_cnn", 3, FitSettings(steps=30, batch_size=5, shift=1), {"width": 4})
    return images, labels, queries, task, np.array_split(np.random.default_rng(0).permutation(60), TEACHERS)


def labelled(data: Data, **options: Any) -> Labels:
    images, labels, queries, task, parts = data
    return train_teachers(task, images, labels, parts, Streams(3), **options).labels(queries)


class Steps:
    def __init__(self) -> None:
        self.taken: list[int] = []

    def advance(self, steps: int = 1) -> None:
        self.taken.append(steps)


def test_the_stage_moves_with_each_teacher_and_past_stored_ones(data: Data) -> None:
    images, labels, _, task, parts = data
    stored: dict[tuple[int, int], Arrays] = {}

    def keep(first: int, last: int, make: Callable[[], Arrays]) -> Arrays:
        if (first, last) not in stored:
            stored[first, last] = make()
        return stored[first, last]

    first, second = Steps(), Steps()
    train_teachers(task, images, labels, parts, Streams(3), chunk=3, keep=keep, stage=first)
    assert first.taken == [1] * TEACHERS
    del stored[0, 3]
    train_teachers(task, images, labels, parts, Streams(3), chunk=3, keep=keep, stage=second)
    assert second.taken == [1, 1, 1, 2]


@pytest.mark.slow
def test_result_is_the_same_for_every_chunk_thread_count_and_worker(data: Data) -> None:
    images, labels, queries, task, parts = data
    expected = labelled(data)
    assert expected.shape == (TEACHERS, 300)
    assert np.array_equal(expected, labelled(data, chunk=1))
    with worker_pool(2) as pool:
        assert pool is not None
        ensemble = train_teachers(task, images, labels, parts, Streams(3), chunk=2, pool=pool)
        assert np.array_equal(expected, ensemble.labels(queries, pool))
    with worker_pool(1) as none, worker_pool(2, "cuda") as neither:
        assert none is None
        assert neither is None
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert np.array_equal(expected, labelled(data, chunk=3))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert len({row.tobytes() for row in expected}) > 1


def test_logits_labels_and_single_teachers_agree(data: Data) -> None:
    images, labels, queries, task, parts = data
    ensemble = train_teachers(task, images, labels, parts, Streams(3))
    logits = ensemble.logits(queries)
    assert logits.shape == (TEACHERS, 300, 3)
    assert np.array_equal(logits.argmax(2).numpy(), ensemble.labels(queries))
    assert torch.equal(predict(ensemble.teacher(2), queries), logits[2])
    assert len(ensemble) == TEACHERS


def test_one_record_changes_one_teacher(data: Data) -> None:
    images, labels, queries, task, parts = data
    expected = labelled(data)
    for teacher in (0, 3):
        record = int(parts[teacher][2])
        other_images, other_labels = images.clone(), labels.clone()
        other_images[record] = 255 - other_images[record]
        other_labels[record] = (other_labels[record] + 1) % 3
        found = train_teachers(task, other_images, other_labels, parts, Streams(3)).labels(queries)
        changed = [number for number in range(TEACHERS) if not np.array_equal(found[number], expected[number])]
        assert changed == [teacher]
        assert np.abs(count_votes(found, 3) - count_votes(expected, 3)).sum(1).max() <= 2


def test_other_teachers_and_the_global_generator_do_not_matter(data: Data) -> None:
    images, labels, queries, task, parts = data
    expected = labelled(data)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert np.array_equal(train_teachers(task, images, labels, parts[:2], Streams(3)).labels(queries), expected[:2])
    assert torch.equal(torch.get_rng_state(), state)
    other = train_teachers(task, images, labels, parts, Streams(4)).labels(queries)
    assert not np.array_equal(other, expected)


def test_a_killed_run_continues_from_its_chunks(data: Data) -> None:
    stored: dict[tuple[int, int], Arrays] = {}

    def keep(first: int, last: int, make: Callable[[], Arrays]) -> Arrays:
        if (first, last) not in stored:
            if len(stored) == limit:
                raise KeyboardInterrupt
            stored[first, last] = make()
        return stored[first, last]

    limit = 2
    with pytest.raises(KeyboardInterrupt):
        labelled(data, chunk=2, keep=keep)
    assert list(stored) == [(0, 2), (2, 4)]
    limit = 99
    assert np.array_equal(labelled(data, chunk=2, keep=keep), labelled(data))


def test_a_class_missing_from_a_part_stays_among_the_outputs(data: Data) -> None:
    images, labels, queries, task, parts = data
    only_one = labels.clone()
    only_one[torch.from_numpy(parts[0])] = 1
    found = train_teachers(task, images, only_one, parts, Streams(3)).labels(queries)
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


@pytest.mark.few(1)
@pytest.mark.parametrize("stop", [7, 31, 65, 149])
def test_a_chunk_goes_on_where_it_was_killed(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    from bench.storage import checkpoint
    from bench.storage.cache import Cache
    from bench.training import teacher

    images, labels, _, task, parts = data
    whole = train_teachers(task, images, labels, parts, Streams(3))
    cache, calls, fit = Cache(tmp_path, {}), [0], teacher.fit
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)

    class Killed(Exception):
        pass

    class Stage:
        def advance(self, steps: int = 1) -> None:
            calls[0] += steps
            if calls[0] == stop:
                raise Killed

    def watched_fit(*given: Any, **options: Any) -> Any:
        return fit(*given, **options, stage=Stage())

    monkeypatch.setattr(teacher, "fit", watched_fit)

    def train() -> Any:
        return train_teachers(
            task, images, labels, parts, Streams(3),
            checkpoint=lambda kind, number: checkpoint.Checkpoint(cache, kind, {"number": number}),
        )  # fmt: skip

    with pytest.raises(Killed):
        train()
    steps = calls[0]
    resumed = train()
    for name, array in whole.states.items():
        assert np.array_equal(array, resumed.states[name], equal_nan=True)
    # 30 steps for each of 5 teachers; a resumed stage is told which steps it can skip.
    finished = (steps - 1) // 30
    assert calls[0] - steps == 150 - 30 * finished
    assert not list(tmp_path.glob("checkpoint-*"))
