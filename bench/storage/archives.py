"""Extract chosen members from an untrusted archive, each to a path that the caller chooses; links are refused."""

from __future__ import annotations

import gzip
import lzma
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from bench.core.errors import BenchError

Wanted = Callable[[str], "str | None"]
"""Maps a member's name to the relative path to extract it to, or to None."""

LARGEST_MEMBER = 16 << 30
"""Limit on a member's unpacked bytes, against decompression bombs."""


_UNREADABLE = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError,
    RuntimeError,  # from zipfile: encrypted, or an unknown compression
)  # fmt: skip


def only(*patterns: str, keep: int = 1) -> Wanted:
    """Return the rule that keeps the last `keep` parts of names matching one of `patterns`; ``*`` matches no slash."""

    def wanted(name: str) -> str | None:
        parts = name.removeprefix("./").split("/")
        for pattern in patterns:
            wild = pattern.split("/")
            if len(parts) == len(wild) and all(map(fnmatchcase, parts, wild)):
                return "/".join(parts[-keep:])
        return None

    return wanted


def extract(archive: Path, into: Path, wanted: Wanted) -> int:
    """Unpack the `wanted` members of `archive` (tar, zip, wheel or Debian package) below `into`; return their number.

    Raise BenchError for a damaged archive, no wanted member, one that is not a regular file, or a path outside `into`.
    """
    into.mkdir(parents=True, exist_ok=True)
    count = 0
    try:
        for name, size, stream in _members(archive, wanted):
            path = _inside(into, str(wanted(name)))
            if stream is None or size > LARGEST_MEMBER:
                raise BenchError(f"{archive.name}: {name!r} is not a regular file of a plausible size; refused")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as target:
                shutil.copyfileobj(stream, target, 1 << 20)
            count += 1
    except _UNREADABLE as error:
        raise BenchError(f"{archive.name} is damaged, cut short or encrypted ({error})") from error
    if not count:
        raise BenchError(f"{archive.name} holds none of the expected files")
    return count


def _inside(into: Path, relative: str) -> Path:
    pure = PurePosixPath(relative)
    if pure.is_absolute() or ".." in pure.parts or "\\" in relative or not pure.parts:
        raise BenchError(f"the path {relative!r} leaves the target folder; refused")
    return into.joinpath(*pure.parts)


def _members(archive: Path, wanted: Wanted) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    """Yield name, unpacked size and stream of every wanted member; the stream is None unless it is a regular file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir() and wanted(info.filename) is not None:
                    is_link = (info.external_attr >> 28) == 0o12
                    with packed.open(info) as stream:
                        yield info.filename, info.file_size, None if is_link else stream
        return
    with _tar(archive) as packed_tar:
        for member in packed_tar:
            if not member.isdir() and wanted(member.name) is not None:
                yield member.name, member.size, packed_tar.extractfile(member) if member.isreg() else None


@contextmanager
def _tar(archive: Path) -> Iterator[tarfile.TarFile]:
    if archive.suffix != ".deb":
        with tarfile.open(archive, "r|*") as packed:
            yield packed
        return
    try:
        process = subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise BenchError("dpkg-deb is not installed, so a Debian package cannot be unpacked") from error
    try:
        with tarfile.open(fileobj=process.stdout, mode="r|") as packed:
            yield packed
    finally:
        # Otherwise the process would stay blocked on its pipe when the caller stops early.
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
