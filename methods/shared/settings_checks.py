"""Helpers for all methods: setting checks, checkpoint dependencies, subsets of the records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bench.core.config import as_dict
from bench.interface import BenchError, Context, Facts, PrivateData

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SHOWN = 100  # synthetic images to release


def at_least_one(config: object, *names: str) -> None:
    """Raise :class:`BenchError` unless each of the settings `names` of `config` is at least 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise BenchError(f"{name} must be at least 1, not {getattr(config, name)}.")


def decay(config: object, *names: str) -> None:
    """Raise :class:`BenchError` unless the settings `names`, decays of moving averages, lie in [0, 1)."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise BenchError(f"{name} must lie in 0..1, without 1, not {getattr(config, name)}.")


def positive(config: object, *names: str) -> None:
    """Raise :class:`BenchError` unless the settings `names` of `config` are positive and finite, or None."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BenchError(f"{name} must be positive and finite, not {value}.")


def check_latent_size(config: object, name: str) -> None:
    """Raise :class:`BenchError` unless the generator accepts latent inputs of the size given by the setting `name`."""
    if not 1 <= getattr(config, name) <= 4096:
        raise BenchError(f"{name} must lie in 1..4096, which the generator takes, not {getattr(config, name)}.")


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """Training of heads: SGD on the mean cross-entropy, learning rate decaying to zero, reshuffled each epoch."""

    hidden: int = 256
    epochs: int = 50
    batch_size: int = 32
    lr: float = 0.1

    def __post_init__(self) -> None:
        at_least_one(self, "hidden", "epochs", "batch_size")
        positive(self, "lr")

    def steps(self, records: int) -> int:
        """Return the number of batches in all epochs over `records` records."""
        return self.epochs * math.ceil(records / self.batch_size)


def student_depends(config: DataclassInstance, context: Context) -> dict[str, Any]:
    """Return what a stage's checkpoint depends on, so that no other run resumes from it and reuses its noise."""
    return {"cell": context.cell, "kind": type(config).__name__, "config": as_dict(config)}


def check_records(records: int | None, facts: Facts) -> None:
    """Raise :class:`BenchError` unless `records`, if given, lies between 1 and the private records of `facts`."""
    if records is not None and not 1 <= records <= facts.private_records:
        raise BenchError(
            f"records must lie between 1 and the {facts.private_records} private records of {facts.dataset}, or be "
            f"none for all of them, not {records}."
        )


def some_records(records: int | None, private: PrivateData, context: Context) -> torch.Tensor | slice:
    """Return the sorted positions of `records` random private records; all of them for None."""
    if records is None:
        return slice(None)
    # Shadow runs of an audit may have one record fewer.
    count = min(records, len(private))
    return torch.randperm(len(private), generator=context.streams.torch("records"))[:count].sort().values
