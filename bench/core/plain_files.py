"""Read untrusted files and folders: regular files only, with a size limit."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from bench.core.errors import BenchError

LARGEST = 8 << 20
"""Limit on the bytes of a record or picture."""


def check_run_dir(path: Path, keys: Iterable[str] | None = None) -> None:
    """Raise :class:`BenchError` if there is no run directory `path`, or if one of `keys`, of students, is a folder."""
    if folder := next((key for key in keys or () if Path(key).is_dir()), ""):
        raise BenchError(f"{folder} is a folder, not a student's key. Name a run directory by --out (in Python: out=).")
    if not path.is_dir():
        raise BenchError(f"no such run directory: {path}. `python -m bench run --out DIR` makes one.")


@contextmanager
def open_plain(path: Path, *, links: bool = False) -> Iterator[BufferedReader]:
    """Open a regular file for reading, or with `links` also a link to one.

    Raise ValueError for a folder, device or pipe, and for a link, which may lead out of a run directory, without
    `links`; OSError as `open`.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would block until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise ValueError("not a regular file") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_plain(path: Path, largest: int = LARGEST, *, links: bool = False) -> bytes:
    """Return the bytes of a regular file; raise as :func:`open_plain`, and ValueError for more than `largest` bytes."""
    with open_plain(path, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, largest) + 1)  # read one byte more than the limit, because the file may have grown
    if len(data) > largest:
        limit = f"{largest >> 20} MiB" if largest >= 1 << 20 else f"{largest >> 10} KiB"
        raise ValueError(f"larger than {limit}")
    return data


def listed(folder: Path, end: str = "") -> list[Path]:
    """Return the sorted entries of `folder` whose names end in `end`, or an empty list if the folder does not exist.

    Raise :class:`BenchError` if the system cannot read it, because it may not be empty.
    """
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(end))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BenchError(
            f"{folder} cannot be read ({error.strerror}), so its contents are unknown. Make it readable."
        ) from error


def user_path(text: str | Path) -> Path:
    """Expand ``~`` and ``~NAME`` in a path; leave them unchanged if the system does not know the user.

    `Path.expanduser` would raise RuntimeError.
    """
    return Path(os.path.expanduser(text))


def check_unshared(folder: Path) -> None:
    """Raise :class:`BenchError` if other users may write to `folder`, because its contents carry no signature."""
    with suppress(FileNotFoundError):
        if os.stat(folder).st_mode & 0o022:
            raise BenchError(
                f"{folder} can be written by other users, who could replace files that runs on private data read. "
                f"Give `chmod go-w {folder}` if you trust its contents, or delete it."
            )
