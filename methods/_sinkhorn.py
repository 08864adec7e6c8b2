"""Entropic optimal transport between two sets of labelled images, in the log domain."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def costs(x: Tensor, y: Tensor, own: Tensor, other: Tensor, l1: float, label: float) -> Tensor:
    """Return the squared L2 distances plus `l1` times the L1 distances (n, m) of images in [-1, 1], one-hot labels too.

    `x` (n, d) and `y` (m, d) have the labels `own` (n, classes) and `other` (m, classes), which weigh `label`.
    """
    one, two = torch.cat([x, label * own], 1), torch.cat([y, label * other], 1)
    squares = one.square().sum(1)[:, None] - 2 * one @ two.T + two.square().sum(1)[None]
    return squares + l1 * torch.cdist(one, two, p=1.0)


def transport(cost: Tensor, regularisation: float, iterations: int) -> Tensor:
    """Return ``<plan, cost>`` of uniform weights, plus `regularisation` times the plan's relative entropy.

    Its gradient is that of the cost at a fixed plan, exact where the iterations have converged. As in geomloss, the
    regularisation falls from the largest cost.
    """
    rows, columns = -math.log(cost.shape[0]), -math.log(cost.shape[1])
    with torch.no_grad():
        f, g = cost.new_zeros(len(cost)), cost.new_zeros(cost.shape[1])
        steps = torch.logspace(
            math.log10(max(float(cost.max()), regularisation)), math.log10(regularisation), iterations
        )
        for scale in steps.tolist():
            f = -scale * torch.logsumexp((g - cost) / scale + columns, 1)
            g = -scale * torch.logsumexp((f[:, None] - cost) / scale + rows, 0)
        plan = ((f[:, None] + g - cost) / regularisation + rows + columns).exp()
        entropy = regularisation * (plan * ((f[:, None] + g - cost) / regularisation)).sum()
    found: Tensor = (plan * cost).sum() + entropy
    return found
