"""The error for losses that are not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from bench.core.errors import BenchError


class NotFiniteError(BenchError):
    """A loss is not finite; the message names the iteration and the term."""


def check_finite(terms: Mapping[str, Tensor], iteration: int, what: str) -> None:
    """Raise :class:`NotFiniteError`, with the iteration and the term, unless all `terms` are finite."""
    for name, value in terms.items():
        if not math.isfinite(float(value.detach())):
            raise NotFiniteError(
                f"{what} diverged at iteration {iteration}: its term {name!r} is {float(value.detach())}. Lower its "
                "learning rate."
            )
