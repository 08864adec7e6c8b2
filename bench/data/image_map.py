"""Decoded images of a set of files, in one uint8 file that every process maps instead of holding it in memory.

The file is made once, by all cores, next to the list of the files (:mod:`bench.data.file_list`). A second file holds a
digest of each row (BLAKE2b, 16 bytes), written after the row, so that rows with a digest survive a kill. Before the
files are renamed into place, every row is read again and compared. A later job compares the sizes and `SAMPLE` evenly
spaced rows; only :func:`verify_map` compares all rows and detects damage to the others.

Rows are in the order of the usual split, so its private, public and test images are each contiguous in the file, and
their tensors are views. The mapping is copy-on-write: no method can change the file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.core.errors import BenchError
from bench.core.fetch_progress import Progress, silent
from bench.core.lazy_libraries import torch
from bench.core.processes import available_cores, end_with_parent, owner_only
from bench.data.image_files import FileRecords, ListedFile, check_listed, decode
from bench.data.spec import ArrayRecords, Loaded
from bench.storage.array_store import (
    FORMAT,
    DamagedError,
    StorageError,
    locked,
    put_in_place,
    read_manifest,
    read_store,
    storage_errors,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]

CHUNK = 64
"""Number of images that a process decodes at a time."""
POOL_FROM = 1_000
"""Smallest number of images that several processes decode; starting them takes seconds."""
SAMPLE = 64
"""Number of rows that every job compares with their digests."""
DIGEST = 16


@dataclass(frozen=True, slots=True)
class Mapping:
    """An open file of images (n, channels, height, width); `identity` changes when another file replaces it."""

    path: Path
    identity: tuple[int, int]
    images: NDArray[np.uint8]
    digests: NDArray[np.uint8]

    def tensor(self) -> torch.Tensor:
        """Return all images as one tensor over the file, known to :func:`mapping_of`."""
        whole = torch.from_numpy(self.images)
        _OPEN[whole.untyped_storage().data_ptr()] = self
        return whole


_OPEN: dict[int, Mapping] = {}
"""The mappings of this process by the address of their tensor. They stay open."""


class MappedRecords(ArrayRecords):
    """Records whose images are rows of a mapping."""

    def __init__(self, mapping: Mapping, labels: Indices, rows: Indices) -> None:
        super().__init__(mapping.images, labels, rows)
        self.mapping, self.rows = mapping, rows


def mapping_of(images: torch.Tensor) -> tuple[Mapping, int] | None:
    """Return the mapping that contains `images` and the first row of `images` in it, or None."""
    found = _OPEN.get(images.untyped_storage().data_ptr()) if images.device.type == "cpu" else None
    if found is None or tuple(images.shape[1:]) != found.images.shape[1:] or not images.is_contiguous():
        return None
    first, within = divmod(int(images.storage_offset()), int(np.prod(found.images.shape[1:])))
    return None if within else (found, first)


@functools.cache
def open_mapping(path: Path, identity: tuple[int, int]) -> Mapping:
    """Return the mapping at `path`, opened once per process; raise BenchError if another file has replaced it."""
    made = _opened(path.parent.parent, path.parent.name)
    if made.identity != identity:
        raise BenchError(f"{path} was replaced while it was in use. Give the same command again.")
    return made


def mapped(loaded: Loaded, order: Indices, progress: Progress = silent) -> Loaded:
    """Return `loaded` over a mapping of its decoded images, made if missing; `loaded` itself if they are not files.

    A new mapping has its rows in `order`, pooled indices of all records. Raise BenchError if an image is damaged or has
    changed since it was listed, or if the disk has no room.
    """
    train, test = loaded.train, loaded.test
    if not isinstance(train, FileRecords) or not isinstance(test, FileRecords):
        return loaded
    digest = hashlib.sha256(loaded.revision.encode())
    for records in (train, test):
        digest.update(np.ascontiguousarray(records.half.stamps).data)
    # Include the times: names and sizes, which identify a public set, stay the same if an image is replaced.
    tag = digest.hexdigest()
    target = train.kept.with_suffix(".map")
    found = _look(target, tag)
    if found is None:
        with locked(target.parent, target.name, progress):
            found = _look(target, tag)  # another process may have made it in the meantime
            if found is None:
                _make(target, tag, (train, test), order, progress)
                found = _look(target, tag)
    if found is None:
        raise BenchError(f"{target} was just written but is missing or damaged. Check the disk.")
    mapping, rows = found
    halves = [
        MappedRecords(mapping, records.labels, which)
        for records, which in zip((train, test), np.split(rows, [len(train)]), strict=True)
    ]
    return replace(loaded, train=halves[0], test=halves[1])


def _look(target: Path, tag: str) -> tuple[Mapping, Indices] | None:
    """Return the mapping at `target` and the row of each pooled index; None if missing, damaged or of another tag."""
    try:
        manifest = read_manifest(target.parent, target.name)
        if manifest is None or manifest["revision"] != tag:
            return None
        found = read_store(target.parent, target.name)
        if found is None:
            return None
        made, order = _opened(target.parent, target.name), found[0]["order"]
        sample = np.unique(np.linspace(0, len(order) - 1, min(SAMPLE, len(order))).astype(np.int64))
        if not all(_is_sound(made.images, made.digests, row) for row in sample.tolist()):
            return None
        rows = np.empty(len(order), dtype=np.int64)
        rows[order] = np.arange(len(order))
        return made, rows
    except (DamagedError, KeyError, IndexError):
        return None


def _opened(root: Path, store: str) -> Mapping:
    path = root / store / "images.npy"
    with storage_errors(path):
        found = path.stat()
        images = np.load(path, mmap_mode="c", allow_pickle=False)
        digests = np.load(path.with_name("digests.npy"), mmap_mode="r", allow_pickle=False)
    return Mapping(path, (found.st_ino, found.st_mtime_ns), images, digests)


def _make(target: Path, tag: str, halves: tuple[FileRecords, FileRecords], order: Indices, progress: Progress) -> None:
    """Decode all images into `target`, resuming where a killed process stopped."""
    records, shape = len(order), halves[0].shape
    border, partial = len(halves[0]), target.parent / f".{target.name}.partial"

    def file_at(pooled: int) -> ListedFile:
        return halves[0].listed(pooled) if pooled < border else halves[1].listed(pooled - border)

    about = {"tag": tag, "shape": list(shape), "order": hashlib.sha256(order.tobytes()).hexdigest()}
    with storage_errors(target), owner_only(True):
        _prepare(partial, about, records, shape)
        shutil.rmtree(target, ignore_errors=True)  # it is of other files, or damaged
        for _ in range(2):
            digests = np.lib.format.open_memmap(partial / "digests.npy", mode="r+")
            missing = np.flatnonzero(~digests.any(axis=1))
            jobs = (
                (partial, rows, [file_at(one) for one in order[rows].tolist()], shape, halves[0].kept)
                for rows in np.split(missing, range(CHUNK, len(missing), CHUNK))
                if len(rows)
            )
            _run(_decode_rows, jobs, f"decoding {records:,} images once", records - len(missing), records, progress)
            wrong = _all_wrong_rows(partial, records, progress)
            if not wrong:
                break
            digests[np.array(wrong)] = 0
            digests.flush()
        else:
            raise StorageError(f"{partial} returns other data than was written to it: {len(wrong)} rows differ.")
        np.save(partial / "order.npy", order)
        arrays = {name: _entry(partial / f"{name}.npy") for name in ("images", "digests", "order")}
        put_in_place(
            target.parent, target.name, partial,
            {"format": FORMAT, "store": target.name, "route": "decoded files", "revision": tag, "arrays": arrays},
        )  # fmt: skip


def _prepare(partial: Path, about: dict[str, Any], records: int, shape: tuple[int, int, int]) -> None:
    """Keep in `partial` what a killed process decoded from the same files; otherwise create empty arrays."""
    text = json.dumps(about)
    try:
        same = (partial / "about.json").read_text() == text
        sizes = [np.load(partial / f"{name}.npy", mmap_mode="r").shape[0] for name in ("images", "digests")]
        if same and sizes == [records, records]:
            return
    except (OSError, ValueError, EOFError):
        pass
    shutil.rmtree(partial, ignore_errors=True)
    need, free = records * int(np.prod(shape)), shutil.disk_usage(partial.parent).free
    if need > free:
        raise StorageError(
            f"the {records:,} decoded images need {need / 1e9:.1f} GB under {partial.parent}, where {free / 1e9:.1f} "
            "GB are free. Set BENCH_DATA to use another disk, or use smaller images (folder:PATH@3x64x64)."
        )
    partial.mkdir()
    for name, each in (("images", shape), ("digests", (DIGEST,))):
        np.lib.format.open_memmap(partial / f"{name}.npy", mode="w+", dtype=np.uint8, shape=(records, *each))
    (partial / "about.json").write_text(text)


def _entry(path: Path) -> dict[str, Any]:
    array = np.load(path, mmap_mode="r")
    with path.open("rb") as handle:
        os.fsync(handle.fileno())
    return {"file": path.name, "bytes": path.stat().st_size, "shape": list(array.shape), "dtype": array.dtype.name}


def _row_digest(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.blake2b(image.tobytes(), digest_size=DIGEST).digest(), dtype=np.uint8)


def _is_sound(images: NDArray[np.uint8], digests: NDArray[np.uint8], row: int) -> bool:
    return bool(np.array_equal(_row_digest(images[row]), digests[row]))


def _decode_rows(
    partial: Path, rows: Indices, files: Sequence[ListedFile], shape: tuple[int, int, int], kept: Path
) -> list[int]:
    """Decode `files` into `rows` of the arrays in `partial`, each digest after its image."""
    images = np.lib.format.open_memmap(partial / "images.npy", mode="r+")
    digests = np.lib.format.open_memmap(partial / "digests.npy", mode="r+")
    check_listed(files, kept)
    for row, (path, *_) in zip(rows.tolist(), files, strict=True):
        try:
            images[row] = image = decode(path, shape)
        except FileNotFoundError:
            check_listed(files, kept)
            raise
        digests[row] = _row_digest(image)
    return []


def _wrong_rows(partial: Path, rows: Indices) -> list[int]:
    images = np.load(partial / "images.npy", mmap_mode="r")
    digests = np.load(partial / "digests.npy", mmap_mode="r")
    return [row for row in rows.tolist() if not _is_sound(images, digests, row)]


def _all_wrong_rows(folder: Path, records: int, progress: Progress) -> list[int]:
    pieces = ((folder, np.arange(first, min(first + CHUNK, records))) for first in range(0, records, CHUNK))
    return _run(_wrong_rows, pieces, "verifying the decoded images", 0, records, progress)


def _run(
    work: Callable[..., list[int]], jobs: Iterator[tuple[Any, ...]], title: str, done: int, total: int,
    progress: Progress,
) -> list[int]:  # fmt: skip
    """Return the joined results of ``work(*job)``, whose second argument is rows; use all cores for many rows."""
    found: list[int] = []
    progress(title, done, total)
    with _pool(total - done) as pool:
        waiting: list[tuple[int, Callable[[], list[int]]]] = []

        def take() -> None:
            nonlocal done
            count, answer = waiting.pop(0)
            found.extend(answer())
            done += count
            progress(title, done, total)

        for job in jobs:
            waiting.append((len(job[1]), pool.submit(work, *job).result if pool else functools.partial(work, *job)))
            if len(waiting) > (4 * available_cores() if pool else 0):
                take()
        while waiting:
            take()
    return found


@contextmanager
def _pool(records: int) -> Iterator[ProcessPoolExecutor | None]:
    if records < POOL_FROM or available_cores() < 2:
        yield None
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(available_cores(), context, initializer=end_with_parent) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def verify_map(kept: Path, progress: Progress) -> None:
    """Check every row of the mapping next to `kept` against its digest; BenchError if absent, DamagedError if wrong."""
    target = kept.with_suffix(".map")
    found = read_store(target.parent, target.name)
    if found is None:
        raise BenchError(f"no image is decoded under {target}: there is nothing to verify.")
    records = len(found[0]["order"])
    wrong = _all_wrong_rows(target, records, progress)
    if wrong:
        shutil.rmtree(target, ignore_errors=True)
        raise DamagedError(target, f"{len(wrong)} of {records} images differ from their digests; it is removed")
