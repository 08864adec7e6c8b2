"""Values computed from one record are bit-identical, whatever the other records."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from bench.core.errors import BenchError
from bench.core.fixed_products import SETTING
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.evaluation.check.shaped_kernels import ShapedKernels
from bench.models.build import build
from bench.models.frozen_backbone import random_backbone
from bench.storage.cache import Cache
from bench.training.by_record import STEPS, in_equal_batches, nearest, require_fixed_positions
from bench.training.context import Context
from bench.training.features import Part, features_of, student_logits


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


@given(records=st.integers(0, 23), size=st.integers(1, 9))
@settings(deadline=None, max_examples=40)
def test_every_batch_has_one_shape_and_every_row_is_there(records: int, size: int) -> None:
    rows, shapes = drawn(records, records, 2, 3), []

    def doubled(batch: torch.Tensor) -> torch.Tensor:
        shapes.append(batch.shape)
        return 2 * batch.int()

    found = torch.cat([*in_equal_batches(doubled, rows, size)])
    assert torch.equal(found, 2 * rows.int())
    assert set(shapes) <= {(size, 2, 3)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inner", [1, 2, 3, 7, 16, 25, 50, 250, 784])
def test_products_of_the_others_stay_where_one_record_is_absent(dtype: torch.dtype, inner: int) -> None:
    """MKL on AMD processors sums a row by the alignment of its address, unless told otherwise."""
    rows, weight = torch.randn(103, inner, dtype=dtype), torch.randn(10, inner, dtype=dtype)
    found, without = (torch.cat([*in_equal_batches(lambda some: some @ weight.T, r, 50)]) for r in (rows, rows[1:]))
    assert torch.equal(found[1:], without)


class _ByPosition(TorchFunctionMode):
    """Adds to each row of a product what depends on its position."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found + torch.arange(len(found))[:, None] if func is torch.Tensor.matmul else found


def test_products_that_depend_on_positions_are_refused() -> None:
    require_fixed_positions.cache_clear()
    with _ByPosition(), pytest.raises(BenchError, match="MKL_CBWR=AVX2 before Python starts"):
        next(in_equal_batches(lambda some: some, torch.ones(3, 2), 2))


def test_torch_may_multiply_before_bench_is_imported_only_where_positions_do_not_matter() -> None:
    """Whether they do depends on the processor."""
    code = """
import torch
torch.ones(9, 9) @ torch.ones(9, 9)
from bench.core.errors import BenchError
from bench.training.by_record import in_equal_batches
rows, weight = torch.randn(99, 250), torch.randn(10, 250)
try:
    found = [torch.cat([*in_equal_batches(lambda some: some @ weight.T, r, 50)]) for r in (rows, rows[1:])]
except BenchError as error:
    assert "Import bench before torch multiplies" in str(error)
else:
    assert torch.equal(found[0][1:], found[1])
"""
    unset = {name: value for name, value in os.environ.items() if name != SETTING}
    subprocess.run([sys.executable, "-c", code], env=unset, check=True)


@given(seed=st.integers(0, 2**31), records=st.integers(1, 9), points=st.integers(1, 60), side=st.integers(1, 28))
@settings(deadline=None, max_examples=60)
def test_the_nearest_point_is_that_of_whole_numbers(seed: int, records: int, points: int, side: int) -> None:
    """Python's integers do not round; the points are sums of eight grey levels, as in Sim-PE, with repeats."""
    images, sums = drawn(seed, records, side), drawn(seed + 1, max(1, points // 2), side, 8).long().sum(2)
    sums = sums.repeat(2, 1)[:points]
    found = nearest(images, sums.double() / (8 * 255))
    for image, own in zip((8 * images.long()).tolist(), found.tolist(), strict=True):
        distances = [sum((a - b) ** 2 for a, b in zip(image, point, strict=True)) for point in sums.tolist()]
        assert own == int(np.argmin(distances))


@pytest.mark.parametrize("pixels", [1, 784, 3 * 224 * 224])
def test_no_product_of_nearest_is_rounded(pixels: int) -> None:
    """Tries the largest and the finest values that occur: float64 represents every partial sum."""
    largest = pixels * 255 * 255 * STEPS
    assert largest < 2**53
    image, point = torch.full((1, pixels), 255.0).double(), torch.full((1, pixels), 255 - 1 / STEPS).double()
    assert int((image @ point.T)[0, 0] * STEPS) == pixels * 255 * (255 * STEPS - 1)


def test_near_ties_do_not_depend_on_the_other_records() -> None:
    """A thousand candidates are variations of a few, as in the last iteration of Sim-PE."""
    points = (drawn(0, 20, 64).float() / 255).repeat(50, 1) + 1e-4 * torch.rand(1000, 64)
    images = drawn(1, 300, 64)
    alone = torch.cat([nearest(image[None], points) for image in images])
    assert torch.equal(nearest(images, points), alone)
    assert torch.equal(nearest(images.flip(0), points, size=7).flip(0), alone)
    with ShapedKernels(expected=()):
        assert torch.equal(nearest(images[:3], points), alone[:3])


@pytest.mark.parametrize(("name", "channels", "size"), [("small_cnn", 1, 0), ("test_resnet", 3, 32)])
def test_features_of_the_others_stay_where_one_record_is_absent(name: str, channels: int, size: int) -> None:
    fixed = random_backbone(name, channels, size, (1, 8, 8), seed=0)

    def features(images: torch.Tensor) -> torch.Tensor:
        context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
        return features_of(images, fixed, context, "private")

    some = drawn(2, 103, 1, 8, 8)
    every = features(some)
    for records in (*range(1, 10), 17, 50, 51, 100, 101, 103):
        for absent in {0, records // 2, records - 1}:
            kept = torch.arange(records) != absent
            assert torch.equal(features(some[:records][kept]), every[:records][kept]), (records, absent)


@pytest.mark.parametrize("name", ["small_cnn", "salimans_mlp", "scatter_linear"])
def test_private_logits_of_the_others_stay_where_one_record_is_absent(name: str) -> None:
    """The noisy score of `bench tune` is charged for one answer of a student that changes."""
    torch.manual_seed(0)
    student, images = build(name, 3, 1, 8), drawn(3, 7, 1, 8, 8)

    def logits(some: torch.Tensor, part: Part) -> torch.Tensor:
        context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
        with ShapedKernels(expected=()):
            return student_logits(student, some, context, part)

    assert torch.equal(logits(images, "private")[1:], logits(images[1:], "private"))
    assert not torch.equal(logits(images, "test")[1:], logits(images[1:], "test"))


def test_kernels_that_depend_on_shapes_change_every_float32_product() -> None:
    a, b = torch.rand(5, 4), torch.rand(4, 3)
    image, kernel = torch.rand(2, 1, 6, 6), torch.rand(1, 1, 3, 3)
    whole, part = a @ b, a[:4] @ b
    with ShapedKernels(expected=()):
        assert not torch.equal(a @ b, whole)
        assert torch.equal(a @ b, a @ b)
        assert not torch.equal((a @ b)[:4], a[:4] @ b)
        assert torch.equal(a.double() @ b.double(), a.double() @ b.double())
        conv = torch.nn.functional.conv2d(image, kernel)
        assert not torch.equal(conv[:1], torch.nn.functional.conv2d(image[:1], kernel))
        assert torch.equal(a + 1, a.add(1))
        rows, points = torch.rand(40, 4), torch.rand(50, 4)
        assert not torch.equal(torch.cdist(rows, points)[:30], torch.cdist(rows[:30], points))
        sequences = torch.rand(3, 1, 5, 8)
        attended = torch.nn.functional.scaled_dot_product_attention(sequences, sequences, sequences)
        fewer = torch.nn.functional.scaled_dot_product_attention(*[sequences[:2]] * 3)
        assert not torch.equal(attended[:2], fewer)
    torch.testing.assert_close(whole[:4], part)


def test_products_of_the_expected_shapes_stay() -> None:
    a, b = torch.rand(5, 4), torch.rand(4, 3)
    with ShapedKernels() as noted:
        whole, other = a @ b, b.T @ b
    with ShapedKernels(noted.products):
        assert torch.equal(a @ b, whole)
        assert torch.equal(b.T @ b, other)
    with ShapedKernels(noted.products):
        assert not torch.equal(a[:4] @ b, whole[:4])  # in place of the first
        assert torch.equal(b.T @ b, other)
    with ShapedKernels(noted.products):
        a.sum()
        torch.mv(b.T, b[:, 0])  # an unexpected operation: from here on all shapes are compared
        assert torch.equal(b.T @ b, other)
        assert not torch.equal(a[:2] @ b, whole[:2])
