"""Data of a user, ``folder:PATH``: a folder of images, or a file, by its ending.

- a folder: :mod:`bench.data.image_folder`;
- ``.csv`` or ``.parquet`` with columns path and label, and optionally split: image files, read like those of a folder;
- ``.csv`` or ``.parquet`` with a column label and columns of numbers, or a single one of lists: rows of features;
- ``.npz``: arrays, see :mod:`bench.data.own_arrays`.

A file's arrays are stored once as bytes next to the decoded images of folders, readable only by their owner. A later
job compares size and modification time of the file.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import hmac
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.core.errors import BenchError
from bench.core.lazy_libraries import pandas, pyarrow
from bench.core.plain_files import check_unshared, open_plain
from bench.core.processes import owner_only
from bench.data.file_list import RACE_NS, Half, Listing, kept_list, place
from bench.data.image_files import DECODING, open_image
from bench.data.image_folder import files_loaded, folder_spec, image_shape, keyed_revision, unfilled, users_spec
from bench.data.own_arrays import (
    Arrays,
    as_bytes,
    check_fits,
    chosen_for_test,
    from_columns,
    numbered,
    read_npz,
    shape_of,
)
from bench.data.own_name import HALVES, OwnName, parse, salt_of
from bench.data.spec import ArrayRecords, DatasetSpec, Loaded, LoadRequest
from bench.storage.array_store import Blocks, DamagedError, locked, read_store, storage_errors, write_store

if TYPE_CHECKING:
    from numpy.typing import NDArray

TABLES = (".csv", ".parquet")
FILES = (*TABLES, ".npz")
PATH, LABEL, SPLIT = "path", "label", "split"
VERSION = b"own arrays 1\0"
"""Change this when the same file would give different bytes."""


def own_spec(name: str) -> DatasetSpec:
    """Return the data set ``folder:PATH``; raise BenchError if it is missing, damaged or has < 2 classes."""
    own = parse(name)
    if own.path.is_dir() or (not own.path.exists() and own.path.suffix.lower() not in FILES):
        return folder_spec(name)
    when = stamped(own.path)
    if own.path.suffix.lower() not in FILES:
        raise BenchError(f"{own.path} is a file. Accepted: a folder of images, or a file {', '.join(FILES)}.")
    classes, shape, images = _public_facts(own, when)
    return users_spec(name, own.path, classes, shape, _load_listed if images else _load_arrays, images=images)


def stamped(path: Path) -> tuple[int, int]:
    """Return size in bytes and time in ns of the regular file `path`; raise BenchError for anything else."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror or error}.") from error
    if not S_ISREG(found.st_mode):
        raise BenchError(f"{path} is not a regular file.")
    return found.st_size, found.st_mtime_ns


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a user's file; raise BenchError, also from inside the block, if it cannot be read or changes while open."""
    before = stamped(path)
    try:
        with open_plain(path, links=True) as file:
            yield file
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror or error}.") from error
    except MemoryError as error:
        raise BenchError(f"{path} needs more memory than this machine has. Give fewer records.") from error
    if stamped(path) != before:
        raise BenchError(f"{path} changed while it was read. Give the same command again.")


@functools.lru_cache(maxsize=8)
def _public_facts(own: OwnName, when: tuple[int, int]) -> tuple[tuple[str, ...], tuple[int, int, int], bool]:
    """Return the class names, the shape, and whether the records are image files; `when` distinguishes versions."""
    if own.path.suffix.lower() in TABLES:
        table = read_table(own.path)
        if PATH in table:
            files, _, _, classes = _labelled(own.path, table)
            if own.values:
                raise BenchError(f"{own.path} lists images, whose range of values is known: leave out what follows @.")
            if own.shape:
                return classes, own.shape, True
            stamped(own.path.parent / files[0])
            with open_image(own.path.parent / files[0]) as image:
                return classes, image_shape(image), True
        found = _from_table(own.path, table)
    else:
        found = _arrays(own.path)
    if own.shape:
        raise BenchError(f"{own.path} holds arrays, which have a shape: leave out @{'x'.join(map(str, own.shape))}.")
    return found.classes, shape_of(own.path, found.values), False


def read_table(path: Path) -> pandas.DataFrame:
    """Return a ``.csv`` or ``.parquet`` file as a frame with the column label, as text; raise BenchError otherwise."""
    with opened(path) as file:
        try:
            if path.suffix.lower() == ".parquet":
                table = _parquet(path, file)
            else:
                check_fits(path, 4 * os.fstat(file.fileno()).st_size)
                # A converter receives the raw text, before "NA" or "007" is converted.
                text = dict.fromkeys((PATH, LABEL, SPLIT), str)
                lines = [file.readline(1 << 20).decode("utf-8-sig") for _ in range(2)]
                head, first = (*csv.reader(lines), list[str](), list[str]())[:2]
                if again := sorted({name for name in head if head.count(name) > 1}):
                    raise BenchError(f"{path} has several columns of one name: {', '.join(again[:5])}. Rename them.")
                if len(first) > len(head) > 0:  # pandas would take the first for an index, and shift the others
                    raise BenchError(f"{path} has rows with more values than its first line has names.")
                file.seek(0)
                table = pandas.read_csv(file, converters=text, encoding="utf-8-sig")
        except ImportError as error:
            raise BenchError(
                f"reading {path} needs pyarrow: pip install pyarrow. Or save it as .csv or .npz."
            ) from error
        except ValueError as error:  # pandas' and Arrow's own errors are ValueErrors
            raise BenchError(f"{path} is damaged or not a {path.suffix} file ({str(error).strip()[:200]}).") from error
    names = ", ".join(map(str, table.columns[:8])) + ", ..." * (len(table.columns) > 8)
    if any(str(name).startswith("Unnamed: ") for name in table):
        raise BenchError(
            f"{path} has a column without a name, perhaps an index, which would be a feature. Name it, or leave it out "
            "(pandas: to_csv(..., index=False))."
        )
    if LABEL not in table:
        written = next((str(name) for name in table if str(name).casefold() == LABEL), "")
        hint = f"Rename {written} to {LABEL}. " if written else ""
        hint += "Separate columns by commas. " if len(table.columns) == 1 and set(";\t") & set(names) else ""
        raise BenchError(
            f"{path} has the columns {names}, and none named {LABEL!r}. {hint}Accepted: {LABEL}, optionally {SPLIT} "
            f"(train or test), and {PATH} (image files) or columns of numbers."
        )
    if not len(table):
        raise BenchError(f"{path} has no rows below its header.")
    for name in (LABEL, *(one for one in (PATH, SPLIT) if one in table)):
        empty = table[name].isna() | (table[name].astype(str).str.strip() == "")
        if empty.any():
            raise BenchError(
                f"{path}: row {int(empty.to_numpy().argmax())} has no {name}. Fill it in, or drop the row."
            )
        table[name] = table[name].astype(str)
    return table


def _parquet(path: Path, file: BufferedReader) -> pandas.DataFrame:
    parquet: Any = pyarrow.parquet.ParquetFile(file)
    groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
    values = sum(group.column(number).num_values for group in groups for number in range(group.num_columns))
    check_fits(path, 8 * values)
    return parquet.read().to_pandas()


def _targets(path: Path, table: pandas.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.bool_], tuple[str, ...]]:
    """Return each row's label and whether it is for testing (by the column split, or a hash), and the class names."""
    labels, classes = numbered(path, np.char.strip(table[LABEL].to_numpy().astype(str)), None)
    if SPLIT not in table:
        return labels, chosen_for_test(len(table)), classes
    halves = table[SPLIT].str.strip().str.lower()
    if unknown := sorted(set(halves) - HALVES):
        raise BenchError(
            f"{path}: the column {SPLIT} holds {', '.join(unknown[:5])}. Accepted: {', '.join(sorted(HALVES))}."
        )
    named = set(halves) - {"train", "training"}
    if {"test", "testing"} & named and len(named - {"test", "testing"}):
        raise BenchError(
            f"{path}: the column {SPLIT} names rows for testing and for validation, which would both be for testing. "
            "Leave out the validation rows, or call them train."
        )
    return labels, (~halves.isin(["train", "training"])).to_numpy(), classes


def _from_table(path: Path, table: pandas.DataFrame) -> Arrays:
    features = {str(name): table[name].to_numpy() for name in table if name not in (LABEL, SPLIT)}
    labels, test, classes = _targets(path, table)
    return Arrays(from_columns(path, features), labels, test, classes)


def _labelled(
    path: Path, table: pandas.DataFrame
) -> tuple[list[str], NDArray[np.int64], NDArray[np.bool_], tuple[str, ...]]:
    """Return files, labels, whether each is for testing, and the class names of a table of image files."""
    files = [os.path.normpath(file) for file in table[PATH]]
    if any("\0" in file for file in files):
        raise BenchError(f"{path}: a path holds the character NUL.")
    if (again := pandas.Series(files).duplicated()).any():
        raise BenchError(
            f"{path} lists {files[int(again.to_numpy().argmax())]} more than once. Epsilon protects one "
            "record, but a file listed twice counts as two."
        )
    return files, *_targets(path, table)


def _check_halves(path: Path, spec: DatasetSpec, labels: NDArray[np.int64], test: NDArray[np.bool_]) -> None:
    if test.all() or not test.any():
        raise BenchError(f"{path} gives {int((~test).sum())} training and {int(test.sum())} test records: add more.")
    if empty := unfilled(labels[~test], spec.class_names):
        raise BenchError(f"{path} has no training record of {empty}. Add some, or drop these classes.")


def _load_listed(request: LoadRequest) -> Loaded:
    """Return the image files that a table lists, in the form used for folders."""
    own, spec = parse(request.spec.name), request.spec
    base = own.path.parent

    def listing(folders: list[Path]) -> tuple[Listing, Listing]:
        files, labels, test, _ = _labelled(own.path, read_table(own.path))
        _check_halves(own.path, spec, labels, test)
        one, other = ((base, [files[row] for row in np.flatnonzero(half)], labels[half]) for half in (~test, test))
        return one, other

    salt = salt_of(request.root)

    def revise(halves: Sequence[Half]) -> str:
        # Unlike a folder's, these paths do not identify label and split.
        def name_of(half: Half, row: int) -> bytes:
            return os.fsencode(f"{half is halves[0]}\0{spec.class_names[half.labels[row]]}\0{half.files[row]}")

        return keyed_revision(request, own.path, halves, salt, name_of)

    train, test, revision = kept_list(request, own.path, (base, base), listing, revise, mark=salt + DECODING)
    return files_loaded(spec, own.path, train, test, revision, request.root)


def arrays_place(root: Path, own: OwnName, spec: DatasetSpec) -> Path:
    """Return the folder with the stored arrays of a file."""
    return place(root, own.path, spec.shape, own.values).with_suffix(".arrays")


def _load_arrays(request: LoadRequest) -> Loaded:
    """Return a file's arrays, stored as bytes when they are first read."""
    own, spec = parse(request.spec.name), request.spec
    salt, when = salt_of(request.root), stamped(own.path)
    mark = hashlib.sha256(salt + VERSION + repr((when, own.values)).encode()).digest()
    target = arrays_place(request.root, own, spec)
    check_unshared(target.parent)
    with storage_errors(target):
        target.parent.mkdir(mode=0o700, exist_ok=True)
    if (found := _kept(target, mark)) is None:
        with locked(target.parent, target.name, request.progress):
            if (found := _kept(target, mark)) is None:  # another process may have made it in the meantime
                if time.time_ns() - when[1] < RACE_NS:
                    time.sleep(RACE_NS / 1e9)  # so that a later change gets a later time
                _store(request, own, target, mark, salt)
                found = _kept(target, mark)
    if found is None or stamped(own.path) != when:
        raise BenchError(f"{own.path} changed while it was read. Give the same command again.")
    halves = [ArrayRecords(found[f"{half}_images"], found[f"{half}_labels"]) for half in ("train", "test")]
    known = replace(spec, train_records=len(halves[0]), test_records=len(halves[1]))
    revision = found["revision"].tobytes().decode()
    return Loaded(known, halves[0], halves[1], revision, f"arrays in {own.path}", (own.path,))


def _kept(target: Path, mark: bytes) -> dict[str, NDArray[Any]] | None:
    try:
        found = read_store(target.parent, target.name)
        return found[0] if found is not None and found[0]["mark"].tobytes() == mark else None
    except (DamagedError, KeyError):
        return None


def _store(request: LoadRequest, own: OwnName, target: Path, mark: bytes, salt: bytes) -> None:
    request.progress(f"reading {own.path}", 0, None)
    with opened(own.path) as file:
        content = hashlib.file_digest(file, "sha256").digest()
    found = _arrays(own.path)
    _check_halves(own.path, request.spec, found.labels, found.test)
    images = as_bytes(own.path, found.values, own.values)
    digest = hmac.new(salt, VERSION + repr(own.values).encode() + content, "sha256").hexdigest()[:16]
    arrays: dict[str, NDArray[Any]] = {
        "mark": np.frombuffer(mark, dtype=np.uint8),
        "revision": np.frombuffer(f"hmac-sha256:{digest}".encode(), dtype=np.uint8),
    }
    for half, which in (("train", ~found.test), ("test", found.test)):
        arrays |= {f"{half}_images": images[which], f"{half}_labels": found.labels[which]}
    with owner_only(True):
        write_store(target.parent, target.name, {k: Blocks.of(v) for k, v in arrays.items()}, f"arrays in {own.path}")


def _arrays(path: Path) -> Arrays:
    if path.suffix.lower() in TABLES:
        return _from_table(path, read_table(path))
    with opened(path) as file:
        return read_npz(path, file)
