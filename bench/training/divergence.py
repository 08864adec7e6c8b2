"""Errors for losses that are not finite and for generated images that are useless."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bench.core.errors import BenchError

if TYPE_CHECKING:
    from torch import Tensor


class NotFiniteError(BenchError):
    """A loss is not finite; the message names the iteration and the term."""


class CollapsedError(BenchError):
    """Generated images are useless; the failed row shows `images` (n, channels, height, width) by `labels` (n,)."""

    def __init__(self, message: str, images: Tensor, labels: Tensor) -> None:
        super().__init__(message)
        self.images, self.labels = images, labels


def check_finite(terms: Mapping[str, Tensor], iteration: int, what: str) -> None:
    """Raise :class:`NotFiniteError`, with the iteration and the term, unless all `terms` are finite."""
    for name, value in terms.items():
        if not math.isfinite(float(value.detach())):
            raise NotFiniteError(
                f"{what} diverged at iteration {iteration}: its term {name!r} is {float(value.detach())}. Lower its "
                "learning rate."
            )
