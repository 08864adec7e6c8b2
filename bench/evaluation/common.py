"""Shared by attacks and audits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.core.errors import BenchError, no_exit
from bench.core.options import Resources
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.experiments.plan import Cell, bound_method
from bench.experiments.run import cache_base, failure_of
from bench.results.provenance import Clock
from bench.results.record import Record, Status
from bench.results.run_dir import RunDir
from bench.storage.cache import Cache
from bench.training.context import Context

ContextOf = Callable[[Cell, Streams], Context]


def attempted(
    work: Callable[[ContextOf], dict[str, Any]], record: Record, key: str, run_dir: RunDir, progress: Progress,
    resources: Resources,
) -> dict[str, Any]:  # fmt: skip
    """Return the parts of a record from `work`, with status, notes and provenance; an exception gives a failure.

    `work` gets a function that returns the context of a cell with streams; the record keeps the context's notes.
    """
    clock = Clock(device=resources.device, threads=torch.get_num_threads())
    disclosure, notes, caches = record.disclosure, list[str](), list[Cache]()

    def context_of(cell: Cell, streams: Streams) -> Context:
        caches.append(Cache(run_dir.cache_path, cache_base(cell), progress.say))
        device = torch.device(resources.device)
        return Context(device, streams, caches[-1], progress, resources.workers, notes.append)

    try:
        with no_exit(f"what {key} runs"), run_dir.guarded(disclosure.owner_only):
            parts = {**work(context_of), "status": Status.DONE}
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
