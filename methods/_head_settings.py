"""How heads are trained, without torch: planning makes these settings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.interface import BenchError


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """How heads are trained: plain SGD on the mean cross-entropy of each batch, the rate falling to zero.

    Batches lie in the order of a part's records; each epoch goes through them in a new order. `hidden` is the number of
    hidden units.
    """

    hidden: int = 256
    epochs: int = 50
    batch_size: int = 32
    lr: float = 0.1

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant."""
        for name in ("hidden", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise BenchError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise BenchError(f"lr must be positive and finite, not {self.lr}.")

    def steps(self, records: int) -> int:
        """Return how many steps a head of so many records takes."""
        return self.epochs * math.ceil(records / self.batch_size)
