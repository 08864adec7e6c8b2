"""Reads of files and folders that others may have made: plain files only, of a limited size."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from bench.core.errors import BenchError

LARGEST = 8 << 20
"""Limit on the bytes of a record or picture."""


@contextmanager
def open_plain(path: Path, *, links: bool = False) -> Iterator[BufferedReader]:
    """Open a plain file, or with `links` a link to one, to read.

    Raise ValueError for a folder, device or pipe, and for a link, which may lead out of a run directory, without
    `links`; OSError as `open`.
    """
    try:
        # Without O_NONBLOCK a pipe would block until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise ValueError("no plain file") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("no plain file")
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_plain(path: Path, largest: int = LARGEST, *, links: bool = False) -> bytes:
    """Return the bytes of a plain file; raise as :func:`open_plain`, and ValueError for more than `largest` bytes."""
    with open_plain(path, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, largest) + 1)  # one more than there should be: a file may grow
    if len(data) > largest:
        limit = f"{largest >> 20} MiB" if largest >= 1 << 20 else f"{largest >> 10} KiB"
        raise ValueError(f"larger than {limit}")
    return data


def listed(folder: Path, end: str = "") -> list[Path]:
    """Return the entries of `folder` whose names end in `end`, sorted; none where there is no folder.

    Raise :class:`BenchError` where the system cannot read it: what it holds is not known to be nothing.
    """
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(end))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BenchError(
            f"{folder} cannot be read ({error.strerror}): what it holds is not known. Make it readable."
        ) from error


def user_path(text: str | Path) -> Path:
    """Return a path with ``~`` and ``~NAME`` as that user's home, left as they are where the system knows no such user.

    `Path.expanduser` raises RuntimeError then.
    """
    return Path(os.path.expanduser(text))


def check_unshared(folder: Path) -> None:
    """Raise :class:`BenchError` if other users may write into `folder`: what is kept there carries no key to verify."""
    with suppress(FileNotFoundError):
        if os.stat(folder).st_mode & 0o022:
            raise BenchError(
                f"{folder} can be written by other users, who could exchange what runs on private data take from it. "
                f"Give `chmod go-w {folder}` if you trust what is in it, or delete it."
            )
