"""Entropic optimal transport between two sets of labelled images, in the log domain."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def costs(x: Tensor, y: Tensor, l1: float) -> Tensor:
    """Return the squared L2 distances plus `l1` times the L1 distances (n, m) of the rows of `x` and of `y`."""
    squares = x.square().sum(1)[:, None] - 2 * x @ y.T + y.square().sum(1)
    return squares + l1 * torch.cdist(x, y, p=1.0)


def transport(cost: Tensor, regularisation: float, iterations: int) -> Tensor:
    """Return ``<plan, cost>`` of the plan between uniform weights with entropic `regularisation`.

    Its gradient holds the plan fixed: by the envelope theorem this is the gradient of the regularised distance, entropy
    included, once the iterations have converged. The regularisation falls geometrically from the largest cost; the last
    step makes each row's weight exact.
    """
    rows, columns = -math.log(cost.shape[0]), -math.log(cost.shape[1])
    with torch.no_grad():
        g = cost.new_zeros(cost.shape[1])
        start = max(float(cost.max()), regularisation)
        for step in range(iterations + 1):
            scale = start * (regularisation / start) ** (step / iterations)
            f = -scale * torch.logsumexp((g - cost) / scale + columns, 1)
            if step < iterations:
                g = -scale * torch.logsumexp((f[:, None] - cost) / scale + rows, 0)
        plan = ((f[:, None] + g - cost) / regularisation + rows + columns).exp()
    found: Tensor = (plan * cost).sum()
    return found
