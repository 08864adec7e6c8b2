"""Convolutions of stacked nets give what each net's own convolution gives; the choice of the way needs a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from bench.training import stacked_convolution
from bench.training.stacked_convolution import Apart, convolve

NETS = 3


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    ("channels", "side", "stride", "padding", "dilation"),
    [(1, 5, 1, 2, 1), (2, 2, 3, 0, 1), (7, 3, 2, 1, 1), (64, 5, 1, 2, 1), (30, 3, 2, 0, 2), (1, 3, 1, 0, 2)],
    ids=["patches", "patches, strided", "63 inputs", "one by one", "one by one, strided", "dilated"],
)
def test_outputs_and_gradients_are_those_of_each_net(
    channels: int, side: int, stride: int, padding: int, dilation: int
) -> None:
    torch.manual_seed(0)
    options = ((stride, stride), (padding, padding), (dilation, dilation))
    given = images, weights, biases = (
        normal(NETS, 4, channels, 13, 14), normal(NETS, 6, channels, side, side), normal(NETS, 6)
    )  # fmt: skip
    found = vmap(lambda x, w, b: Apart.apply(x, w, b, *options))(*given)
    wanted = torch.stack([functional.conv2d(x, w, b, *options) for x, w, b in zip(*given, strict=True)])
    torch.testing.assert_close(found, wanted)
    gradient = torch.randn_like(wanted)
    for one, other in zip(*(torch.autograd.grad(made, given, gradient) for made in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other)
    same = vmap(lambda w: Apart.apply(images[0], w, None, *options))(weights)
    torch.testing.assert_close(same, torch.stack([functional.conv2d(images[0], w, None, *options) for w in weights]))
    shared = vmap(lambda x: Apart.apply(x, weights[0], biases[0], *options))(images)
    torch.testing.assert_close(
        shared, torch.stack([functional.conv2d(x, weights[0], biases[0], *options) for x in images])
    )


def test_a_nan_of_one_net_stays_with_it() -> None:
    images, weights = torch.rand(NETS, 2, 64, 8, 8), torch.rand(NETS, 5, 64, 3, 3)
    images[1] = torch.nan
    made = vmap(lambda x, w: Apart.apply(x, w, None, (1, 1), (1, 1), (1, 1)))(images, weights)
    assert [bool(made[net].isfinite().all()) for net in range(NETS)] == [True, False, True]


def test_torch_keeps_what_does_not_run_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked_convolution, "LARGE", 0.0)
    monkeypatch.setattr(Apart, "apply", None)
    images, weight = torch.rand(2, 4, 8, 8), torch.rand(6, 2, 3, 3)
    assert torch.equal(
        convolve(images, weight, None, 1, "same", 1, 2), functional.conv2d(images, weight, None, 1, "same", 1, 2)
    )
