"""The list of a set of image files, stored next to the data, so that later jobs need not stat every file.

A list holds names, sizes, modification times and labels, the times of all folders, and the revision. Before it is used
again, the times of all folders and the size and time of `SAMPLE` evenly spaced files are compared with the disk; if one
differs, the files are listed and the revision is computed again.

This detects a file that was added, removed, renamed or replaced by renaming, which changes a folder's time. It can miss
a change in place to a file outside the sample, and any change that restores the old times. A record's revision still
identifies what its run has read: each file's size and time are compared with the list when it is decoded, and the
decoded images (:mod:`bench.data.image_map`) belong to one list.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.plain_files import check_unshared
from bench.core.processes import owner_only
from bench.data.spec import LoadRequest
from bench.storage.array_store import Blocks, DamagedError, locked, read_store, storage_errors, write_store

SAMPLE = 1_000
"""Number of files compared with the disk before a kept list is used again."""
RACE_NS = 50_000_000
"""A folder that changed this recently before it was listed may have changed again within the same clock tick."""
FOLDERS = "folders"
"""Folder in the data root, readable only by its owner, for lists and decoded images of sets of files."""


class ChangedError(BenchError):
    """A file has changed since its set was listed."""

    told = "an image has changed since its folder was listed"


class Names:
    """Names in one array of bytes; only requested names are read from the disk."""

    def __init__(self, text: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._text, self._ends = text, ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> str:
        first = int(self._ends[number - 1]) if number else 0
        return os.fsdecode(self._text[first : int(self._ends[number])].tobytes())


@dataclass(frozen=True)
class Half:
    """The training or the test files: names relative to `base`, labels (n,), sizes and times in ns (n, 2)."""

    base: Path
    files: Names | Sequence[str]
    labels: NDArray[np.int64]
    stamps: NDArray[np.int64]


Listing = tuple[Path, Sequence[str], "NDArray[np.int64]"]
"""A folder, the files below it by relative name, and their labels."""


def place(root: Path, path: Path, shape: tuple[int, int, int], values: tuple[float, float] | None = None) -> Path:
    """Return the path, without a suffix, of the files stored for the data in `path` with this shape and range."""
    text = os.fsencode(path.resolve()) + repr(tuple(shape)).encode() + (repr(values).encode() if values else b"")
    return root / FOLDERS / hashlib.sha256(text).hexdigest()[:20]


def stamp(path: Path, *, plain: bool = False) -> tuple[int, int]:
    """Return the size in bytes and the modification time in ns; raise ChangedError if the file does not exist.

    With `plain`, raise BenchError unless it is a regular file or a link to one.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        raise ChangedError(f"cannot read the image {path}: {error.strerror}.") from error
    if plain and not S_ISREG(found.st_mode):
        raise BenchError(f"cannot read the image {path}: it is not a regular file. Remove it from the folder.")
    return found.st_size, found.st_mtime_ns


def kept_list(
    request: LoadRequest, path: Path, bases: tuple[Path, Path], make: Callable[[list[Path]], tuple[Listing, Listing]],
    revise: Callable[[Sequence[Half]], str], mark: bytes = b"",
) -> tuple[Half, Half, str]:  # fmt: skip
    """Return the files of the set in `path` and its revision: as stored, otherwise from `make` and `revise`.

    `make` returns listings of the files below the two `bases`, and appends each folder that it has read to the list
    that it is given. A kept list with another `mark` is not used. Raise BenchError if files vanish during this,
    StorageError if the list cannot be stored.
    """
    target = place(request.root, path, request.spec.shape).with_suffix(".list")
    check_unshared(target.parent)
    if kept := _unchanged(target, path, bases, mark):
        return kept
    with storage_errors(target):
        request.root.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(mode=0o700, exist_ok=True)
    with locked(target.parent, target.name, request.progress):
        if kept := _unchanged(target, path, bases, mark):  # another process made it while this one was waiting
            return kept
        began, folders = time.time_ns() - RACE_NS, [path]
        halves = []
        for base, files, labels in make(folders):
            stamps = np.empty((len(files), 2), dtype=np.int64)
            for number, file in enumerate(files):
                stamps[number] = stamp(base / file, plain=True)
                if number % 4096 == 0:
                    request.progress(f"listing {base}", number, len(files))
            halves.append(Half(base, files, labels, stamps))
        times = [stamp(folder)[1] for folder in folders]
        revision = revise(halves)
        arrays: dict[str, NDArray[Any]] = {
            "mark": np.frombuffer(hashlib.sha256(mark).digest(), dtype=np.uint8),
            "revision": np.frombuffer(revision.encode(), dtype=np.uint8),
            # The time -1 never matches, so the next job lists the folder again.
            "folder_times": np.array([-1 if when >= began else when for when in times], dtype=np.int64),
            **_names("folder", [os.path.relpath(folder, path) for folder in folders]),
        }
        for name, half in zip(("train", "test"), halves, strict=True):
            arrays |= _names(name, half.files) | {f"{name}_labels": half.labels, f"{name}_stamps": half.stamps}
        stored = {name: Blocks.of(array) for name, array in arrays.items()}
        with owner_only(True):  # names of private files
            write_store(target.parent, target.name, stored, f"files in {path}")
    return halves[0], halves[1], revision


def forget_list(kept: Path) -> None:
    """Remove the list at the :func:`place` `kept`, so that the files are listed again."""
    shutil.rmtree(kept.with_suffix(".list"), ignore_errors=True)


def _names(name: str, files: Names | Sequence[str]) -> dict[str, NDArray[Any]]:
    raw = [os.fsencode(files[number]) for number in range(len(files))]
    ends = np.cumsum([len(one) for one in raw], dtype=np.int64)
    return {f"{name}_names": np.frombuffer(b"".join(raw), dtype=np.uint8), f"{name}_ends": ends}


def _unchanged(target: Path, path: Path, bases: tuple[Path, Path], mark: bytes) -> tuple[Half, Half, str] | None:
    """Return the stored list, or None if it is missing or damaged, or its mark, folders or sample differ."""
    try:
        found = read_store(target.parent, target.name)
        if found is None:
            return None
        arrays = found[0]
        if arrays["mark"].tobytes() != hashlib.sha256(mark).digest():
            return None
        folders = Names(arrays["folder_names"], arrays["folder_ends"])
        if any(stamp(path / folders[n])[1] != int(when) for n, when in enumerate(arrays["folder_times"])):
            return None
        halves = [
            Half(base, Names(arrays[f"{name}_names"], arrays[f"{name}_ends"]), arrays[f"{name}_labels"],
                 arrays[f"{name}_stamps"])
            for name, base in zip(("train", "test"), bases, strict=True)
        ]  # fmt: skip
        border = len(halves[0].files)
        total = border + len(halves[1].files)
        for position in np.unique(np.linspace(0, total - 1, min(SAMPLE, total)).astype(np.int64)).tolist():
            half, row = (halves[0], position) if position < border else (halves[1], position - border)
            if stamp(half.base / half.files[row]) != tuple(half.stamps[row].tolist()):
                return None
        return halves[0], halves[1], arrays["revision"].tobytes().decode()
    except (DamagedError, ChangedError, KeyError, IndexError, ValueError):
        return None
