"""One head trained by torch's own gradients: what many heads at once are compared with."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from bench.methods.shared.settings_checks import HeadSettings
from bench.models.frozen_backbone import DenseHead


def by_autograd(
    features: torch.Tensor, labels: torch.Tensor, classes: int, fitting: HeadSettings, seed: int
) -> DenseHead:
    """Train one head by torch's own gradients and optimiser, in the order that the module states."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(features.shape[1], fitting.hidden, generator=generator) * (3 * features.shape[1]) ** -0.5
    last = torch.randn(fitting.hidden, classes, generator=generator) * (3 * fitting.hidden) ** -0.5
    head = DenseHead(features.shape[1], fitting.hidden, classes)
    with torch.no_grad():
        head.first.weight.copy_(first.T)
        head.first.bias.zero_()
        head.last.weight.copy_(last.T)
        head.last.bias.zero_()
    starts = range(0, len(features), fitting.batch_size)
    order = [int(n) for _ in range(fitting.epochs) for n in torch.randperm(len(starts), generator=generator)]
    optimizer = torch.optim.SGD(head.parameters(), fitting.lr)
    for step, number in enumerate(order):
        optimizer.param_groups[0]["lr"] = fitting.lr * 0.5 * (1 + np.cos(np.pi * step / len(order)))
        batch = slice(number * fitting.batch_size, (number + 1) * fitting.batch_size)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(features[batch]), labels[batch]).backward()
        optimizer.step()
    return head
