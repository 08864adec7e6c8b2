"""The gradients of each example for one parameter, formed or as factors: their norms, weighted sums and parts.

A linear layer that sees one vector per example has gradients of rank one: their norms are products of norms, and a
weighted sum of them is one matrix product (Goodfellow, arXiv:1510.01799), so they are never formed. On a short sequence
of vectors a gradient has low rank, and its norm follows from the products of the vectors with each other (Li et al.,
arXiv:2110.05679). Cancellation in float32 could make that norm too small, so that a gradient escapes clipping;
:func:`norms` adds a bound on all rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.core.precision import arithmetic

SUMMED = 4096  # squares added up in float32, as margins.FLOAT32_SUMS says; of a million, a norm loses a thousandth
_TINY = 1e-15  # squares below 1e-45 are 0 in float32; this hides no factor of a norm and changes no norm above 1e-8


@dataclass(frozen=True, slots=True)
class Outer:
    """Gradients of low rank: outer products of the rows of `left` (n, outputs) and `right` (n, inputs).

    For sequences, `left` is (n, length, outputs) and `right` (n, length, inputs), and a gradient is the sum over them.
    """

    left: Tensor
    right: Tensor


Gradients = Tensor | Outer
"""One parameter's gradient for each of n examples: (n, *shape), or not formed."""


def picked(gradients: Gradients, rows: Sequence[int] | slice) -> Tensor:
    """Return the gradients of the examples `rows`, formed."""
    if isinstance(gradients, Outer):
        left, right = gradients.left[rows], gradients.right[rows]
        return left[:, :, None] * right[:, None] if left.dim() == 2 else left.mT @ right
    return gradients[rows]


def filled(gradients: Gradients, size: int) -> Tensor:
    """Return the gradients, formed, with zeros for further examples up to `size`."""
    formed = picked(gradients, slice(None))
    missing = size - len(formed)
    return torch.cat([formed, formed.new_zeros(missing, *formed.shape[1:])]) if missing > 0 else formed


def without(gradients: Gradients, rows: Tensor) -> Gradients:
    """Return a copy of the gradients with zeros for the examples `rows`."""
    if isinstance(gradients, Outer):
        return Outer(gradients.left.index_fill(0, rows, 0.0), gradients.right.index_fill(0, rows, 0.0))
    return gradients.index_fill(0, rows, 0.0)


def keep_largest(gradients: Sequence[Gradients], count: int) -> list[Tensor]:
    """Return the gradients of all parameters, formed, with only the `count` largest entries of each example.

    The others are set to zero, in place if already formed. Entries tied with the smallest kept one also stay. A
    non-finite gradient keeps a non-finite entry.
    """
    formed = [picked(gradient, slice(None)) for gradient in gradients]
    for start in range(0, len(formed[0]), 16):  # few enough to fit the processor's cache
        parts = [gradient[start : start + 16] for gradient in formed]
        sizes = torch.cat([part.flatten(1).abs() for part in parts], 1).cpu().numpy()
        place = sizes.shape[1] - count
        sizes.partition(place, axis=1)  # half the time of torch's topk
        least = torch.from_numpy(sizes[:, place]).to(parts[0].device)
        for part in parts:
            part *= part.abs() >= least.view(-1, *[1] * (part.dim() - 1))  # multiply, as NaN times zero is NaN
    return formed


def norms(gradients: Gradients) -> Tensor:
    """Return the L2 norms (n,) of the gradients; non-finite if a gradient is. Those of sequences are upper bounds."""
    if isinstance(gradients, Outer):
        if gradients.left.dim() == 3:
            return _norms_of_sequences(gradients.left, gradients.right)
        return (norms(gradients.left) + _TINY) * (norms(gradients.right) + _TINY)
    order = _memory_order(gradients)
    flat = gradients[..., None].permute(0, *order, gradients.dim()).flatten(1)
    if flat.stride(1) != 1:  # torch would add up in one sum, not in eight
        flat = flat.contiguous()
    parts = [torch.linalg.vector_norm(part, dim=1) for part in torch.split(flat, SUMMED, dim=1)]
    found: Tensor = torch.stack(parts, 1).double().norm(dim=1).to(gradients.dtype)
    return found


def _norms_of_sequences(left: Tensor, right: Tensor) -> Tensor:
    """Return upper bounds (n,) on the norms of ``left.mT @ right`` and of what :func:`weighted_sum` adds up for it.

    A squared norm is the sum over all pairs of positions of the product of two inner products. By the standard bound on
    the rounding of inner products, whatever their order, the computed square is off by at most ``sizes**2`` times twice
    the number of roundings times 2**-24, and the summed gradient by `sizes` times `length` roundings.
    """
    length, width = left.shape[1], left.shape[2] + right.shape[2]
    with arithmetic("float32", left.device):
        squares = (left @ left.mT).double().mul_(right @ right.mT).sum((1, 2))
    sizes = ((left.norm(dim=2).double() + _TINY) * (right.norm(dim=2).double() + _TINY)).sum(1)
    bounds = (squares.abs() + (width + 8) * 2.0**-23 * sizes.square()).sqrt() + length * 2.0**-23 * sizes
    found: Tensor = bounds.to(left.dtype)
    return found


def _memory_order(gradients: Tensor) -> list[int]:
    """Return the axes after the first by decreasing stride; in another order, a flat view would be a copy."""
    return sorted(range(1, gradients.dim()), key=gradients.stride, reverse=True)


def weighted_sum(gradients: Gradients, factors: Tensor) -> Tensor:
    """Return the sum of gradients times `factors` (n,), in float32: TensorFloat-32 could exceed the clipping norm."""
    with arithmetic("float32", factors.device):
        if isinstance(gradients, Outer):
            left, right, scales = gradients.left, gradients.right, factors.view(-1, *[1] * (gradients.left.dim() - 1))
            left, right = (left * scales, right) if left.shape[-1] <= right.shape[-1] else (left, right * scales)
            return left.flatten(0, -2).T @ right.flatten(0, -2)
        order = _memory_order(gradients)
        summed: Tensor = torch.tensordot(factors, gradients.permute(0, *order), dims=1)
    return summed.permute([order.index(place) for place in range(1, gradients.dim())])
