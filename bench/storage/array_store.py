"""Atomic storage of decoded data sets.

Each is a folder below the data root: one ``.npy`` per array, and ``manifest.json`` with the SHA-256 of the raw bytes in
C order, equal for all routes. It is staged, flushed and renamed. Only :func:`verify_store` reads all bytes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.fetch_progress import Progress
from bench.core.plain_files import read_plain, user_path
from bench.core.rows import json_object
from bench.storage.scratch import near

FORMAT = 1
DTYPES = {"uint8": "|u1", "int64": "<i8"}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class StorageError(BenchError):
    """The disk is full or the folder is not writable, so no other route would help."""


class DamagedError(BenchError):
    """The stored file `path` does not match its manifest."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(f"{path} is damaged: {reason}.")


@dataclass(frozen=True)
class Blocks:
    """An array of `shape` and `dtype` (``uint8`` or ``int64``), in pieces along its first axis to save memory."""

    shape: tuple[int, ...]
    dtype: str
    pieces: Iterable[NDArray[Any]]

    @classmethod
    def of(cls, array: NDArray[Any]) -> Blocks:
        """Return `array` as a single piece."""
        return cls(array.shape, array.dtype.name, [array])


def data_root(root: Path | None = None) -> Path:
    """Return `root`, or ``$BENCH_DATA``, or ``private-student-bench/data`` in the user's cache folder."""
    given = root or os.environ.get("BENCH_DATA")
    return user_path(given) if given else user_cache() / "data"


def user_cache() -> Path:
    """Return the folder ``private-student-bench`` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else user_path("~/.cache")) / "private-student-bench"


def data_places() -> list[Path]:
    """Return the folders of data sets and weights: ours, which is created, what it links to, and those of the hubs."""
    ours, home = data_root(), user_path("~/.cache")
    linked: list[Path] = []
    with contextlib.suppress(OSError):
        ours.mkdir(parents=True, exist_ok=True)
        linked = list(_links_in(ours, 2))
    hubs = {"HF_HOME": home / "huggingface", "HF_HUB_CACHE": ours, "TORCH_HOME": home / "torch"}
    return [ours, *linked, *(Path(os.environ.get(name) or usual) for name, usual in hubs.items())]


def places_without_data() -> list[Path]:
    """Return :func:`data_places` without the data sets: weights, computed figures and the folders of the hubs."""
    root = data_root().resolve()
    (root / "weights").mkdir(parents=True, exist_ok=True)
    with os.scandir(root) as entries:
        ours = [root / entry.name for entry in entries if entry.name == "weights" or entry.name.startswith(".")]
    others = [place for place in data_places() if not place.resolve().is_relative_to(root)]
    linked = {*_links_in(root, 2)} - {*_links_in(root / "weights", 2)}
    return [*ours, *(place for place in others if place.resolve() not in linked)]


def _links_in(folder: str | Path, levels: int) -> Iterator[Path]:
    with os.scandir(folder) as entries:  # a tenth of the time of glob
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry.path).resolve()
            elif levels > 1 and not entry.name.startswith(".") and entry.is_dir():  # hidden folders only hold figures
                yield from _links_in(entry.path, levels - 1)


def revision_of(digests: Mapping[str, str]) -> str:
    """Return a hash over the names and SHA-256 digests of arrays."""
    lines = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return "sha256:" + hashlib.sha256(lines.encode()).hexdigest()[:16]


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a folder that is not writable, at `path`, into a :class:`StorageError`."""
    try:
        yield
    except OSError as error:
        where = f"{path} (set BENCH_DATA to use another folder)"
        if error.errno in _FULL:
            raise StorageError(f"the disk is full: could not write {where}. Earlier files are unchanged.") from error
        # A parent folder cannot be created, for instance in a missing home.
        nowhere = isinstance(error, FileNotFoundError) and not os.path.isdir(path.parent)
        refused = isinstance(error, PermissionError | NotADirectoryError | FileExistsError) or nowhere
        if refused or error.errno in (errno.EROFS, errno.ENAMETOOLONG):
            raise StorageError(f"cannot write {where}: {error.strerror or error}.") from error
        raise


@contextlib.contextmanager
def locked(root: Path, store: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of `store`, waiting for another process that fetches it; the lock of a dead process is free."""
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / f".{store}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            progress(f"waiting for another process that fetches {store}", 0, None)
            lock.acquire(poll_interval=0.2)
    try:
        yield
    finally:
        lock.release()


def write_store(
    root: Path, store: str, arrays: Mapping[str, Blocks], route: str, pinned: Mapping[str, str] | None = None
) -> None:
    """Store `arrays` by name under `root`/`store`, replacing an older version once all are written and verified.

    Raise BenchError if an array's SHA-256 is not `pinned`, StorageError on a full or read-only disk; the old one stays.
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
            put_in_place(root, store, staging, manifest)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def put_in_place(root: Path, store: str, staging: Path, manifest: Mapping[str, Any]) -> None:
    """Write and flush the `manifest` of the folder `staging`, on the same disk, then rename the folder to `store`."""
    with (staging / "manifest.json").open("wb") as handle:
        handle.write((json.dumps(manifest, indent=1) + "\n").encode())
        handle.flush()
        os.fsync(handle.fileno())
    old = root / f".{store}.old"
    shutil.rmtree(old, ignore_errors=True)
    if (root / store).exists():
        os.replace(root / store, old)
    os.replace(staging, root / store)
    descriptor = os.open(root, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    shutil.rmtree(old, ignore_errors=True)


def _write_array(path: Path, blocks: Blocks) -> dict[str, Any]:
    digest, rows = hashlib.sha256(), 0
    header = {"descr": DTYPES[blocks.dtype], "fortran_order": False, "shape": tuple(int(n) for n in blocks.shape)}
    with path.open("wb") as handle:
        np.lib.format.write_array_header_1_0(handle, header)
        for piece in blocks.pieces:
            if piece.shape[1:] != blocks.shape[1:] or piece.dtype.name != blocks.dtype:
                raise ValueError(f"{path.stem}: a piece {piece.dtype} {piece.shape} of {blocks.dtype} {blocks.shape}")
            raw = np.ascontiguousarray(piece, dtype=DTYPES[blocks.dtype]).reshape(-1).view(np.uint8).data
            digest.update(raw)
            handle.write(raw)
            rows += len(piece)
        if rows != blocks.shape[0]:
            raise ValueError(f"{path.stem}: {rows} rows arrived, but {blocks.shape[0]} were announced")
        handle.flush()
        os.fsync(handle.fileno())
    return {
        "file": path.name,
        "sha256": digest.hexdigest(),
        "bytes": path.stat().st_size,
        "shape": [int(n) for n in blocks.shape],
        "dtype": blocks.dtype,
    }


def read_manifest(root: Path, store: str) -> dict[str, Any] | None:
    """Return the manifest of `store`, None if it is not stored; raise DamagedError if it is unreadable."""
    path = root / store / "manifest.json"
    try:
        manifest = json_object(read_plain(path))
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
    """Return mapped read-only arrays and the manifest, or None; raise DamagedError if changed or not `pinned`."""
    manifest = read_manifest(root, store)
    if manifest is None:
        return None
    arrays: dict[str, NDArray[Any]] = {}
    here = near(root / store, json.dumps(manifest))
    sizes = {path.name: path.stat().st_size for path in here.iterdir()}
    if any(sizes.get(entry["file"]) != entry["bytes"] for entry in manifest["arrays"].values()):
        here = root / store  # a truncated copy says nothing about the store
    for name, entry in manifest["arrays"].items():
        path = here / entry["file"]
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
            raise DamagedError(root / store / "manifest.json", f"{name} is not the array pinned by this version")
    return arrays, manifest


def verify_store(root: Path, store: str, progress: Progress) -> None:
    """Compare every byte of `store` with its manifest; raise DamagedError if they differ, BenchError if absent."""
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
    """Rename the damaged file to ``STORE.FILE.damaged`` next to its folder, delete the folder, return the new path."""
    target = root / f"{store}.{error.path.name}.damaged"
    with storage_errors(root):
        if error.path.exists():
            os.replace(error.path, target)
        shutil.rmtree(root / store, ignore_errors=True)
    return target
