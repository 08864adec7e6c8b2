"""A user's arrays as records: values become bytes, three axes become images and two become rows of features.

Bytes are taken as they are. Other numbers need a public range, stated after ``@`` as in ``folder:clinic.npz@-3..3``: it
is divided into 256 levels, and values outside are clipped. A range taken from the records themselves would be private,
and no epsilon would cover it.

Rows of features are images of one channel and one row of pixels, so splits, caches, canaries and audits need no special
case; :func:`is_features` recognises them.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.processes import memory_bytes
from bench.data.index_hash import keys
from bench.data.own_name import TEST_SHARE

Array = NDArray[Any]

FEATURE_NETS = ("softmax_regression", "features")
"""Nets that take rows of features."""
ROWS = 4096
NPZ = "x and y, or x_train, y_train, x_test and y_test; optional: classes, the names of the labels 0, 1, ..."
DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class Arrays:
    """Records as given: `values` (n, features), (n, height, width) or images, labels, and which are for testing."""

    values: Array
    labels: Array
    test: NDArray[np.bool_]
    classes: tuple[str, ...]


def is_features(shape: Sequence[int]) -> bool:
    """Return whether records of `shape`, (channels, height, width), are rows of features."""
    return tuple(shape[:2]) == (1, 1)


def is_bytes(values: Array) -> bool:
    """Return whether `values` need no range: bytes, or truth values, which are 0 and 1."""
    return values.dtype == np.uint8 or values.dtype.kind == "b"


def check_fits(what: object, size: int) -> None:
    """Raise BenchError if `size` bytes are more than half of the memory."""
    if size > memory_bytes() // 2:
        raise BenchError(
            f"{what} needs {size / 2**30:,.1f} GiB of memory to read, more than half of this machine's "
            f"{memory_bytes() / 2**30:,.1f}. Give fewer records, or image files, which are read one by one."
        )


def read_npz(path: Path, file: IO[bytes]) -> Arrays:
    """Return the arrays of an ``.npz`` file; raise BenchError for damage, pickles and anything but :data:`NPZ`."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            parts = [part for part in ("", "_train", "_test") if f"x{part}" in names]
            if parts not in ([""], ["_train", "_test"]) or not {f"y{part}" for part in parts} <= names:
                held = ", ".join(sorted(names)[:8]) or "nothing"
                raise BenchError(f"{path} holds {held}. Accepted: {NPZ}.")
            values = [_member(archive, path, f"x{part}") for part in parts]
            labels = [_member(archive, path, f"y{part}") for part in parts]
            classes = _member(archive, path, "classes") if "classes" in names else None
    except DAMAGE as error:
        raise BenchError(f"{path} is damaged or not an .npz file ({type(error).__name__}: {error}).") from error
    for x, y in zip(values, labels, strict=True):
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise BenchError(f"{path}: x has the shape {x.shape} and y {y.shape}; each record needs one of each.")
    if len({x.shape[1:] for x in values}) > 1 or len({x.dtype for x in values}) > 1:
        raise BenchError(
            f"{path}: x_train and x_test differ in shape or type: {[(x.shape, str(x.dtype)) for x in values]}."
        )
    joined = np.concatenate([_flat_labels(path, y) for y in labels])
    split = len(parts) == 2
    test = np.arange(len(joined)) >= len(labels[0]) if split else chosen_for_test(len(joined))
    numbers, named = numbered(path, joined, None if classes is None else [str(one) for one in classes.reshape(-1)])
    return Arrays(values[0] if len(values) == 1 else np.concatenate(values), numbers, test, named)


def _member(archive: zipfile.ZipFile, path: Path, name: str) -> Array:
    info = archive.getinfo(f"{name}.npy")
    check_fits(f"{name} of {path}", info.file_size)
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(member)
    if kind.hasobject:
        raise BenchError(
            f"{name} of {path} holds Python objects. They are pickled, and pickles are never loaded. Save plain arrays."
        )
    # A header may announce more than the file holds, and the memory would be taken first.
    if math.prod(shape) * kind.itemsize > info.file_size:
        raise ValueError(f"{name} is shorter than its header states")
    with archive.open(info) as member:
        found: Array = np.lib.format.read_array(member, allow_pickle=False)
    return found


def _flat_labels(path: Path, labels: Array) -> Array:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iubUS":
        raise BenchError(
            f"{path}: y has the type {labels.dtype} and the shape {labels.shape}. Labels must be whole "
            "numbers or names, one per record."
        )
    return np.char.decode(labels, "utf-8") if labels.dtype.kind == "S" else labels


def chosen_for_test(count: int) -> NDArray[np.bool_]:
    """Return which of `count` records are for testing: a fifth, by a hash of the record's number."""
    return keys("folder", count, "own test") < np.uint64(TEST_SHARE * 2**64)


def numbered(path: Path, labels: Array, classes: Sequence[str] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return `labels` as numbers, int64 (n,), and the class names; without `classes` those that occur, in order."""
    if classes is None or labels.dtype.kind == "U":
        found, numbers = np.unique(labels, return_inverse=True)
        texts = [str(one) for one in found]
        if classes is not None:
            names = list(classes)
        elif all(text.isdecimal() for text in texts):  # sort 10 after 9, even if numbers were given as text
            names = sorted(texts, key=lambda text: (int(text), text))
        else:
            names = texts
        if unknown := sorted(set(texts) - set(names)):
            raise BenchError(f"{path}: labels that are not among the classes: {', '.join(unknown[:5])}.")
        place = {name: number for number, name in enumerate(names)}
        numbers = np.array([place[text] for text in texts], dtype=np.int64)[numbers]
    else:
        names, numbers = list(classes), labels.astype(np.int64)
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(names):
            raise BenchError(
                f"{path}: a label lies outside 0..{len(names) - 1}, the numbers of the {len(names)} classes."
            )
    if len(names) < 2 or len(set(names)) < len(names):
        raise BenchError(
            f"{path} has the classes {', '.join(names) or 'none'}; it needs at least two, without repetition."
        )
    return numbers.astype(np.int64), tuple(names)


def shape_of(path: Path, values: Array) -> tuple[int, int, int]:
    """Return (channels, height, width) of a record of `values`; raise BenchError if it is neither row nor image."""
    match values.shape[1:]:
        case (features,) if features:
            return 1, 1, features
        case (height, width) if height > 1 and width:
            return 1, height, width
        case (1 | 3 as channels, height, width) if height > 1 and width:
            return channels, height, width
        case (height, width, 1 | 3 as channels) if height > 1 and width:
            return channels, height, width
    raise BenchError(
        f"{path}: x has the shape {values.shape}. Accepted: (n, features), (n, height, width), and images of 1 or 3 "
        "channels, (n, channels, height, width) or (n, height, width, channels)."
    )


def as_bytes(path: Path, values: Array, limits: tuple[float, float] | None) -> NDArray[np.uint8]:
    """Return `values` as uint8 (n, channels, height, width), with `limits` as 0 and 255; see the module."""
    shape = shape_of(path, values)
    if limits is None and values.dtype.kind == "b":
        limits = (0.0, 1.0)
    if limits is None and not is_bytes(values):
        raise BenchError(
            f"{path} holds numbers of type {values.dtype}. State their range after @, for instance "
            f"folder:{path}@-3..3; values outside are clipped. The range is public: do not compute it from the records."
        )
    if values.dtype.kind not in "buif":
        raise BenchError(f"{path} holds values of type {values.dtype}; numbers are needed.")
    out = np.empty((len(values), *shape), dtype=np.uint8)
    last = values.ndim == 4 and values.shape[1:] != shape
    for start in range(0, len(values), ROWS):
        piece = values[start : start + ROWS]
        if limits is not None:
            low, high = limits
            wide = piece.astype(np.float64)
            if not np.isfinite(wide).all():
                row = start + int(np.flatnonzero(~np.isfinite(wide.reshape(len(wide), -1)).all(axis=1))[0])
                raise BenchError(
                    f"{path}: record {row} holds a value that is not finite. Fill in missing values first."
                )
            piece = np.rint((wide - low) / (high - low) * 255).clip(0, 255).astype(np.uint8)
        out[start : start + ROWS] = (piece.transpose(0, 3, 1, 2) if last else piece).reshape(-1, *shape)
    return out


def from_columns(path: Path, columns: Mapping[str, Any]) -> Array:
    """Return a table's feature columns as (n, features): numbers, or one column of lists of equal length."""
    if len(columns) == 1 and (only := next(iter(columns.values()))).dtype.kind == "O":
        try:
            stacked = np.stack([np.asarray(one) for one in only])
        except (ValueError, TypeError) as error:
            raise BenchError(f"{path}: the lists in {next(iter(columns))!r} differ in length.") from error
        if stacked.ndim == 2 and stacked.dtype.kind in "buif":
            return stacked
    for name, column in columns.items():
        if column.dtype.kind not in "buif":
            raise BenchError(
                f"{path}: the column {name!r} does not hold numbers. Convert it to numbers, drop it, or "
                "name image files in a column 'path'."
            )
    if not columns:
        raise BenchError(f"{path} has no columns besides label and split.")
    return np.column_stack(list(columns.values()))
