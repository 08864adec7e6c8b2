"""Convolutions of many nets at once, on a GPU: as matrix products, or one net after the other.

Under vmap torch runs the convolutions of stacked nets as one grouped convolution. Where each net has much to compute,
these ways should be faster; `tests/performance/ensembles.py` compares them on a GPU, but nobody has run it yet. Where
each net has little to compute, torch's way stays: launching a kernel per net would cost more than the arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

LARGE = 1e8
"""Floating point operations per net from which a convolution is not left to torch; chosen without a measurement."""
NARROW = 64
"""Inputs per output value up to which the patches of all images are stored as one matrix."""

Pair = tuple[int, int]


def convolve(
    images: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return ``conv2d``; under vmap on a GPU, stacked nets with much to compute run as the module says."""
    plain = groups == 1 and not isinstance(padding, str)
    if not (plain and images.is_cuda and _share(images, weight, _pair(stride)) >= LARGE):
        return functional.conv2d(images, weight, bias, stride, padding, dilation, groups)
    found: Tensor = Apart.apply(images, weight, bias, _pair(stride), _pair(padding), _pair(dilation))  # type: ignore[no-untyped-call]
    return found


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _share(images: Tensor, weight: Tensor, stride: Pair) -> float:
    """Return about how many floating point operations one net's convolution takes, for its share of the work."""
    return 2.0 * weight.numel() * images.numel() / images.shape[1] / math.prod(stride)


class Apart(torch.autograd.Function):
    """A 2-d convolution with a rule for stacked nets."""

    @staticmethod
    def forward(
        images: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair
    ) -> Tensor:
        """Return torch's own convolution: for images and weights that vmap does not stack."""
        return functional.conv2d(images, weight, bias, stride, padding, dilation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Refuse: the rule for stacked nets differentiates outside vmap."""
        raise NotImplementedError("convolutions apart from others are differentiable only under vmap.")

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], images: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair,
        padding: Pair, dilation: Pair,
    ) -> tuple[Tensor, int]:  # fmt: skip
        """Return the outputs (nets, n, channels, height, width) of stacked inputs and weights, and their dimension."""
        shared = in_dims[1] is None and (bias is None or in_dims[2] is None)
        values = _stacked(images, in_dims[0], info.batch_size)
        if shared:
            made = functional.conv2d(values.flatten(0, 1), weight, bias, stride, padding, dilation)
            return made.view(*values.shape[:2], *made.shape[1:]), 0
        weights = _stacked(weight, in_dims[1], info.batch_size)
        if math.prod(weights.shape[2:]) <= NARROW and dilation == (1, 1):
            made = _by_patches(values, weights, stride, padding)
        else:
            flat: Tensor = OneByOne.apply(values, weights, stride, padding, dilation)  # type: ignore[no-untyped-call]
            made = flat.view(*values.shape[:2], *flat.shape[1:])
        if bias is not None:
            made += _stacked(bias, in_dims[2], info.batch_size)[:, None, :, None, None]
        return made, 0


def _stacked(values: Tensor, dim: int | None, count: int) -> Tensor:
    return values.expand(count, *values.shape) if dim is None else values.movedim(dim, 0)


def _by_patches(images: Tensor, weights: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Multiply the patches of `images` (nets, n, c, h, w) by `weights` (nets, o, c, kh, kw), net by net."""
    nets, outputs, _, high, wide = weights.shape
    padded = functional.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    patches = padded.unfold(3, high, stride[0]).unfold(4, wide, stride[1]).permute(0, 1, 3, 4, 2, 5, 6)
    rows, columns = patches.shape[2:4]
    patches = patches.flatten(4)
    inputs = patches.shape[-1]
    missing = -inputs % 8  # products of short formats are slow unless their sides are multiples of eight
    matrix = padded.new_zeros(*patches.shape[:4], inputs + missing)
    matrix[..., :inputs] = patches
    factors = functional.pad(weights.flatten(2).mT, (0, 0, 0, missing))
    return torch.bmm(matrix.flatten(1, 3), factors).view(nets, -1, rows, columns, outputs).movedim(-1, 2)


class OneByOne(torch.autograd.Function):
    """The convolutions of nets, one net after the other, with channels last in memory, as tensor cores need them."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weights: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
        """Return the outputs (nets * n, o, h, w) of images (nets, n, c, h, w) and weights (nets, o, c, kh, kw)."""
        images, weights = _channels_last(images), _channels_last(weights)
        ctx.save_for_backward(images, weights)
        ctx.options = (stride, padding, dilation)
        first = functional.conv2d(images[0], weights[0], None, stride, padding, dilation)
        size = (len(images) * len(first), *first.shape[1:])
        made = torch.empty(size, dtype=first.dtype, device=first.device, memory_format=torch.channels_last)
        for net, one in enumerate(torch.split(made, len(first))):
            own = functional.conv2d(images[net], weights[net], None, stride, padding, dilation) if net else first
            one.copy_(own)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of images and weights, where needed."""
        images, weights = ctx.saved_tensors
        gradient = torch.split(gradients[0].contiguous(memory_format=torch.channels_last), images.shape[1])
        wanted = ctx.needs_input_grad[:2]
        found = [torch.empty_like(held) if want else None for held, want in zip((images, weights), wanted, strict=True)]
        for net, own in enumerate(gradient):
            made = torch.ops.aten.convolution_backward(
                own, images[net], weights[net], None, *ctx.options, False, [0, 0], 1, [*wanted, False]
            )
            for held, one in zip(found, made[:2], strict=True):
                if held is not None:
                    held[net] = one
        return (*found, *(None for _ in ctx.options))


def _channels_last(values: Tensor) -> Tensor:
    """Return `values` (nets, n, c, h, w) with its channels last in memory."""
    flat = values.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    return flat.view(*values.shape[:2], *flat.shape[1:])
