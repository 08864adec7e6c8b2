"""Losses that are no number any more stop a run with a clear error."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from bench.core.errors import BenchError


class NotFiniteError(BenchError):
    """A loss that is not a number any more; the message names the iteration and the term."""


def check_finite(terms: Mapping[str, Tensor], iteration: int, what: str) -> None:
    """Raise :class:`NotFiniteError`, with the iteration and the first such term, unless all of `terms` are finite."""
    for name, value in terms.items():
        if not math.isfinite(float(value.detach())):
            raise NotFiniteError(
                f"{what} diverged at iteration {iteration}: its term {name!r} is {float(value.detach())}. Lower its "
                "learning rate."
            )
