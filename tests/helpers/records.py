"""Records as a run would write them, for tests that train nothing."""

from __future__ import annotations

import math
from typing import Any

from bench.interface import Adjacency, Basis, PrivacyUnit
from bench.results.cell_spec import CellSpec
from bench.results.record import (
    COLLAPSED,
    Accountant,
    Claimed,
    Failure,
    ImageGrid,
    Privacy,
    Provenance,
    Record,
    Status,
    Utility,
)


def provenance(**changes: Any) -> Provenance:
    given: dict[str, Any] = {
        "started": "2026-01-01T00:00:00+00:00", "wall_seconds": 12.5, "peak_memory_mib": 100.0, "git_commit": None,
        "git_dirty": None, "packages": {"torch": "2.13.0"}, "python": "3.11.7", "platform": "Linux x86_64",
        "device": "cpu", "threads": 2, "unread": {"git_commit": "git is not installed"},
    }  # fmt: skip
    return Provenance(**{**given, **changes})


def record(
    *,
    method: str = "pate",
    dataset: str = "mnist",
    seed: int = 0,
    epsilon: float | None = 10.0,
    accuracy: float = 0.95,
    claimed: float = 10.0,
    proven: float = 4.0,
    unit: PrivacyUnit = PrivacyUnit.RECORD,
    bypasses: tuple[str, ...] = (),
    **changes: Any,
) -> Record:
    privacy = Privacy(
        unit=unit,
        adjacency=Adjacency.REPLACE,
        delta=1e-5,
        claimed=Claimed(epsilon=claimed, source="table 1"),
        proven=Accountant(
            name="bypass" if bypasses else "pld", epsilon=math.inf if bypasses else proven, sound=True,
            data_dependent=False, releasable=True, note="; ".join(bypasses),
        ),
        bypasses=list(bypasses),
    )  # fmt: skip
    given: dict[str, Any] = {
        "key": f"{dataset}-{method}-{epsilon}-s{seed}", "status": Status.DONE, "method": method, "method_version": 1,
        "dataset": dataset, "dataset_revision": "sha256:0", "preset": "quick", "config": {"queries": 100},
        "seed": seed, "epsilon": epsilon, "delta": 1e-5, "basis": Basis.CLAIMED, "noise": "seeded",
        "public_data": "none", "public_kinds": ["none"], "private_records": 60_000, "public_records": 9_000,
        "privacy": privacy, "utility": Utility(accuracy=accuracy, test_records=1_000), "provenance": provenance(),
    }  # fmt: skip
    given |= changes
    cell = CellSpec(**{name: given.pop(name) for name in CellSpec.model_fields if name in given})
    return Record(cell=cell, **given)


def collapsed(**changes: Any) -> Record:
    """Return a record whose generator made useless images."""
    return failed(**changes).model_copy(
        update={
            "failure": Failure(kind=COLLAPSED, reason="the generator collapsed"),
            "image_grid": ImageGrid(file="released/grid.png", sha256="0" * 64),
        }
    )


def asked(record: Record, **changes: Any) -> Record:
    """Return `record` with another cell."""
    return record.model_copy(update={"cell": record.cell.model_copy(update=changes)})


def failed(reason: str = "more teachers than records", **changes: Any) -> Record:
    return record(
        status=Status.FAILED, privacy=None, utility=None, failure=Failure(kind="error", reason=reason), **changes
    )
