"""Floating-point rounding never takes one record's contribution beyond the charged sensitivity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.methods.distillation.annotation import bounded
from bench.methods.generative.mean_embedding import embedded
from bench.methods.generative.pca_vae import clipped
from bench.methods.linear.family import clipped_sum
from bench.methods.pate.pate_ridge import normalised
from bench.methods.shared.clipping import clipped_rows
from bench.privacy.dpsgd.gradient_forms import Outer, weighted_sum
from bench.privacy.mechanisms import mechanisms


def exact_norms(rows: Any) -> np.ndarray:
    """Return the L2 norms of rows to many more digits than those of a double."""
    return np.array([math.sqrt(math.fsum(float(value) ** 2 for value in row)) for row in np.asarray(rows)])


def rows_of(seed: int, size: float, kind: torch.dtype, width: int = 300) -> torch.Tensor:
    return size * torch.randn(40, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(kind)


SEEDS, SIZES = st.integers(0, 10**6), st.sampled_from([1e-3, 1.0, 1e4])


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, size=SIZES, norm=st.sampled_from([0.25, 1.0, 3.0]))
def test_rows_that_are_clipped_or_normalised_stay_within_the_norm(seed: int, size: float, norm: float) -> None:
    rows = rows_of(seed, size, torch.float64)
    assert exact_norms(torch.cat(list(clipped_rows(rows, norm)))).max() <= norm
    assert exact_norms(clipped(rows, norm)).max() <= norm
    assert exact_norms(mechanisms.clipped(rows.numpy(), norm)).max() <= norm
    assert exact_norms(normalised(rows).flatten()[None]).max() <= 1
    assert exact_norms(bounded(rows, "clip", norm, 0.0)).max() <= 1
    assert exact_norms(bounded(rows, "normalise", norm, 1e-12)).max() <= 1
    frequencies = torch.randn(500, 300, generator=torch.Generator().manual_seed(seed))
    assert exact_norms(embedded(rows.float().view(40, 1, 15, 20), frequencies)).max() <= 1
    one = [
        clipped_sum(rows_of(seed + 1, 1.0, torch.float64)[:10], row[None], torch.zeros(1).long(), norm) for row in rows
    ]
    assert exact_norms(torch.stack(one).flatten(1)).max() <= norm


@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, size=SIZES, layers=st.booleans())
def test_clipped_gradients_of_examples_stay_within_the_norm(seed: int, size: float, layers: bool) -> None:
    """Gradients of thousands of norms: 1e-6 added to a norm is no margin for them."""
    from bench.privacy.dpsgd.clipping import Flat, PerLayer

    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in (300, 7, 2000)]
    samples = [rows_of(seed + i, size, torch.float32, len(one)) for i, one in enumerate(parameters)]
    clipping = PerLayer(1.5) if layers else Flat(1.5)
    clipping.begin(["0.weight", "0.bias", "1.weight"], parameters, 1.0, 1)
    kept, factors = clipping.clipped(samples)
    found = [(sample * factor[:, None]) for sample, factor in zip(kept, factors, strict=True)]
    assert exact_norms(torch.cat(found, 1)).max() <= 1.5


@settings(max_examples=25, deadline=None)
@given(
    entry=st.floats(0.5, 2.0, width=32),
    shape=st.sampled_from([(), (8192,), (32, 16, 4, 4), (16, 81, 3, 3), (300, 300), (3, 50_000), (70_000, 2)]),
    order=st.randoms(use_true_random=False),
    wide=st.booleans(),
)
def test_equal_entries_do_not_exceed_the_norm_by_their_rounding(
    entry: float, shape: Any, order: Any, wide: bool
) -> None:
    """Sums of equal squares round in one direction, whatever their order and distance in memory."""
    from bench.privacy.dpsgd.clipping import Flat

    axes, whole = list(range(len(shape) + 1)), (2, *shape)
    order.shuffle(axes)
    sample = torch.full([whole[axis] for axis in axes], entry)
    if wide:
        sample = sample[..., None].expand(*sample.shape, 2).contiguous()[..., 0]
    sample = sample.permute([axes.index(axis) for axis in range(len(shape) + 1)])
    assert sample.shape == whole
    kept, (factor,) = Flat(1.5).clipped([sample])
    found = kept[0].double() * factor.double().view(2, *[1] * len(shape))  # type: ignore[union-attr]
    assert exact_norms(found.reshape(2, -1)).max() <= 1.5


@pytest.mark.parametrize(("outputs", "inputs"), [(2, 8192), (4096, 4096), (8192, 8192)])
def test_a_gradient_of_rank_one_does_not_exceed_the_norm(outputs: int, inputs: int) -> None:
    from bench.privacy.dpsgd.clipping import Flat

    right = torch.full((2, inputs, 2), 1.1)[..., 0]  # every second number in memory
    for entry in np.linspace(0.5, 2.0, 20):
        sample = Outer(torch.full((outputs, 2), float(np.float32(entry))).T, right)
        _, (factor,) = Flat(1.5).clipped([sample])
        joint = exact_norms(sample.left) * exact_norms(sample.right) * factor.double().numpy()
        assert joint.max() <= 1.5


@settings(max_examples=20, deadline=None)
@given(
    seed=SEEDS, length=st.sampled_from([2, 17, 197]), widths=st.sampled_from([(3, 5), (64, 192), (768, 768)]),
    scales=st.tuples(*[st.sampled_from([1e-12, 1e-3, 1.0, 1e8])] * 2), distance=st.sampled_from([0.0, 1e-7, 1e-4, 1.0]),
)  # fmt: skip
def test_a_gradient_of_a_sequence_does_not_exceed_the_norm_if_its_positions_cancel(
    seed: int, length: int, widths: tuple[int, int], scales: tuple[float, float], distance: float
) -> None:
    """Each position but the last is followed by its negative, up to a relative `distance`."""
    from bench.privacy.dpsgd.clipping import Flat

    draws = torch.Generator().manual_seed(seed)
    left, right = (
        torch.randn(2, length, width, generator=draws) * size for width, size in zip(widths, scales, strict=True)
    )
    later = slice(1, 2 * (length // 2), 2)
    left[:, later] = -left[:, 0 : 2 * (length // 2) : 2] * (1 + distance * torch.randn(2, 1, 1, generator=draws))
    right[:, later] = right[:, 0 : 2 * (length // 2) : 2]
    sample = Outer(left, right)
    _, (factor,) = Flat(1.5).clipped([sample])
    exact = (left.double().mT @ right.double()).flatten(1) * factor.double()[:, None]
    assert exact_norms(exact).max() <= 1.5
    one = torch.tensor([1.0, 0.0])
    assert exact_norms(weighted_sum(sample, factor * one).flatten()[None]).max() <= 1.5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="TensorFloat-32 is arithmetic of CUDA devices")
def test_clipped_gradients_are_summed_in_float32_where_products_are_rounded() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        left, right = (rows_of(seed, 1.0, torch.float32).cuda() for seed in (0, 1))
        formed = left[:, :, None] * right[:, None]
        factors = torch.linspace(0.1, 1.0, 40).cuda()
        wanted = torch.einsum("n,nij->ij", factors.double(), formed.double())
        for gradients in (Outer(left, right), formed):
            assert (weighted_sum(gradients, factors).double() - wanted).abs().max() < 1e-5
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
