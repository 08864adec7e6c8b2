"""Shared by attacks and audits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.core.errors import BenchError, no_exit
from bench.core.progress import Progress
from bench.experiments.plan import Cell, bound_method
from bench.experiments.run import failure_of
from bench.results.provenance import Clock
from bench.results.record import Record, Status
from bench.results.run_dir import RunDir
from bench.storage.cache import Cache


def attempted(
    work: Callable[[], dict[str, Any]],
    record: Record,
    key: str,
    run_dir: RunDir,
    progress: Progress,
    clock: Clock,
    caches: Sequence[Cache],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the parts of a record from `work`, with status, notes and provenance; an exception gives a failure."""
    disclosure = record.disclosure
    try:
        with no_exit(f"what {key} runs"), run_dir.guarded(disclosure.owner_only):
            parts = {**work(), "status": Status.DONE}
    except Exception as error:  # noqa: BLE001 (it becomes a record)
        parts = {"status": Status.FAILED, "failure": failure_of(error, disclosure, run_dir, key)}
        if not disclosure.messages:  # records omit the message, but the owner may see it
            progress.say(f"{type(error).__name__}: {error}")
    made, found = (sum(len(getattr(cache, side)) for cache in caches) for side in ("made", "found"))
    provenance = clock.stop(made=made, found=found, private=not disclosure.exact_costs)
    return {**parts, "notes": list(dict.fromkeys(notes)), "provenance": provenance}


def refuse_given(cell: Cell) -> None:
    """Raise :class:`BenchError` for a given teacher, which cannot be retrained here with and without a record."""
    if bound_method(cell).given_teacher() is not None:
        raise BenchError(
            f"{cell.key} learnt from a given teacher, whose training records are not available, so it "
            "cannot be retrained with and without one of them. Audit or attack a student of the same "
            "method whose teacher is trained here."
        )
