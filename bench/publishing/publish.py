"""Publication of records on the board, all or none: checks precede writes, and the same command resumes it."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.core.config import NoiseKind
from bench.core.errors import BenchError
from bench.core.plain_files import check_run_dir, listed, read_plain
from bench.core.progress import Progress
from bench.core.rows import SchemaError
from bench.experiments.calibration_cache import Calibrations
from bench.publishing.completed import gained_pair, read_row, same_run, with_overrides
from bench.publishing.reproduce import planned_again
from bench.publishing.shared_audits import sharing_problem
from bench.publishing.validate import audited_above_proven, vet_attack, vet_audit, vet_record
from bench.reports.pages import gather, write_pages
from bench.reports.summary import BEGIN
from bench.results.attack_record import AttackRecord, AuditRecord, R, parse_row
from bench.results.merge import content_of, student_of, with_answers
from bench.results.pictures import SIGNATURE, picture_file, read_picture
from bench.results.record import Record, Status, parse_record
from bench.results.replays import REPLAYS, Replay, read_replays, replays_text
from bench.results.run_dir import RunDir
from bench.storage.files import write_together

_FOLDERS = ("records", "audits", "attacks", "released")
MACHINE = ("packages", "python", "platform", "processor", "device")  # provenance fields that may change the arithmetic


class Fate(StrEnum):
    """Outcome for one file."""

    ADDED = "added"
    REPLACED = "replaced"
    COMPLETED = "completed"  # A published record gained missing ``--set`` values, answers, image grid or picture.
    REMOVED = "removed"
    SKIPPED = "skipped"
    REFUSED = "refused"
    MOVED = "moved"  # from the board to its ablations
    PASSED = "passed"
    FLAGGED = "flagged"  # passed, with a remark for the reviewer


@dataclass(frozen=True, slots=True)
class Item:
    """One file and its fate, with the reason unless it is added; `name` includes the run directory."""

    kind: str  # record, audit, attack, picture or image grid; check or rerun
    name: str
    fate: Fate
    why: str = ""


@dataclass(slots=True)
class Publication:
    """Changes to a board: items, and the files to write and to delete by path relative to it."""

    items: list[Item] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    unchecked: dict[str, int] = field(default_factory=dict)  # number of records by the check that could not run
    added: dict[str, tuple[Record, Path]] = field(default_factory=dict)  # new records and their run directories
    board: dict[str, Record] = field(default_factory=dict)  # the board's records by key, including added ones
    audits: dict[str, dict[str, AuditRecord]] = field(default_factory=dict)  # the board's audits by student and key
    replays: list[Replay] = field(default_factory=list)  # replays that passed, besides those on the board

    @property
    def refused(self) -> list[Item]:
        """The refused items, which prevent any write."""
        return [item for item in self.items if item.fate is Fate.REFUSED]


@contextmanager
def opened(into: Path) -> Iterator[None]:
    """Lock the board in `into`. Raises :class:`BenchError` if there is no board or another command holds it."""
    if not (into / "records").is_dir():
        raise BenchError(
            f"{into} is not a board: it has no folder named records. Run this command in the root of a "
            "clone of the project, or name its leaderboards with --into."
        )
    descriptor = os.open(into, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BenchError(f"another command is publishing into {into}. Wait until it ends.") from error
        except OSError:
            pass  # the file system has no locks
        yield
    finally:
        os.close(descriptor)


def examine(
    runs: Sequence[Path], into: Path, *, replace: bool = False, progress: Progress | None = None
) -> Publication:
    """Return what publishing `runs` would change on the board in `into`, without writing.

    `replace` lets records replace published ones with other content. Raises :class:`BenchError` if a run directory is
    absent, of another layout, or without records.
    """
    progress = progress or Progress()
    work = _Work(into, replace)
    found = [(run, path) for run in dict.fromkeys(runs) for path in _records_in(run)]
    for run, path in progress.each("records", found):
        work.record(run, path)
    for run in runs:
        work.rows(run, "audit", AuditRecord)
        work.rows(run, "attack", AttackRecord)
    work.judge_audits()
    return work.found


def _records_in(run: Path) -> list[Path]:
    check_run_dir(run)
    RunDir(run).check_layout()
    paths = listed(run / "records", ".json")
    if not paths:
        raise BenchError(f"{run} holds no records: there is nothing to publish. `python -m bench run` makes some.")
    return paths


class _Work:
    """State of one examination: published records, new ones, and findings."""

    def __init__(self, into: Path, replace: bool) -> None:
        self.found = Publication()
        self._into, self._replace, self._calibrations = into, replace, Calibrations()
        self._board, self._audits = self.found.board, self.found.audits
        self._own: dict[tuple[Path, str], Record] = {}  # examined records by run directory and key
        self._out: set[str] = set()  # keys of failed or refused records
        for path in listed(into / "records", ".json"):
            with suppress(OSError, ValueError):
                self._board[path.stem] = parse_record(read_plain(path))
        for audit in RunDir(into).read_audits()[0]:
            self._audits.setdefault(audit.student, {})[audit.key] = audit

    def record(self, run: Path, path: Path) -> None:
        """Examine one record and its image grid."""
        name = f"{run.name}/records/{path.name}"
        record = self._parsed("record", name, path, parse_record)
        if record is None:
            self._out.add(path.stem)
            return
        if record.key != path.stem:
            self._out.add(path.stem)
            return self._say("record", name, Fate.REFUSED, f"it holds the record of {record.key[:120]}. Delete it.")
        if record.status is Status.FAILED and not record.collapsed:
            self._out.add(record.key)
            return self._say("record", name, Fate.SKIPPED, "the cell failed")
        self._own[run, record.key] = record
        there = self._board.get(record.key)
        if there is None and (self._into / "records" / path.name).exists():
            self._say("record", name, Fate.REFUSED, "the published one is damaged. Restore it by git, then try again.")
            return None
        ablation = self._into / "ablations" / "records" / path.name
        if there is None and ablation.exists() and content_of(parse_record(read_plain(ablation))) != content_of(record):
            self._out.add(record.key)
            why = f"{ablation} holds another run of this cell. Move that to records/, or publish another seed."
            return self._say("record", name, Fate.REFUSED, why)
        there = there and with_answers(there, record)
        fate, why = self._compared(record, there)
        if fate is Fate.SKIPPED and there is not None:
            return self._completed(run, name, record, there, why)
        if fate is Fate.REFUSED:
            return self._say("record", name, fate, why)
        vetted = vet_record(record, self._calibrations)
        problems = list(vetted.problems)
        image_grid = self._image_grid(run, record, problems)
        if problems:
            self._out.add(record.key)
            for problem in problems:
                self._say("record", name, Fate.REFUSED, problem)
            return None
        for what in vetted.unchecked:
            self.found.unchecked[what] = self.found.unchecked.get(what, 0) + 1
        if there is not None:
            self._forget(record, there)
        record = with_overrides(record, vetted.cell)
        self._board[record.key] = record
        self.found.added[record.key] = record, run
        self.found.files[f"records/{path.name}"] = record.to_json().encode()
        self._say("record", name, fate, why)
        if image_grid is not None:
            self.found.files[f"released/{record.key}.png"] = image_grid
            self._say("image grid", f"{run.name}/released/{record.key}.png", fate)
        return None

    def _compared(self, record: Record, there: Record | None) -> tuple[Fate, str]:
        """Return the fate of `record` and the reason, given the published record `there` of its key."""
        if there is None:
            return Fate.ADDED, ""
        if content_of(record) == content_of(there):
            same = record.provenance.started == there.provenance.started
            other = "the same cell with the same result: the published one is kept"
            return Fate.SKIPPED, "it is already there" if same else other
        if same_run(record, there):
            return Fate.SKIPPED, "only another version's accounting differs: the published one is kept"
        if self._replace:
            return Fate.REPLACED, "its content differs from the published one"
        elsewhere = [p.model_dump(include=set(MACHINE)) for p in (record.provenance, there.provenance)]
        if elsewhere[0] != elsewhere[1]:
            why = "the same cell from another machine: the published one is kept (--replace takes this one)"
            return Fate.SKIPPED, why
        if record.noise_salt != there.noise_salt or record.noise is NoiseKind.SECURE:
            return Fate.SKIPPED, "the same cell with other noise: the published one is kept (--replace takes this one)"
        parts = ", ".join(name for name, value in content_of(record).items() if value != content_of(there)[name])
        self._out.add(record.key)
        return Fate.REFUSED, (
            f"a record with the same key is published, with another {parts}. To take this one give --replace, and say "
            "in the pull request why they differ."
        )

    def _completed(self, run: Path, name: str, record: Record, there: Record, why: str) -> None:
        """Skip a published record after adding what it lacks; `there` has its answers."""
        lacks = ["its answers on the test records"] * (there is not self._board[there.key])
        image_grid, file = there.image_grid, f"released/{there.key}.png"
        if image_grid is not None and image_grid.file == file and not (self._into / file).exists():
            with suppress(OSError, ValueError):
                data = read_plain(run / file)
                if hashlib.sha256(data).hexdigest() == image_grid.sha256 and file not in self.found.files:
                    self.found.files[file] = data
                    lacks.append("its image grid")
        if there.cell.overrides is None:
            again = planned_again(record, self._calibrations).cell
            if again is not None:
                there = with_overrides(there, again.spec)
                lacks.append("its settings as requested")
        if there != self._board[there.key]:
            self._board[there.key] = there
            self.found.files[f"records/{there.key}.json"] = there.to_json().encode()
        if lacks:
            self._say("record", name, Fate.COMPLETED, f"{why}; it got {' and '.join(lacks)}")
        else:
            self._say("record", name, Fate.SKIPPED, why)

    def _image_grid(self, run: Path, record: Record, problems: list[str]) -> bytes | None:
        if record.image_grid is None or record.image_grid.file != f"released/{record.key}.png":
            return None
        try:
            data = read_plain(run / record.image_grid.file)
        except (OSError, ValueError):
            problems.append("its image grid is not there. Run the cell again with --reuse none.")
            return None
        if hashlib.sha256(data).hexdigest() != record.image_grid.sha256 or not data.startswith(SIGNATURE):
            problems.append("its image grid differs from the one that it names. Run the cell again with --reuse none.")
            return None
        return data

    def _forget(self, record: Record, there: Record) -> None:
        """Remove the audits and attacks of a replaced student from the board."""
        if record.student is not None and there.student is not None and record.student.sha256 == there.student.sha256:
            return
        for folder in ("audits", "attacks"):
            for path in sorted((self._into / folder).glob(f"{there.key}--*")):
                self.found.gone.append(f"{folder}/{path.name}")
                self._say(folder[:-1], path.name, Fate.REMOVED, "its student was replaced")
        self._audits.pop(there.key, None)

    def rows(self, run: Path, what: str, kind: type[R]) -> None:
        """Examine the audits or attacks of one run directory."""
        folder = f"{what}s"
        for path in listed(run / folder, ".json"):
            name = f"{run.name}/{folder}/{path.name}"
            row = self._parsed(what, name, path, lambda data: parse_row(data, kind))
            if row is None:
                continue
            target = f"{folder}/{path.name}"
            there = self._into / target
            own, board = self._own.get((run, row.student)), self._board.get(row.student)
            if row.key != path.stem:
                self._say(what, name, Fate.REFUSED, f"it holds the record of {row.key[:120]}. Delete it.")
            elif row.status is Status.FAILED:
                self._say(what, name, Fate.SKIPPED, f"the {what} failed")
            elif row.student in self._out and board is None:
                self._say(what, name, Fate.SKIPPED, "its student's record is not published")
            elif own is None or board is None:
                self._say(what, name, Fate.REFUSED, "its student's record is not in the same directory. Delete it.")
            elif student_of(own) != student_of(board):
                self._say(what, name, Fate.SKIPPED, "it belongs to a student other than the published one")
            elif there.exists() and target not in self.found.gone and not self._replace:
                lacks = self._lacks(there, row, run)
                fate = Fate.COMPLETED if lacks else Fate.SKIPPED
                self._say(what, name, fate, "it is already there" + f"; it got its {lacks}" * bool(lacks))
            elif target in self.found.files:
                self._say(what, name, Fate.SKIPPED, "another directory has one with the same key")
            else:
                vet: Callable[[Any, Record], list[str]] = vet_audit if isinstance(row, AuditRecord) else vet_attack
                problems = vet(row, board)
                for problem in problems:
                    self._say(what, name, Fate.REFUSED, problem)
                if not problems:
                    again = there.exists() and target not in self.found.gone
                    self.found.files[target] = row.to_json().encode()
                    if isinstance(row, AuditRecord):
                        self._audits.setdefault(row.student, {})[row.key] = row
                    self._say(what, name, Fate.REPLACED if again else Fate.ADDED)
                    if isinstance(row, AttackRecord):
                        self._picture(run, row)

    def _lacks(self, there: Path, row: AttackRecord | AuditRecord, run: Path) -> str:
        """Add what `row` has and the equal published row in `there` lacks; return what that is, or ""."""
        if isinstance(row, AttackRecord):
            return "picture" if read_row(there, AttackRecord) == row and self._picture(run, row) else ""
        if not gained_pair(read_row(there, AuditRecord), row) or vet_audit(row, self._board[row.student]):
            return ""
        self.found.files[f"audits/{row.key}.json"] = row.to_json().encode()
        self._audits.setdefault(row.student, {})[row.key] = row
        return "pair at full size"

    def _picture(self, run: Path, attack: AttackRecord) -> bool:
        """Add the picture of `attack` if the board lacks it, and return whether it did; say why one is left out."""
        file = picture_file(attack)
        if not file or ((self._into / file).exists() and f"attacks/{attack.key}.json" not in self.found.files):
            return False
        try:
            self.found.files[file] = read_picture(run, attack)
        except OSError:
            return False  # the picture was deleted; its record counts without it
        except ValueError as error:
            self._say("picture", f"{run.name}/{file}", Fate.SKIPPED, str(error))
            return False
        return True

    def judge_audits(self) -> None:
        """Refuse students audited above their proven epsilon, and audits of other rows that are not theirs."""
        touched = {name.partition("/")[2].partition("--")[0].removesuffix(".json") for name in self.found.files}
        for key in sorted(touched & set(self._audits) & set(self._board)):
            problem = audited_above_proven(self._board[key], self._audits[key].values())
            if problem:
                self._say("audit", key, Fate.REFUSED, problem)
            for audit in self._audits[key].values():
                if audit.shared and (problem := sharing_problem(audit, self._board, self._audits)):
                    self._say("audit", audit.key, Fate.REFUSED, problem)

    def _parsed(self, kind: str, name: str, path: Path, parse: Callable[[bytes], Any]) -> Any | None:
        try:
            return parse(read_plain(path))
        except OSError as error:
            self._say(kind, name, Fate.REFUSED, f"it cannot be read ({error.strerror}). Make it readable.")
            return None
        except ValueError as error:
            why = str(error).splitlines()[0][:200]
            newer = isinstance(error, SchemaError)
            what = "Update this program." if newer else "Delete it and run its cell again."
            self._say(kind, name, Fate.REFUSED, f"{why}. {what}" if newer else f"it is damaged ({why}). {what}")
            return None

    def _say(self, kind: str, name: str, fate: Fate, why: str = "") -> None:
        self.found.items.append(Item(kind, name, fate, why))


def write(publication: Publication, into: Path) -> None:
    """Write `publication` to `into`, no pages. Raises :class:`BenchError`, without changes, if refused or disk full."""
    if publication.refused:
        raise BenchError("nothing is written, because something was refused.")
    for folder in _FOLDERS:
        for aside in (into / folder).glob(".*.tmp"):
            aside.unlink(missing_ok=True)  # left by a killed command, since this one holds the lock
    gone = [into / name for name in publication.gone if name not in publication.files]
    files = {into / name: data for name, data in publication.files.items()}
    if publication.replays:
        files[into / REPLAYS] = replays_text([*read_replays(into), *publication.replays]).encode()
    write_together(files, gone)


def rebuild(folder: Path) -> list[Path]:
    """Rebuild the board's pages in `folder`, and the table of a marked README.md next to it; return the paths.

    Raises :class:`BenchError` if a record is damaged or refused, since the pages would omit it.
    """
    found = gather([folder])
    for line in found.warnings:
        raise BenchError(f"{line}. Restore it by git, then give the same command again.")
    for key, why in found.board.refused:
        raise BenchError(f"the record {key} is not shown: {why}. Delete it, then give the same command again.")
    readme = folder.parent / "README.md"
    marked = readme.is_file() and BEGIN in readme.read_text(encoding="utf-8")
    return write_pages(folder, found, readme=readme if marked else None)
