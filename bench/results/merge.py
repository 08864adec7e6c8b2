"""Merge run directories: collect in one directory what other machines have finished, each record once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from bench.core.errors import BenchError
from bench.core.plain_files import read_plain
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.record import Record, Status
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic

LARGEST = 1 << 36
"""Largest file that is copied, in bytes, for a student's weights."""


@dataclass(slots=True)
class Merged:
    """Keys that were copied, keys that were there already, and a line for each row that was left out."""

    added: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def merge(sources: Sequence[RunDir], into: RunDir) -> Merged:
    """Copy records, students, attacks and audits of `sources` into `into`; a success replaces a failed record.

    Caches, noise and logs are not copied. A row is left out, with the reason, if `into` has a different row of its key
    or a file is not the one it names. Raises :class:`BenchError` if another process holds `into` exclusively.
    """
    for source in sources:
        if source.path.resolve() == into.path.resolve():
            raise BenchError(
                f"{into.path} is the target of the merge. Name only the other directories, and this one by --out."
            )
    done = Merged()
    into.create()
    with into.joined():
        for source in sources:
            read = source.read_records(set_aside=False)
            done.left_out += read.damaged
            for record in read.found:
                held = into.claim(record.key, title="merge")
                if held is None:
                    done.left_out.append(f"{record.key}: it is running in {into.path}.")
                    continue
                with held:
                    _take_record(record, source, into, done)
            theirs, ours = (
                {record.key: record.student and record.student.sha256 for record in records}
                for records in (read.found, into.read_records(set_aside=False).found)
            )
            for rows, damaged in (source.read_attacks(), source.read_audits()):
                done.left_out += damaged
                for row in rows:
                    of = row.student
                    if isinstance(row, AttackRecord) and of in ours and theirs.get(of, ours[of]) != ours[of]:
                        done.left_out.append(f"{row.key}: it attacked another student than the one that is there.")
                    else:
                        _take_row(row, source, into, ours, done)
    return done


def _take_record(record: Record, source: RunDir, into: RunDir, done: Merged) -> None:
    before = into.read_record(record.key)
    same = before is not None and content_of(with_answers(before, record)) == content_of(with_answers(record, before))
    if before is not None and (same or not (before.failure and record.status is Status.DONE)):
        _there(record.key, same, done)
        return
    released = {file.file: file.sha256 for file in (record.student, record.image_grid) if file is not None}
    with into.guarded(record.disclosure.owner_only):
        copied = _read_files(released, source, record.key, done)
        if copied is None:
            return
        for name, sha256 in released.items():
            if hashlib.sha256(copied[name]).hexdigest() != sha256:
                done.left_out.append(f"{record.key}: {name} is not what was released. Run its cell again.")
                return
        for name, data in copied.items():
            write_atomic(into.path / name, data)
    into.write_record(record)
    done.added.append(record.key)


def _take_row(
    row: AttackRecord | AuditRecord, source: RunDir, into: RunDir, known: Container[str], done: Merged
) -> None:
    before = into.read_attack(row.key) if isinstance(row, AttackRecord) else into.read_audit(row.key)
    same = before is not None and content_of(before) == content_of(row)
    if before is not None and (same or not (before.failure and not row.failure)):
        _there(row.key, same, done)
    elif row.student not in known:
        done.left_out.append(f"{row.key}: there is no record of its student {row.student}.")
    elif (copied := _read_files(row.pictures if isinstance(row, AttackRecord) else (), source, row.key, done)) is None:
        return
    else:
        for name, data in copied.items():
            write_atomic(into.path / name, data)
        into.write_row(row)
        done.added.append(row.key)


def content_of(row: Record | AttackRecord | AuditRecord) -> dict[str, Any]:
    """Return a record's content without provenance, ``--set`` values and the labels of its plug-in."""
    content: dict[str, Any] = json.loads(
        row.model_dump_json(exclude={"provenance": True, "cell": {"overrides", "plugin"}})
    )
    return content


def student_of(record: Record) -> str | None:
    """Return the hash of the record's student; None if it has none."""
    return None if record.student is None else record.student.sha256


def with_answers(there: Record, record: Record) -> Record:
    """Return `there`, with the answers of `record` if its own are missing and the student is the same."""
    if there.utility is None or record.utility is None or student_of(there) != student_of(record):
        return there
    own, other = (utility.model_dump(exclude_none=True) for utility in (there.utility, record.utility))
    if "answers" in own or "answers" not in other or other | own != other:
        return there
    return there.model_copy(update={"utility": record.utility})


def _there(key: str, same: bool, done: Merged) -> None:
    if same:
        done.there.append(key)
    else:
        done.left_out.append(f"{key}: another one is there and is kept. Delete it first to take this one.")


def _read_files(names: Iterable[str], source: RunDir, key: str, done: Merged) -> dict[str, bytes] | None:
    """Return the files `names` below `source`; None, with a line in `done`, if one is missing or lies elsewhere."""
    found: dict[str, bytes] = {}
    for name in names:
        path = source.path / name
        if ".." in PurePosixPath(name).parts or not path.resolve().is_relative_to(source.path.resolve()):
            done.left_out.append(f"{key}: it names a file outside of its directory.")
            return None
        try:
            found[name] = read_plain(path, LARGEST)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            done.left_out.append(f"{key}: {name} cannot be read ({why}).")
            return None
    return found
