"""Files written atomically: one, or several together."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.core.errors import BenchError


def write_together(files: Mapping[Path, bytes], gone: Iterable[Path] = (), *, mode: int = 0o644) -> None:
    """Write `files` so that none has changed until the data of all of them is on the disk, and delete `gone`.

    A kill at any moment leaves the old or the new file of each name. Deletions come before the new names: a kill in
    between leaves too little rather than files that refer to missing ones.

    Raises :class:`BenchError` on a full disk or a folder that cannot be written; no file has changed then.
    """
    asides: dict[Path, Path] = {}
    path = Path()
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Not by process number: those of two machines may be the same.
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
    """Write one file; see :func:`write_together`."""
    write_together({path: data}, mode=mode)


def explain_os_error(error: OSError, path: Path) -> BenchError:
    """Return `error`, met while writing `path`, as a message for the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BenchError(
            f"the disk is full: {path} could not be written. Free some space and give the same command again; "
            "what is done is kept."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return BenchError(f"{path} cannot be written ({error.strerror}). Choose another directory with --out.")
    return BenchError(f"{path} could not be written: {error.strerror or error}.")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of code that only writes to `path` into a :class:`BenchError` for the user."""
    try:
        yield
    except OSError as error:
        raise explain_os_error(error, path) from error
