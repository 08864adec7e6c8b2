"""Validation of a whole board by today's rules: all that :mod:`bench.publishing.verify` asks of new records.

A record that contradicts itself, its settings or its method moves to the board's ablations with the reason. A row that
only lacks evidence stays and is listed with the command that makes it. Second runs are left out: the replay of a run
repeats it too.
"""

from __future__ import annotations

import csv
import io
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.core.config import NoiseKind
from bench.core.errors import BenchError
from bench.core.plain_files import read_plain
from bench.core.progress import Progress
from bench.experiments.calibration_cache import Calibrations
from bench.experiments.device import prepare_device
from bench.interface.registry import METHODS
from bench.publishing.outcomes import Outcomes
from bench.publishing.publish import Fate, Item, Publication
from bench.publishing.validate import audited_above_proven, vet_attack, vet_audit, vet_record
from bench.publishing.verify import (
    checked,
    cold_seconds,
    demand_audits,
    entry_of,
    replayed,
    source_sha256,
    stated_here,
)
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.record import Record
from bench.results.replays import REPLAYS, Replay, read_replays, replays_text
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic

MOVED = "ablations/moved.csv"
"""Keys and reasons of the records that left the board."""


def revalidate(
    into: Path, kept: Outcomes, progress: Progress, *, minutes: float = math.inf, rerun: bool = True
) -> Publication:
    """Return the outcomes for the board in `into`, and the files to move; each replay that passes is written at once.

    After `minutes` no further check or replay starts; without `rerun` none starts at all. Checks that passed are `kept`
    and not repeated. Raises :class:`BenchError` if a file of the board cannot be read.
    """
    found = Publication()
    directory, until = RunDir(into), time.monotonic() + 60 * minutes
    read = directory.read_records(set_aside=False)
    audits, torn = directory.read_audits()
    attacks, broken = directory.read_attacks()
    for line in (*read.damaged, *torn, *broken):
        raise BenchError(f"{line}. Restore it by git, then give the same command again.")
    found.board = {record.key: record for record in read.found}
    for audit in audits:
        found.audits.setdefault(audit.student, {})[audit.key] = audit
    why: dict[str, str] = {}
    calibrations = Calibrations()
    for record in progress.each("records", read.found):
        vetted = vet_record(record, calibrations, published=True)
        for what in vetted.unchecked:
            found.unchecked[what] = found.unchecked.get(what, 0) + 1
        problems = [*vetted.problems, audited_above_proven(record, found.audits.get(record.key, {}).values())]
        for problem in filter(None, problems):
            why.setdefault(record.key, problem)
    rows: list[AuditRecord | AttackRecord] = [*audits, *attacks]
    for row in progress.each("audits and attacks", rows):
        student = found.board.get(row.student)
        if student is None:
            raise BenchError(f"{row.key} is of a student that is not on the board. Delete it, then try again.")
        for problem in vet_audit(row, student) if isinstance(row, AuditRecord) else vet_attack(row, student):
            why.setdefault(row.student, f"{row.key}: {problem}")
    found.added = {record.key: (record, into) for record in read.found}
    demand_audits(found, lacking=Fate.FLAGGED)
    if rerun:
        _check(found, kept, progress, why, until)
        _replay(found, into, progress, why, until)
    _move(found, into, why)
    return found


def _check(found: Publication, kept: Outcomes, progress: Progress, why: dict[str, str], until: float) -> None:
    """Check each method of the board; a rejection concerns all its rows with a finite proven epsilon."""
    by_method = defaultdict(list)
    for record in found.board.values():
        if record.method in METHODS:
            by_method[record.method].append(record)
    prepare_device()
    for name, records in progress.each("checks", sorted(by_method.items())):
        if time.monotonic() > until:
            break
        item = kept.once("check", name, records, partial(checked, name, records, Fate.FLAGGED))
        if item.fate is Fate.REFUSED:
            _reject(why, records, item.why)
            item = replace(item, fate=Fate.FLAGGED)  # what is refused cannot be written, and these records move
        found.items.append(item)


def _replay(found: Publication, into: Path, progress: Progress, why: dict[str, str], until: float) -> None:
    """Replay the cheapest run of each method and data set that has no valid replay, the fastest first."""
    keys = found.board.keys() - why.keys()
    records = [record for record in found.board.values() if record.key in keys]
    known = read_replays(into)
    valid = [one for one in known if one.key in keys and not _outdated(one)]
    if valid != known:
        write_atomic(into / REPLAYS, replays_text(valid).encode())
    done = {(one.method, one.dataset) for one in valid}
    todo = [record for record in replayable(records) if (record.method, record.dataset) not in done]
    for record in progress.each("replays", todo):
        if time.monotonic() > until:
            break
        # Older records do not say whether another processor made the artefacts that they found.
        stated = None if record.provenance.artefacts_found else stated_here(record)
        item = replayed(record, stated, Fate.FLAGGED)
        if item.fate is Fate.PASSED:
            valid.append(entry_of(item, record))
            write_atomic(into / REPLAYS, replays_text(valid).encode())
        elif item.fate is Fate.REFUSED:
            alike = [r for r in records if (r.method, r.dataset) == (record.method, record.dataset)]
            _reject(why, alike, f"the replay of {record.key}: {item.why}")
            item = replace(item, fate=Fate.FLAGGED)
        found.items.append(item)
    have = {(one.method, one.dataset) for one in valid}
    lack = sum(
        (r.method, r.dataset) not in have and METHODS.get(r.method).private for r in records if r.method in METHODS
    )
    if lack:
        found.unchecked["a replay of their method on their data set; the same command continues"] = lack


def _outdated(one: Replay) -> bool:
    """Return whether the method's file has changed since; a plug-in that is not installed cannot be compared."""
    return one.method in METHODS and one.source_sha256 != source_sha256(one.method)


def replayable(records: Sequence[Record]) -> list[Record]:
    """Return the run to replay for each private method and data set, the fastest first; not tuned or secret ones."""
    best: dict[tuple[str, str], tuple[float, Record]] = {}
    for record in sorted(records, key=lambda record: record.key):
        known = record.method in METHODS and METHODS.get(record.method).private
        if not known or record.cell.tuning is not None or record.noise is NoiseKind.SECURE or record.student is None:
            continue
        seconds, place = cold_seconds(record, records), (record.method, record.dataset)
        if place not in best or seconds < best[place][0]:
            best[place] = seconds, record
    return [record for _, record in sorted(best.values(), key=lambda one: one[0])]


def _reject(why: dict[str, str], records: Iterable[Record], reason: str) -> None:
    for record in records:
        if record.privacy is not None and math.isfinite(record.privacy.proven.epsilon):
            why.setdefault(record.key, reason)


def _move(found: Publication, into: Path, why: dict[str, str]) -> None:
    """Add to `found` the moves of the records in `why`, with their images, audits and attacks, and the reasons."""
    if not why:
        return
    for key, reason in sorted(why.items()):
        for path in _files_of(into, key):
            name = path.relative_to(into).as_posix()
            found.files[f"ablations/{name}"] = read_plain(path)
            found.gone.append(name)
        found.items.append(Item("record", f"records/{key}.json", Fate.MOVED, reason))
    before = io.StringIO((into / MOVED).read_text() if (into / MOVED).exists() else "key,reason\n")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*csv.reader(before), *sorted(why.items())])
    found.files[MOVED] = text.getvalue().encode()
    found.files[REPLAYS] = replays_text(one for one in read_replays(into) if one.key not in why).encode()


def _files_of(into: Path, key: str) -> Iterator[Path]:
    yield into / "records" / f"{key}.json"
    yield from sorted((into / "released").glob(f"{key}.png"))
    for folder in ("audits", "attacks"):
        yield from sorted((into / folder).glob(f"{key}--*"))
