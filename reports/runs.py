"""The records, audits and attacks of run directories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bench.core.errors import BenchError
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.merge import content_of, with_answers
from bench.results.published import named, need_published
from bench.results.record import Record
from bench.results.replays import Replay, read_replays
from bench.results.run_dir import RunDir

R = TypeVar("R", Record, AuditRecord, AttackRecord)


@dataclass(slots=True)
class Runs:
    """The contents of run directories, by key. Unreadable files become warnings."""

    records: dict[str, Record] = field(default_factory=dict)
    audits: dict[str, AuditRecord] = field(default_factory=dict)
    attacks: dict[str, AttackRecord] = field(default_factory=dict)
    homes: dict[str, Path] = field(default_factory=dict)
    """The run directory of each key."""
    each: list[tuple[Path, list[Record], list[AttackRecord]]] = field(default_factory=list)
    """The contents of each directory."""
    warnings: list[str] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)

    def add(self, known: dict[str, R], found: Iterable[R], path: Path) -> None:
        """Add the rows `found` in `path` to `known`; a success replaces a failure.

        Raise :class:`BenchError` if two results of one key differ in more than their provenance.
        """
        for row in found:
            before = known.get(row.key)
            if before is not None and before.failure is None:
                if isinstance(before, Record) and isinstance(row, Record):  # older records lack the answers
                    known[row.key] = before = with_answers(before, row)
                    row = with_answers(row, before)
                if row.failure is None and content_of(before) != content_of(row):
                    raise BenchError(
                        f"{self.homes[row.key]} and {path} contain different results for the key {row.key}: two runs "
                        "of one cell differ in their noise or in a processor's rounding. Read only one of the "
                        "directories, or give yours another seed; delete a file only if its result is wrong."
                    )
                continue
            known[row.key] = row
            self.homes[row.key] = path


def read_board(folders: Sequence[Path] | None) -> Runs:
    """Return the contents of `folders`, by default of the published board; raise as :func:`read_runs` does."""
    places = list(map(named, folders or [need_published()]))
    return read_runs(places, f"no records in {', '.join(map(str, places))}.")


def read_runs(folders: Sequence[Path], advice: str, *, name_empty: bool = False) -> Runs:
    """Return the contents of `folders`; unreadable files stay in place. `name_empty` warns of folders without records.

    Raise :class:`BenchError` if a folder is not a run directory, if no record can be read, or if two results of one key
    differ. If there are no records at all, the error says `advice`.
    """
    runs = Runs()
    for path in folders:
        directory = RunDir(path)
        read = directory.read_records(set_aside=False)
        audits, torn = directory.read_audits()
        attacks, broken = directory.read_attacks()
        runs.warnings += [*read.damaged, *torn, *broken]
        if name_empty and not read.found and not read.damaged:
            runs.warnings.append(f"{path} contains no records")
        runs.add(runs.records, read.found, path)
        runs.add(runs.audits, audits, path)
        runs.add(runs.attacks, attacks, path)
        runs.each.append((path, read.found, attacks))
        runs.replays += read_replays(path)
    if not runs.records and runs.warnings:
        more = f" (and {len(runs.warnings) - 1} more)" if len(runs.warnings) > 1 else ""
        raise BenchError(f"no record can be read. {runs.warnings[0].rstrip('.')}{more}.")
    if not runs.records:
        raise BenchError(advice)
    return runs
