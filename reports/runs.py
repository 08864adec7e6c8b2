"""The records, audits and attacks of run directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.core.errors import BenchError
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.record import Record
from bench.results.run_dir import RunDir


def published() -> Path | None:
    """Return the folder of the published records: ``leaderboards`` here, else in the checkout of this file, or None."""
    places = (Path("leaderboards"), Path(__file__).resolve().parent.parent / "leaderboards")
    return next((path for path in places if (path / "records").is_dir()), None)


@dataclass(slots=True)
class Runs:
    """What run directories hold, by key; of equal keys the last. Unreadable files are warnings."""

    records: dict[str, Record] = field(default_factory=dict)
    audits: dict[str, AuditRecord] = field(default_factory=dict)
    attacks: dict[str, AttackRecord] = field(default_factory=dict)
    each: list[tuple[Path, list[Record], list[AuditRecord], list[AttackRecord]]] = field(default_factory=list)
    """What each directory holds."""
    warnings: list[str] = field(default_factory=list)


def read_runs(folders: Sequence[Path], advice: str, *, name_empty: bool = False) -> Runs:
    """Return what `folders` hold; unreadable files stay in place. With `name_empty`, warn of folders without records.

    Raise :class:`BenchError` if a folder is no run directory or no record can be read; with `advice` if there is none.
    """
    runs = Runs()
    for path in folders:
        directory = RunDir(path)
        read = directory.read_records(set_aside=False)
        audits, torn = directory.read_audits()
        attacks, broken = directory.read_attacks()
        runs.warnings += [*read.damaged, *torn, *broken]
        if name_empty and not read.found and not read.damaged:
            runs.warnings.append(f"{path} holds no records")
        runs.records.update((record.key, record) for record in read.found)
        runs.audits.update((audit.key, audit) for audit in audits)
        runs.attacks.update((attack.key, attack) for attack in attacks)
        runs.each.append((path, read.found, audits, attacks))
    if not runs.records and runs.warnings:
        more = f" (and {len(runs.warnings) - 1} more)" if len(runs.warnings) > 1 else ""
        raise BenchError(f"no record can be read. {runs.warnings[0].rstrip('.')}{more}.")
    if not runs.records:
        raise BenchError(advice)
    return runs
