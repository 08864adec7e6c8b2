"""The pair at full size: the row's own data and a neighbour. It is part of an audit, or is added to a finished one."""

from __future__ import annotations

import math
from collections.abc import Callable

from bench.core.errors import BenchError
from bench.core.options import ONE_CPU, Resources
from bench.core.progress import Progress
from bench.evaluation.audit.pair_audit import PairPlan, audit_full_size
from bench.evaluation.audit.pairs import WorstPair, full_size_pair
from bench.evaluation.common import refuse_given
from bench.experiments.data_source import DataSource
from bench.experiments.plan import Cell, cell_of, data_named
from bench.experiments.run import cache_base
from bench.interface.registry import METHODS
from bench.results.attack_record import AuditRecord, PairBound
from bench.results.full_size import NO_FULL_SIZE, with_full_size
from bench.results.provenance import Clock
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.storage.cache import Cache


def pair_for(
    record: Record, cell: Cell, seconds: float, source: DataSource, note: Callable[[str], None]
) -> WorstPair | None:
    """Return the pair at the row's size, or None with a note if it cannot be run or costs more than `seconds`."""
    least = 2 * record.provenance.wall_seconds
    pair = None
    if not cell.facts.disclosure.data_figures:
        why = "its losses would be figures of private records"
    elif least > seconds:
        why = f"it takes {least:.0f} seconds or more, and --minutes gives it {seconds:.0f}"
    else:
        why = "without a client, the others' records would move"
        try:
            pair = full_size_pair(METHODS.get(cell.method), cell.config, source.material(cell.dataset), cell.seed)
        except BenchError as error:
            why = str(error)
    if pair is None:
        note(f"{NO_FULL_SIZE}: {why}")
    return pair


def add_full_size(
    record: Record,
    audit: AuditRecord,
    minutes: float,
    run_dir: RunDir,
    source: DataSource,
    progress: Progress,
    *,
    dataset: str | None = None,
    resources: Resources = ONE_CPU,
) -> AuditRecord:
    """Run the pair at full size for a finished `audit` of `record`; write and return the audit with what it found.

    `audit` is by pairs. If there is no result, the audit gets the reason. Raises :class:`BenchError` if the student
    cannot be trained again, or if a run fails.
    """
    clock, notes = Clock(device=resources.device, threads=1), list[str]()
    cell = cell_of(record, source.describe(data_named(record, dataset)))
    refuse_given(cell)
    bounds, bypassed = list[PairBound](), ""
    with run_dir.guarded(record.disclosure.owner_only):
        if (pair := pair_for(record, cell, 60 * minutes, source, notes.append)) is not None:
            plan = PairPlan(minutes, math.inf, cell.delta, audit.confidence, 1, seed=cell.seed)
            cache = Cache(run_dir.cache_path, cache_base(cell), progress.say)
            found = audit_full_size(METHODS.get(cell.method), pair, plan, cache, progress)
            bounds, bypassed = found.bounds, found.bypassed
            notes += found.notes
        result = with_full_size(audit, bounds, bypassed, notes, clock.stop())
        run_dir.write_row(result)
    return result
