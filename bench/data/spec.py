"""Interfaces of data sets: public facts, loader requests and loaded records; see also :mod:`bench.data.datasets`."""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.core.fetch_progress import Progress

LOADED = "bench.data.load"
"""The :func:`sys.audit` event, with a data set's name, by which a check sees who loads the data set."""


class Records(abc.ABC):
    """Labelled images, read on demand. `labels` is int64 (n,), `shape` is (channels, height, width)."""

    labels: NDArray[np.int64]
    shape: tuple[int, int, int]

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def images(self, which: NDArray[np.int64] | slice | list[int]) -> NDArray[np.uint8]:
        """Return the images at `which` as a new uint8 array (k, channels, height, width).

        `which` is a slice or positions in 0..n-1, in any order, repeats allowed; raise IndexError for other positions.
        """
        positions: NDArray[np.int64]
        if isinstance(which, slice):
            positions = np.arange(len(self), dtype=np.int64)[which]
        else:
            positions = np.asarray(which, dtype=np.int64).reshape(-1)
        if positions.size and (int(positions.min()) < 0 or int(positions.max()) >= len(self)):
            raise IndexError(f"a position lies outside 0..{len(self) - 1}")
        return self._read(positions)

    @abc.abstractmethod
    def _read(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the images at valid `positions`, uint8 (k, channels, height, width), writable and contiguous."""


class ArrayRecords(Records):
    """Records over an array uint8 (m, channels, height, width), in memory or mapped; `index` picks and orders rows."""

    def __init__(
        self, images: NDArray[np.uint8], labels: NDArray[np.int64], index: NDArray[np.int64] | None = None
    ) -> None:
        rows = len(images) if index is None else len(index)
        if images.ndim != 4 or rows != len(labels):
            raise ValueError(f"images {images.shape} and {len(labels)} labels do not belong together")
        self._images, self._index = images, index
        self.labels = np.asarray(labels, dtype=np.int64)
        self.shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))

    def _read(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        rows = positions if self._index is None else self._index[positions]
        if rows.size and np.array_equal(rows, np.arange(rows[0], rows[0] + rows.size)):
            # Read consecutive rows from the disk at once; fancy indexing would fault page by page.
            return np.array(self._images[int(rows[0]) : int(rows[0]) + rows.size], dtype=np.uint8, order="C")
        return np.ascontiguousarray(self._images[rows], dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded data set. `revision` identifies its exact content and goes into every record."""

    spec: DatasetSpec
    train: Records
    test: Records
    revision: str
    route: str = ""
    paths: tuple[Path, ...] = ()
    labelled: Records | None = None


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The arguments of a loader: the data root, whether it may fetch, and the progress hook."""

    spec: DatasetSpec
    root: Path
    fetch: bool
    progress: Progress

    def __post_init__(self) -> None:
        sys.audit(LOADED, self.spec.name)


@dataclass(frozen=True, slots=True)
class LabelledSpec:
    """A labelled public source: other records of the same classes; `records` is None if known only from the files."""

    name: str
    records: int | None
    shape: tuple[int, int, int]
    """(channels, height, width) of a record, which may exceed the data set's."""
    overlap: str


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """Public facts of a data set before it is read; record counts are None if known only from the files."""

    name: str
    classes: int
    shape: tuple[int, int, int]
    """(channels, height, width) of a decoded image in pixels."""
    class_names: tuple[str, ...]
    train_records: int | None
    test_records: int | None
    loader: Callable[[LoadRequest], Loaded]
    split_rule: str
    revision: str | None = None
    """``sha256:`` and 16 hex digits over the decoded arrays; None if they are not pinned."""
    public_benchmark: bool = False
    """Whether anyone may read the set. Otherwise facts that depend on its content are withheld from records."""
    licence: str = "not stated by its owner"
    source: str = ""
    citation: str = ""
    resolution: str = ""
    """Description of how images are resampled; "" if they already have the shape."""
    store: str = ""
    """Folder in the data root, shared by sets with the same pixels; "": the name."""
    download_bytes: int | None = None
    labelled: LabelledSpec | None = None

    def __post_init__(self) -> None:
        if len(self.class_names) != self.classes:
            raise ValueError(f"data set {self.name!r} has {self.classes} classes and {len(self.class_names)} names")
        if not self.store:
            object.__setattr__(self, "store", self.name)
