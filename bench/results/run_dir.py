"""The run directory: layout, lock and records.

    RUN_DIR/run.json                 layout version
    RUN_DIR/records/KEY.json         one record per cell; damaged ones move to records/damaged/
    RUN_DIR/released/KEY.safetensors released student, with KEY.png, an image grid of synthetic images
    RUN_DIR/attacks/KEY.json         one record per attack on a student, with its pictures
    RUN_DIR/audits/KEY.json          one record per audit of a student's pipeline
    RUN_DIR/logs/KEY.log             traceback of a failed cell
    RUN_DIR/claims/KEY               held by the process that makes the result; see bench.storage.locks
    RUN_DIR/launches/ID/             plan of one `bench run`, `attack` or `audit`, for its workers and `bench status`
    RUN_DIR/cache/                   private artefacts (mode 0700): never published
    RUN_DIR/tuning/ID/               trials of an unfinished tuning (mode 0700): deleted when it ends
    RUN_DIR/noise/KEY                salt of an unfinished cell's noise (mode 0700); see bench.experiments.noise_salt

All writes are atomic: write to a temporary file, sync, rename.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.core.errors import BenchError
from bench.core.plain_files import check_run_dir, check_unshared, listed, read_plain
from bench.core.processes import owner_only
from bench.core.rows import json_object
from bench.results.attack_record import AttackRecord, AuditRecord, R, parse_row
from bench.results.record import SCHEMA_VERSION, Record, Status, glance, parse_record
from bench.storage.files import explain_os_error, identity, write_atomic, writing
from bench.storage.locks import NO_LOCKS, Held, Owner, look, take, without_locks

LAYOUT_VERSION = 1


def _lock(descriptor: int, kind: int) -> None:
    """Take the lock or raise OSError; retries for half a second, because readers hold it briefly."""
    for last in (*[False] * 9, True):
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError:
            if last:
                raise
            time.sleep(0.05)


@dataclass(slots=True)
class Records:
    """The valid records of a directory, and a line for each that is damaged or cannot be read."""

    found: list[Record] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


class RunDir:
    """A run directory. Opening it creates no file; :meth:`create` does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records_path = path / "records"
        self.released_path = path / "released"
        self.attacks_path = path / "attacks"
        self.audits_path = path / "audits"
        self.logs_path = path / "logs"
        self.claims_path = path / "claims"
        self.launches_path = path / "launches"
        self.cache_path = path / "cache"
        self.noise_path = path / "noise"
        self.tuning_path = path / "tuning"

    def check_writable(self) -> None:
        """Raise :class:`BenchError` if the directory cannot be created; leaves no trace."""
        if self.path.is_dir():
            return
        made: list[Path] = []
        try:
            with writing(self.path):
                for folder in reversed([self.path, *self.path.parents]):
                    if not folder.exists():
                        folder.mkdir()
                        made.append(folder)
        finally:
            for folder in reversed(made):
                folder.rmdir()

    def create(self) -> RunDir:
        """Create the directory; raise BenchError if it is unwritable, a file, or of another layout version."""
        try:
            folders = (self.records_path, self.released_path, self.attacks_path, self.audits_path, self.logs_path)
            for folder in (self.path, *folders):
                folder.mkdir(parents=True, exist_ok=True)
            for private in (self.cache_path, self.launches_path, self.claims_path):
                private.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError as error:
            raise BenchError(f"{error.filename} is a file, not a directory. Choose another with --out.") from error
        except OSError as error:
            raise explain_os_error(error, self.path) from error
        marker = self.path / "run.json"
        if marker.exists():
            self.check_layout()
        else:
            try:
                write_atomic(marker, json.dumps({"layout": LAYOUT_VERSION, "schema": SCHEMA_VERSION}).encode() + b"\n")
            except BenchError:
                if not marker.exists():  # otherwise another process made it and removed this one's temporary file
                    raise
        return self

    def check_layout(self) -> None:
        """Raise :class:`BenchError` if the path is a file or has another layout version."""
        if self.path.exists() and not self.path.is_dir():
            raise BenchError(f"{self.path} is a file, not a directory. Choose another with --out.")
        marker = self.path / "run.json"
        try:
            layout = json_object(read_plain(marker)).get("layout")
        except FileNotFoundError:
            return
        except OSError as error:
            raise BenchError(f"{marker} cannot be read ({error.strerror}). Make it readable.") from error
        except ValueError as error:
            raise BenchError(
                f"{marker} is damaged. Delete it if the directory is one of this program's; its records stay."
            ) from error
        if layout != LAYOUT_VERSION:
            raise BenchError(
                f"{self.path} has layout version {layout!r}; this program writes {LAYOUT_VERSION}. "
                "Use the program that made it, or another directory with --out."
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory exclusively, for tuning; raise BenchError while another process uses it."""
        with self._opened_lock() as descriptor:
            try:
                _lock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                raise self._in_use(descriptor, error) from error
            self._clean()
            with writing(self.path / ".lock"):  # the disk may be full
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
            os.ftruncate(descriptor, 0)

    @contextmanager
    def joined(self, patience: float = 0.0) -> Iterator[None]:
        """Share the directory with other commands; raise BenchError if held exclusively beyond `patience` seconds."""
        with self._opened_lock() as descriptor:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(descriptor, 0)  # remove the process id of a killed tuning
                self._clean()  # safe: no other process uses the directory
            begin = time.monotonic()
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    # If the lock file is empty, another run is cleaning up, which takes seconds on a slow disk.
                    wait = patience if os.pread(descriptor, 32, 0).strip() else max(patience, 60.0)
                    if error.errno in NO_LOCKS or time.monotonic() - begin >= wait:
                        raise self._in_use(descriptor, error) from error
                time.sleep(0.1)
            yield

    @contextmanager
    def _opened_lock(self) -> Iterator[int]:
        lock = self.path / ".lock"
        with writing(lock):
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _in_use(self, descriptor: int, error: OSError) -> BenchError:
        if error.errno in NO_LOCKS:
            return without_locks(self.path, error)
        if owner := os.pread(descriptor, 32, 0).decode(errors="replace").strip():
            return BenchError(
                f"{self.path} is in use by a tuning (process {owner}). Wait for it, stop it with Ctrl-C or "
                f"`kill {owner}` (it goes on where it was), or choose another directory with --out."
            )
        return BenchError(
            f"{self.path} is in use by runs, attacks or audits. `python -m bench status -o {self.path}` shows them, "
            f"`python -m bench cancel -o {self.path}` stops them. Wait, or choose another directory with --out."
        )

    def _clean(self) -> None:
        """Remove artefact locks and killed processes' partial writes, but nothing behind a link out of the directory.

        Requires the exclusive lock.
        """
        home = self.path.resolve()
        places = (".", "records", "released", "attacks", "audits", "logs", "cache", "cache/calibrations", "noise",
                  "launches/*")  # fmt: skip
        for pattern in (*(f"{place}/.*.tmp" for place in places), "cache/locks/*"):
            for path in self.path.glob(pattern):
                if path.parent.resolve().is_relative_to(home):
                    path.unlink(missing_ok=True)

    def claim(self, key: str, **about: object) -> Held | None:
        """Return the claim on the result `key`, described by `about`, or None while another process holds it."""
        return take(self.claims_path / key, **about)

    def claims(self) -> dict[str, Owner]:
        """Return the owner of each claimed result by key, dead owners included (not `held`)."""
        looked = ((path.name, look(path)) for path in listed(self.claims_path))
        return {key: owner for key, owner in looked if owner is not None}

    def sweep_claims(self) -> None:
        """Remove the claims that killed processes left on results that have a record."""
        for key, owner in self.claims().items():
            if not owner.held and self.signature(key) is not None and (held := self.claim(key)) is not None:
                held.release()

    def running(self) -> set[str]:
        """Return the keys of the running cells."""
        return {key for key, owner in self.claims().items() if owner.held}

    def recorded(self) -> set[str]:
        """Return the keys of all records, from one directory listing."""
        return {path.stem for path in listed(self.records_path, ".json")}

    def signature(self, key: str) -> tuple[int, int] | None:
        """Return an identifier that changes when the cell's record is rewritten, None without a record."""
        return self.file_signature(f"records/{key}.json")

    def file_signature(self, file: str) -> tuple[int, int] | None:
        """Return an identifier that changes when `file` of the directory is rewritten, None without the file."""
        return identity(self.path / file)

    def record_path(self, key: str) -> Path:
        """Return the path of the cell's record."""
        return self.records_path / f"{key}.json"

    @contextmanager
    def guarded(self, private: bool) -> Iterator[None]:
        """If `private`, let only the owner read the result folders and what is written in the block.

        Raise :class:`BenchError` if others may write to the cache.
        """
        if private:
            check_unshared(self.cache_path)
            with writing(self.path):
                shut = (self.records_path, self.released_path, self.attacks_path, self.audits_path, self.logs_path)
                for folder in shut:
                    folder.chmod(0o700)
        with owner_only(private):
            yield

    def write_record(self, record: Record) -> Path:
        """Write `record`, delete what killed attempts left of it, and return its path."""
        path = self.record_path(record.key)
        with self.guarded(record.disclosure.owner_only):
            write_atomic(path, record.to_json().encode())
            for left in path.parent.glob(f".{path.name}.*.tmp"):  # by a killed attempt: the caller holds the claim
                left.unlink(missing_ok=True)
        return path

    def read_record(self, key: str) -> Record | None:
        """Return the cell's record; None if it is missing, unreadable, or damaged (then it is set aside)."""
        found, _ = self.read_records_of([key])
        return found[0] if found else None

    def read_records_of(self, keys: Iterable[str], *, set_aside: bool = True) -> tuple[list[Record], list[str]]:
        """Return the valid records of `keys`, in their order, and a line for each other (see read_records)."""
        records = Records()
        for key in keys:
            self._read_into(records, self.record_path(key), set_aside=set_aside)
        return records.found, records.damaged

    def read_records(self, *, set_aside: bool = True) -> Records:
        """Return all records; damaged ones move to records/damaged if `set_aside`, and their cells run again.

        A record that the system cannot read now (permission, disk, network) may be intact: it stays, and its cell does
        not run again. Raise :class:`BenchError` for a missing directory or another layout version.
        """
        check_run_dir(self.path)
        self.check_layout()
        records = Records()
        try:
            paths = listed(self.records_path, ".json")
        except BenchError as error:
            return Records(damaged=[str(error)])
        for path in paths:
            self._read_into(records, path, set_aside=set_aside)
        return records

    def statuses(self, keys: Collection[str]) -> dict[str, Status | None]:
        """Return the status of each cell in `keys` with a valid record and an existing student file.

        The status is None if the system cannot read the record. Reads only these records and moves no file. Raise
        :class:`BenchError` for another layout version.
        """
        self.check_layout()
        # One listing saves a system call per missing record.
        there = {path.name for path in listed(self.records_path)}
        released = {f"{self.released_path.name}/{path.name}" for path in listed(self.released_path)}
        found: dict[str, Status | None] = {}
        for key in keys:
            path = self.record_path(key)
            if path.name not in there:
                continue
            try:
                seen = glance(read_plain(path))
            except (FileNotFoundError, ValueError):
                continue
            except OSError:
                found[key] = None
                continue
            if seen is None or seen.key != key:
                continue
            if seen.file is None or seen.file in released or os.path.exists(self.path / seen.file):
                found[key] = seen.status
        return found

    def write_row(self, row: AttackRecord | AuditRecord) -> None:
        """Write the record of an attack or audit."""
        folder = self.attacks_path if isinstance(row, AttackRecord) else self.audits_path
        write_atomic(folder / f"{row.key}.json", row.to_json().encode())

    def forget_attacks(self, student: str) -> None:
        """Delete the attacks on a `student` that another one replaces, and their pictures."""
        for path in listed(self.attacks_path):
            if path.name.startswith(f"{student}--"):
                path.unlink(missing_ok=True)

    def read_attack(self, key: str) -> AttackRecord | None:
        """Return the attack `key`; None if it is missing or damaged; raise BenchError if the system cannot read it."""
        return self._read_row(self.attacks_path / f"{key}.json", AttackRecord)

    def read_audit(self, key: str) -> AuditRecord | None:
        """Return the audit `key`; see :meth:`read_attack`."""
        return self._read_row(self.audits_path / f"{key}.json", AuditRecord)

    def _read_row(self, path: Path, kind: type[R]) -> R | None:
        try:
            return parse_row(read_plain(path), kind)
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise BenchError(
                f"{path} cannot be read ({error.strerror}). Make it readable, or delete it to regenerate it."
            ) from error

    def read_attacks(self) -> tuple[list[AttackRecord], list[str]]:
        """Return the attack records by key, and a line for each other file (left in place)."""
        return self._read_rows(self.attacks_path, AttackRecord)

    def read_audits(self) -> tuple[list[AuditRecord], list[str]]:
        """Return the audit records by key, and a line for each other file (left in place)."""
        return self._read_rows(self.audits_path, AuditRecord)

    def _read_rows(self, folder: Path, kind: type[R]) -> tuple[list[R], list[str]]:
        found, damaged = [], []
        try:
            paths = listed(folder, ".json")
        except BenchError as error:
            return [], [str(error)]
        for path in paths:
            try:
                found.append(parse_row(read_plain(path), kind))
            except OSError as error:
                damaged.append(f"{path} cannot be read ({error.strerror})")
            except ValueError as error:
                damaged.append(f"{path} is damaged ({str(error).splitlines()[0]}); run its attack or audit again")
        return found, damaged

    def _read_into(self, records: Records, path: Path, *, set_aside: bool = True) -> None:
        try:
            record = parse_record(read_plain(path))
        except FileNotFoundError:
            return
        except OSError as error:
            records.damaged.append(f"{path} cannot be read ({error.strerror}); its cell is not run again")
            return
        except ValueError as error:
            self._damaged(records, path, str(error).splitlines()[0], set_aside)
            return
        if record.key != path.stem:
            self._damaged(records, path, f"it holds the record of {record.key}", set_aside)
            return
        records.found.append(record)

    def _damaged(self, records: Records, path: Path, why: str, set_aside: bool) -> None:
        where = path
        if set_aside:
            where = path.parent / "damaged" / path.name
            try:
                where.parent.mkdir(exist_ok=True)
                os.replace(path, where)
            except OSError:
                where = path
        records.damaged.append(f"{path.name} is damaged ({why}); it lies in {where}")
