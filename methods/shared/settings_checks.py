"""Helpers for all methods: setting checks, checkpoint dependencies, subsets of the records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bench.core.config import DataclassInstance, as_dict
from bench.interface import BenchError, Context, Facts, Method, PrivateData

SHOWN = 100  # synthetic images to release


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """Training of heads: SGD on the mean cross-entropy, rate decaying to zero, fixed batches in random order."""

    hidden: int = 256
    epochs: int = 50
    batch_size: int = 32
    lr: float = 0.1


def student_depends(config: DataclassInstance, context: Context) -> dict[str, Any]:
    """Return the dependencies of a stage's checkpoint, so that no other run resumes from it and reuses its noise."""
    return {"cell": context.cell, "kind": type(config).__name__, "config": as_dict(config)}


def check_parts(method: Method) -> None:
    """Raise :class:`BenchError` unless each of the setting `teachers` can have a private record."""
    records, teachers = method.facts.private_records, method.config.teachers
    if teachers > records:
        raise BenchError(
            f"more teachers than records: {teachers} teachers, {records} private records of {method.facts.dataset}. "
            f"Use --set {method.name}.teachers=N with N at most {records}."
        )


def check_batch(method: Method) -> None:
    """Raise :class:`BenchError` unless the setting `batch_size` lies between 1 and the private records."""
    records, batch = method.facts.private_records, method.config.batch_size
    if not 1 <= batch <= records:
        raise BenchError(
            f"batch_size {batch} must lie between 1 and the {records} private records. Change it with --set "
            f"{method.name}.batch_size=N."
        )


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
