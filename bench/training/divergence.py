"""A step of gradient descent; errors for losses that are not finite and for generated images that are useless."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from bench.core.errors import BenchError


class NotFiniteError(BenchError):
    """A loss is not finite; the message names the iteration and the term."""


class CollapsedError(BenchError):
    """Generated images are useless; the failed row shows `images` (n, channels, height, width) by `labels` (n,)."""

    def __init__(self, message: str, images: Tensor, labels: Tensor) -> None:
        super().__init__(message)
        self.images, self.labels = images, labels


def descend(optimizer: Optimizer, loss: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
    """Take one step of `optimizer` down the gradient of `loss`, taken only at `inputs` if given."""
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss, inputs=inputs)
    optimizer.step()


def check_finite(terms: Mapping[str, Tensor], iteration: int, what: str) -> None:
    """Raise :class:`NotFiniteError`, with the iteration and the term, unless all `terms` are finite."""
    for name, value in terms.items():
        if not math.isfinite(float(value.detach())):
            raise NotFiniteError(
                f"{what} diverged at iteration {iteration}: its term {name!r} is {float(value.detach())}. Lower its "
                "learning rate."
            )
