"""What every method shares about its student: making one from timm by name, with a seeded start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.interface import BenchError

if TYPE_CHECKING:
    import torch

    from bench.interface import Context, Facts, PrivateData


def student_depends(config: Any, context: Context) -> dict[str, Any]:
    """Return what the checkpoint of a stage of one cell depends on: no other cell may go on with its noise."""
    from bench.core.config import as_dict

    return {"cell": context.cell, "kind": type(config).__name__, "config": as_dict(config)}


def check_records(records: int | None, facts: Facts) -> None:
    """Raise :class:`BenchError` where `records` are none, or more than the private records of `facts`."""
    if records is not None and not 1 <= records <= facts.private_records:
        raise BenchError(
            f"records must lie between 1 and the {facts.private_records} private records of {facts.dataset}, or be "
            f"none for all of them, not {records}."
        )


def some_records(records: int | None, private: PrivateData, context: Context) -> torch.Tensor | slice:
    """Return the positions of so many private records, drawn at random and sorted; all of them for None."""
    import torch

    if records is None:
        return slice(None)
    # Shadow runs of an audit may hold a record less.
    count = min(records, len(private))
    drawn = torch.randperm(len(private), generator=context.streams.torch("records"))[:count]
    return drawn.sort().values
