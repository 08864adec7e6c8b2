"""What every method shares: checks of settings, what the checkpoints of a cell depend on, a part of the records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.core.config import as_dict
from bench.interface import BenchError

if TYPE_CHECKING:
    import torch

    from bench.interface import Context, Facts, PrivateData

SHOWN = 100
"""Synthetic images that are released, for people to look at."""


def at_least_one(config: object, *names: str) -> None:
    """Raise :class:`BenchError` unless the settings `names` of `config` are at least 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise BenchError(f"{name} must be at least 1, not {getattr(config, name)}.")


def positive(config: object, *names: str) -> None:
    """Raise :class:`BenchError` unless the settings `names` of `config` are positive and finite, or None."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BenchError(f"{name} must be positive and finite, not {value}.")


def check_latent_size(config: object, name: str) -> None:
    """Raise :class:`BenchError` unless the generator takes latent inputs of the size that the setting `name` has."""
    if not 1 <= getattr(config, name) <= 4096:
        raise BenchError(f"{name} must lie in 1..4096, which the generator takes, not {getattr(config, name)}.")


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
        at_least_one(self, "hidden", "epochs", "batch_size")
        positive(self, "lr")

    def steps(self, records: int) -> int:
        """Return how many steps a head of `records` records takes."""
        return self.epochs * math.ceil(records / self.batch_size)


def student_depends(config: Any, context: Context) -> dict[str, Any]:
    """Return what the checkpoint of a stage of one cell depends on: no other cell may resume with its noise."""
    return {"cell": context.cell, "kind": type(config).__name__, "config": as_dict(config)}


def check_records(records: int | None, facts: Facts) -> None:
    """Raise :class:`BenchError` unless `records` is None or lies within the private records of `facts`."""
    if records is not None and not 1 <= records <= facts.private_records:
        raise BenchError(
            f"records must lie between 1 and the {facts.private_records} private records of {facts.dataset}, or be "
            f"none for all of them, not {records}."
        )


def some_records(records: int | None, private: PrivateData, context: Context) -> torch.Tensor | slice:
    """Return the sorted positions of `records` private records, drawn at random; all of them for None."""
    import torch

    if records is None:
        return slice(None)
    # Shadow runs of an audit may hold a record less.
    count = min(records, len(private))
    return torch.randperm(len(private), generator=context.streams.torch("records"))[:count].sort().values
