"""Atomic writes of one file or several files, and whether a file was replaced."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.core.errors import BenchError


def write_together(files: Mapping[Path, bytes], gone: Iterable[Path] = (), *, mode: int = 0o644) -> None:
    """Write `files` and delete `gone`; no file changes before all data is on disk.

    A kill leaves the old or the new file of each name. Deletions precede renames, so a kill leaves too few files rather
    than dangling references. Raise :class:`BenchError`, with no file changed, on a full disk or an unwritable folder.
    """
    asides: dict[Path, Path] = {}
    path = Path()
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Do not use the process id, which two machines may share.
            asides[path] = aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path in gone:
            path.unlink(missing_ok=True)
        for path, aside in asides.items():
            os.replace(aside, path)
        for folder in {path.parent for path in files}:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise explain_os_error(error, path) from error
    finally:
        for aside in asides.values():
            aside.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write one file atomically; see :func:`write_together`."""
    write_together({path: data}, mode=mode)


def identity(path: Path) -> tuple[int, int] | None:
    """Return an identifier that changes when the file is replaced, None if it is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def explain_os_error(error: OSError, path: Path) -> BenchError:
    """Return a user error for `error`, raised while writing `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BenchError(
            f"the disk is full: {path} could not be written. Free some space and give the same command again; "
            "what is done is kept."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return BenchError(f"{path} cannot be written ({error.strerror}). Choose another place to write to.")
    return BenchError(f"{path} could not be written: {error.strerror or error}. Choose another place to write to.")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block, which only writes to `path`, into a :class:`BenchError`."""
    try:
        yield
    except OSError as error:
        raise explain_os_error(error, path) from error
