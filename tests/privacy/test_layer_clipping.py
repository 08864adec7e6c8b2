"""DP-SGD that clips layer by layer: each layer's bound, and the joint bound, which is charged."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bench.privacy.dpsgd.clipping import PerLayer
from bench.privacy.dpsgd.dp_sgd import DPSGDRun, train

CLIP = 0.1


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 5), nn.Tanh(), nn.Linear(5, 3))


def moved(images: torch.Tensor, clip: float = CLIP, model: nn.Module | None = None) -> list[torch.Tensor]:
    """Return the sum of clipped gradients of one noiseless step on all of `images`, by layer."""
    model = net() if model is None else model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = DPSGDRun(
        lambda p: torch.optim.SGD(p, lr=1.0), cross_entropy, 1e-12, PerLayer(clip), len(images), 1, len(images)
    )
    train(model, images, torch.zeros(len(images), dtype=torch.long), run, randomness=np.random.default_rng(0))
    layers: dict[str, list[torch.Tensor]] = {}
    for name, value in model.state_dict().items():
        layers.setdefault(name.rpartition(".")[0], []).append((before[name] - value).flatten() * len(images))
    return [torch.cat(parts) for parts in layers.values()]


def gradients(image: torch.Tensor) -> list[torch.Tensor]:
    model = net()
    cross_entropy(model(image[None]), torch.zeros(1, dtype=torch.long)).backward()
    layers = [layer for layer in model if list(layer.parameters())]
    return [torch.cat([p.grad.flatten() for p in layer.parameters()]) for layer in layers]


def test_each_layer_is_clipped_by_itself() -> None:
    images = torch.rand(4, 1, 4, 4)
    wanted = [torch.zeros_like(part) for part in gradients(images[0])]
    bound = CLIP / math.sqrt(3)
    for image in images:
        for total, part in zip(wanted, gradients(image), strict=True):
            total += part * min(1.0, bound / float(part.norm()))
    for found, part in zip(moved(images), wanted, strict=True):
        torch.testing.assert_close(found, part, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_one_record_moves_the_sum_by_the_norm_that_is_charged_for_at_most(size: float) -> None:
    images = torch.rand(3, 1, 4, 4)
    images[0] *= size
    first, second = moved(images), moved(images[1:])
    distances = [float((a - b).norm()) for a, b in zip(first, second, strict=True)]
    assert max(distances) <= CLIP / math.sqrt(3) * 1.001
    assert math.hypot(*distances) <= CLIP * 1.001
    if size >= 1:
        assert math.hypot(*distances) == pytest.approx(CLIP, rel=0.01), "all layers are at their bound"


def test_a_gradient_without_a_norm_in_one_layer_counts_in_none() -> None:
    images = torch.rand(3, 1, 4, 4)
    images[0] = math.inf
    for found, wanted in zip(moved(images), moved(images[1:]), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


def test_weights_that_layers_share_are_clipped_once() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 9))
    model[3].weight = model[1].weight
    before = [parameter.detach().clone() for parameter in model.parameters()]
    moved(torch.rand(1, 1, 3, 3), model=model)
    parts = [float((a - b).detach().norm()) for a, b in zip(before, model.parameters(), strict=True)]
    assert math.hypot(*parts) == pytest.approx(CLIP, rel=0.01)
