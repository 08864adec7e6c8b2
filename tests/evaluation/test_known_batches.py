"""Batches of one run's DP-SGD that another run's passes get."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from bench.evaluation.check.known_batches import LEAST, ROOM, KnownBatch, kept_steps
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import Batch, DPSGDRun
from bench.privacy.dpsgd.gradient_forms import Gradients, Outer


def run_of(steps: int, batch: int = 8) -> DPSGDRun:
    return DPSGDRun(lambda weights: torch.optim.SGD(weights, 0.1), cross_entropy, 1.0, Flat(1.0), batch, steps, 100)


def known(rows: list[int], step: int = 0) -> KnownBatch:
    images = torch.arange(40, dtype=torch.uint8).view(10, 1, 2, 2)
    return KnownBatch.of(step, Batch(images, torch.arange(10), torch.tensor(rows, dtype=torch.int64), 7))


def digest(batch: KnownBatch, *samples: Gradients) -> str:
    batch.note(samples)
    return batch.digests[-1]


def test_all_batches_are_kept_or_the_first_and_what_there_is_room_for() -> None:
    small, large = torch.zeros(100, 1, 8, 8, dtype=torch.uint8), torch.zeros(100, 3, 224, 224)
    labels = torch.zeros(100, dtype=torch.int64)
    assert kept_steps(small, labels, run_of(21)) == set(range(21))
    assert LEAST <= len(kept_steps(large, labels, run_of(1_000, batch=100))) <= LEAST + 1
    many = kept_steps(small, labels, run_of(10**6))
    assert 0 in many
    assert 8 * 72 * (len(many) - 1) <= ROOM


def test_the_run_on_unrelated_data_gets_the_first_batch_and_half_of_the_others() -> None:
    far = [[known([1], step).far for step in range(20)] for _ in range(40)]
    assert all(halves[0] for halves in far)
    assert 300 < sum(map(sum, far)) < 500


def test_the_batch_is_that_of_the_run_and_apart_from_its_records() -> None:
    first = known([7, 2])
    again = first.again()
    again.images.zero_()
    batch = first.batch()
    assert batch.images[batch.rows].flatten(1).tolist() == [[28, 29, 30, 31], [8, 9, 10, 11]]
    assert (batch.labels[batch.rows].tolist(), batch.masks) == ([7, 2], 7)
    assert (again.key, again.far, again.digests) == (first.key, first.far, [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_gradients_have_equal_digests_and_one_bit_changes_them(dtype: torch.dtype) -> None:
    one, formed = known([1]), torch.randn(5, 3, 4).to(dtype)
    assert digest(one, formed) == digest(one, formed.mT.contiguous().mT)
    assert digest(one, formed) == digest(one.again(), formed)
    assert digest(one, formed) != digest(known([1]), formed)
    other = formed.clone()
    other.view(torch.int16).view(-1)[17] ^= 1
    assert digest(one, other) != digest(one, formed)
    assert digest(one, formed[[1, 0, 2, 3, 4]]) != digest(one, formed)


def test_gradients_of_rank_one_and_of_an_empty_batch_have_digests() -> None:
    one, left, right = known([]), torch.randn(5, 3), torch.randn(5, 4)
    assert digest(one, Outer(left, right)) == digest(one, Outer(left.clone(), right))
    assert digest(one, Outer(left.bfloat16(), right)) != digest(one, Outer(right, left.bfloat16()))
    assert digest(one, Outer(left, right)) != digest(one, Outer(left, right * (1 + 1e-6)))
    assert digest(one, torch.zeros(0, 3, 4)) == digest(one, torch.zeros(0, 3, 4))
    assert len(one.batch().rows) == 0
