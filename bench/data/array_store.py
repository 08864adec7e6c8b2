"""Where decoded data sets lie, and how they get there without a torn file.

Below the data root (``$BENCH_DATA``, else the user's cache folder) each data set has one folder with one ``.npy`` per
array and a ``manifest.json`` that gives every array's SHA-256. The folder is written beside its place, flushed to the
disk and renamed, so that it is there whole or not at all. Every read checks sizes and headers, which costs nothing;
:func:`verify_store` reads every byte.

The SHA-256 of an array is that of its raw bytes in C order, without the npy header: it is the same by whatever route
the data came, and can be compared with what others publish.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from bench.core.errors import BenchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.data.spec import Progress

FORMAT = 1
DTYPES = {"uint8": "|u1", "int64": "<i8"}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class StorageError(BenchError):
    """The disk is full or the folder cannot be written: no other route would help."""


class DamagedError(BenchError):
    """A stored file is not what its manifest says. `path` names it."""

    def __init__(self, path: Path, reason: str) -> None:
        """Say that the file at `path` is damaged, and how it shows."""
        self.path, self.reason = path, reason
        super().__init__(f"{path} is damaged: {reason}.")


@dataclass(frozen=True)
class Blocks:
    """An array to be stored, given in pieces along its first axis, so that a large one never fills the memory.

    `shape` is that of the whole array, `dtype` is ``uint8`` or ``int64``.
    """

    shape: tuple[int, ...]
    dtype: str
    pieces: Iterable[NDArray[Any]]

    @classmethod
    def of(cls, array: NDArray[Any]) -> Blocks:
        """Return `array` as a single piece."""
        return cls(array.shape, array.dtype.name, [array])


def data_root(root: Path | None = None) -> Path:
    """Return `root`, else ``$BENCH_DATA``, else ``private-student-bench/data`` in the user's cache folder."""
    if root is not None:
        return Path(root).expanduser()
    if named := os.environ.get("BENCH_DATA"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path("~/.cache").expanduser()) / "private-student-bench" / "data"


def revision_of(digests: Mapping[str, str]) -> str:
    """Return the revision that the SHA-256 of each array, by name, adds up to."""
    lines = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return "sha256:" + hashlib.sha256(lines.encode()).hexdigest()[:16]


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a folder that cannot be written, at `path`, into a :class:`StorageError`."""
    try:
        yield
    except OSError as error:
        where = f"{path} (set BENCH_DATA to use another folder)"
        if error.errno in _FULL:
            raise StorageError(
                f"the disk is full: could not write {where}. What was stored before is untouched."
            ) from error
        if isinstance(error, PermissionError | NotADirectoryError | FileExistsError) or error.errno == errno.EROFS:
            raise StorageError(f"cannot write {where}: {error.strerror or error}.") from error
        raise


@contextlib.contextmanager
def locked(root: Path, store: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of `store`, waiting for another process that fetches the same data set.

    The operating system lets go of the lock when its owner dies, so that a killed fetch blocks nobody. The lock file
    itself stays: to remove it would race with a process that has just opened it.
    """
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        handle = (root / f".{store}.lock").open("ab")
    with handle:
        try:
            import fcntl
        except ImportError:  # not on this platform: fetch without a lock
            yield
            return
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(f"waiting for another process that fetches {store}", 0, None)
                time.sleep(0.2)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)


def write_store(
    root: Path, store: str, arrays: Mapping[str, Blocks], route: str, pinned: Mapping[str, str] | None = None
) -> None:
    """Store `arrays` under `root`/`store`, replacing what is there, once all are written and verified.

    Args:
        root: the data root.
        store: the folder's name under it.
        arrays: the arrays by name.
        route: how they came here, for the manifest.
        pinned: SHA-256 by array name; every one that is named must fit.

    Raises:
        BenchError: where an array is not the pinned one; names the array and both digests.
        StorageError: where the disk is full or not writable. What was stored before is then still there.

    """
    staging = root / f".{store}.staging"
    with storage_errors(root / store):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            entries = {name: _write_array(staging / f"{name}.npy", blocks) for name, blocks in arrays.items()}
            for name, digest in (pinned or {}).items():
                found = entries[name]["sha256"] if name in entries else "nothing"
                if found != digest:
                    raise BenchError(f"{name} has SHA-256 {found[:16]}..., not the pinned {digest[:16]}...")
            manifest = {
                "format": FORMAT,
                "store": store,
                "route": route,
                "revision": revision_of({name: entry["sha256"] for name, entry in entries.items()}),
                "arrays": entries,
            }
            with (staging / "manifest.json").open("wb") as handle:
                _write(handle, (json.dumps(manifest, indent=1) + "\n").encode())
                _flush(handle)
            old = root / f".{store}.old"
            shutil.rmtree(old, ignore_errors=True)
            if (root / store).exists():
                os.replace(root / store, old)
            os.replace(staging, root / store)
            _flush_folder(root)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _write(handle: BinaryIO, data: bytes | memoryview) -> None:
    """Write `data`: the one place through which stored bytes go."""
    handle.write(data)


def _flush(handle: BinaryIO) -> None:
    handle.flush()
    os.fsync(handle.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_array(path: Path, blocks: Blocks) -> dict[str, Any]:
    """Write one array and return its manifest entry."""
    digest, rows = hashlib.sha256(), 0
    header = {"descr": DTYPES[blocks.dtype], "fortran_order": False, "shape": tuple(int(n) for n in blocks.shape)}
    with path.open("wb") as handle:
        np.lib.format.write_array_header_1_0(handle, header)
        for piece in blocks.pieces:
            if piece.shape[1:] != blocks.shape[1:] or piece.dtype.name != blocks.dtype:
                raise ValueError(f"{path.stem}: a piece {piece.dtype} {piece.shape} of {blocks.dtype} {blocks.shape}")
            raw = np.ascontiguousarray(piece, dtype=DTYPES[blocks.dtype]).reshape(-1).view(np.uint8).data
            digest.update(raw)
            _write(handle, raw)
            rows += len(piece)
        if rows != blocks.shape[0]:
            raise ValueError(f"{path.stem}: {rows} rows came, {blocks.shape[0]} were announced")
        _flush(handle)
    return {
        "file": path.name,
        "sha256": digest.hexdigest(),
        "bytes": path.stat().st_size,
        "shape": [int(n) for n in blocks.shape],
        "dtype": blocks.dtype,
    }


def read_manifest(root: Path, store: str) -> dict[str, Any] | None:
    """Return the manifest of `store`, or None where the data set is not here.

    Raises:
        DamagedError: where the manifest cannot be understood.

    """
    path = root / store / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise DamagedError(path, f"its format is {manifest['format']}, this version reads {FORMAT}")
        for entry in manifest["arrays"].values():
            if Path(entry["file"]).name != entry["file"]:
                raise DamagedError(path, "it names a file outside its folder")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(path, f"not a manifest ({type(error).__name__})") from error
    return dict(manifest)


def read_store(
    root: Path, store: str, pinned: Mapping[str, str] | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Return the arrays of `store`, memory-mapped and read-only, and its manifest; None where it is not here.

    Only sizes and headers are checked: the bytes were when they were stored.

    Raises:
        DamagedError: where a file is missing, cut, or not the array that the manifest tells of.

    """
    manifest = read_manifest(root, store)
    if manifest is None:
        return None
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in manifest["arrays"].items():
        path = root / store / entry["file"]
        try:
            size = path.stat().st_size
            if size != entry["bytes"]:
                raise DamagedError(path, f"it has {size} bytes, its manifest says {entry['bytes']}")
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError as error:
            raise DamagedError(path, "it is missing") from error
        except (ValueError, EOFError) as error:
            raise DamagedError(path, "its header cannot be read") from error
        if list(array.shape) != entry["shape"] or array.dtype.name != entry["dtype"]:
            raise DamagedError(path, f"it holds {array.dtype} {array.shape}, not what its manifest says")
        arrays[name] = array
    for name, digest in (pinned or {}).items():
        if manifest["arrays"].get(name, {}).get("sha256") != digest:
            raise DamagedError(root / store / "manifest.json", f"{name} is not the array that this version pins")
    return arrays, manifest


def verify_store(root: Path, store: str, progress: Progress) -> None:
    """Read every byte of `store` and compare it with the manifest.

    Raises:
        DamagedError: naming the first file that does not fit.
        BenchError: where the data set is not here.

    """
    found = read_store(root, store)
    if found is None:
        raise BenchError(f"{store} is not under {root}. Fetch it with: python -m bench data get {store}")
    _, manifest = found
    for entry in manifest["arrays"].values():
        path, digest, done = root / store / entry["file"], hashlib.sha256(), 0
        with path.open("rb") as handle:
            np.lib.format.read_magic(handle)
            np.lib.format.read_array_header_1_0(handle)
            while piece := handle.read(1 << 22):
                digest.update(piece)
                done += len(piece)
                progress(f"verifying {store}/{path.name}", done, entry["bytes"])
        if digest.hexdigest() != entry["sha256"]:
            raise DamagedError(path, f"its SHA-256 is {digest.hexdigest()[:16]}..., not {entry['sha256'][:16]}...")


def set_aside(root: Path, store: str, error: DamagedError) -> Path:
    """Rename the damaged file to ``STORE.FILE.damaged`` beside the folder and drop the rest; return its new path."""
    target = root / f"{store}.{error.path.name}.damaged"
    with storage_errors(root):
        if error.path.exists():
            os.replace(error.path, target)
        shutil.rmtree(root / store, ignore_errors=True)
    return target
