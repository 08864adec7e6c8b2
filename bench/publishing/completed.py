"""Comparison of a published record with another run of its cell, and what the record gains from that run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from bench.core.plain_files import read_plain
from bench.results.attack_record import AuditRecord, R, parse_row
from bench.results.cell_spec import CellSpec
from bench.results.full_size import has_full_size, without_full_size
from bench.results.merge import student_of
from bench.results.record import Record


def same_run(record: Record, there: Record) -> bool:
    """Return whether both have the same student, ledger events and utility; the accountants' figures may differ."""
    events = [None if one.privacy is None else one.privacy.events for one in (record, there)]
    same = record.utility == there.utility and student_of(record) == student_of(there) is not None
    return same and events[0] is not None and events[0] == events[1]


def with_overrides(record: Record, planned: CellSpec | None) -> Record:
    """Return `record`, with the ``--set`` values of its `planned` cell if it has none."""
    if planned is None or record.cell.overrides is not None:
        return record
    return record.model_copy(update={"cell": record.cell.model_copy(update={"overrides": planned.overrides})})


def read_row(path: Path, kind: type[R]) -> R | None:
    """Return the published attack or audit in `path`, None if it cannot be read."""
    with suppress(OSError, ValueError):
        return parse_row(read_plain(path), kind)
    return None


def gained_pair(published: AuditRecord | None, audit: AuditRecord) -> bool:
    """Return whether `audit` is the `published` one plus a pair at full size."""
    if published is None or has_full_size(published) or not has_full_size(audit):
        return False
    return without_full_size(published) == without_full_size(audit)
