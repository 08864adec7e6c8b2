"""The loader of most data sets: fetch through the first working route, decode, verify, store, memory-map."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.data.decoders import Decode
from bench.data.spec import ArrayRecords, DatasetSpec, Loaded, LoadRequest, Records
from bench.storage.array_store import Blocks, DamagedError, StorageError, locked, read_store, set_aside, write_store
from bench.storage.download import Route, RouteError

Arrays = Mapping[str, "NDArray[Any]"]
UNUSABLE = (BenchError, OSError, ValueError, LookupError, EOFError, ImportError)
View = Callable[[Arrays], "tuple[Records, Records]"]
Choose = Callable[["NDArray[Any]"], "tuple[NDArray[np.int64] | None, NDArray[np.int64]]"]


def plain_view(arrays: Arrays) -> tuple[Records, Records]:
    """Return the train and the test records as stored."""
    train, test = (ArrayRecords(arrays[f"{half}_images"], arrays[f"{half}_labels"]) for half in ("train", "test"))
    return train, test


def chosen_view(choose: Choose, what: str) -> View:
    """Return a view of the records whose indices (None: all) and labels `choose` takes from the array `what`."""

    def half(arrays: Arrays, name: str) -> Records:
        index, labels = choose(np.asarray(arrays[f"{name}_{what}"]))
        return ArrayRecords(arrays[f"{name}_images"], labels, index)

    return lambda arrays: (half(arrays, "train"), half(arrays, "test"))


def check(spec: DatasetSpec, arrays: Mapping[str, Blocks]) -> None:
    """Raise ValueError if record counts, shapes or labels of the decoded `arrays` differ from `spec`."""
    halves = [("train", spec.train_records, spec.shape), ("test", spec.test_records, spec.shape)]
    if spec.labelled is not None:
        halves.append(("source", spec.labelled.records, spec.labelled.shape))
    for half, expected, wanted in halves:
        found, *shape = arrays[f"{half}_images"].shape
        if expected is not None and found != expected:
            raise ValueError(f"{found} {half} records were found, {expected} are expected")
        if tuple(shape) != wanted:
            raise ValueError(f"{half} images have the shape {tuple(shape)}, {wanted} is expected")
        given = arrays.get(f"{half}_labels")
        # A list can be read twice, but a stream of pieces only once, when it is stored.
        for labels in given.pieces if given and isinstance(given.pieces, list) else ():
            if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < spec.classes:
                raise ValueError(f"a {half} label lies outside 0..{spec.classes - 1}")


@dataclass(frozen=True)
class Way:
    """A route and the decoder for its files; route None: an installed package contains the data."""

    route: Route | None
    decode: Decode


@dataclass(frozen=True)
class StoredLoader:
    """Loads a data set stored as arrays; `ways` are tried in order, after the user's own files in ``raw/STORE``."""

    ways: tuple[Way, ...]
    pinned: Mapping[str, str] | None = None
    """SHA-256 of decoded arrays by name, independent of the route."""
    view: View = plain_view
    layout: str = ""
    """Raw files that a user may put under ``raw/STORE``, in words."""
    whole: DatasetSpec | None = None
    """The stored data set that `view` selects from; decoded arrays are checked against it."""

    def __call__(self, request: LoadRequest) -> Loaded:
        """Return the stored data set, fetched if missing or damaged; BenchError lists the failure of every route."""
        spec, root, damage = request.spec, request.root, ""
        try:
            if loaded := self._stored(request):
                return loaded
        except DamagedError as error:
            if not request.fetch:
                raise BenchError(f"{error} Fetch it again with: python -m bench data get {spec.name}") from error
        if not request.fetch:
            raise BenchError(
                f"data set {spec.name!r} is not under {root}. Fetch it with: python -m bench data get {spec.name}"
            )
        with locked(root, spec.store, request.progress):
            try:
                # Another process may have fetched it while this one waited for the lock.
                if loaded := self._stored(request):
                    return loaded
            except DamagedError as error:
                target = set_aside(root, spec.store, error)
                damage = f"{error} It was set aside as {target.name}. "
                request.progress(f"{error} Set aside as {target.name}; fetching {spec.name} again", 0, None)
            self._fetch(request, damage)
            loaded = self._stored(request)
        if loaded is None:
            raise BenchError(f"{spec.name}: the files just stored under {root} are gone")
        return loaded

    def _stored(self, request: LoadRequest) -> Loaded | None:
        found = read_store(request.root, request.spec.store, self.pinned)
        if found is None:
            return None
        arrays, manifest = found
        train, test = self.view(arrays)
        folder = request.root / request.spec.store
        labelled = None
        if request.spec.labelled is not None:
            labelled = ArrayRecords(arrays["source_images"], arrays["source_labels"])
        revision, route = str(manifest["revision"]), str(manifest["route"])
        return Loaded(request.spec, train, test, revision, route, (folder,), labelled)

    def _fetch(self, request: LoadRequest, damage: str) -> None:
        reasons: list[str] = []
        if not self._by_hand(request, reasons) and not self._by_route(request, reasons):
            spec, given = request.spec, request.root / "raw" / request.spec.store
            tried = "".join(f"\n  - {reason}" for reason in reasons) or "\n  - it has no route of its own"
            hands = "".join(f"\n  - {way.route.by_hand}" for way in self.ways if way.route)
            layout = f"\n  - {self.layout}" if self.layout else ""
            raise BenchError(
                f"{damage}could not fetch data set {spec.name!r}. Tried:{tried}\nTo get it by hand, put the files into "
                f"{given} and run `python -m bench data get {spec.name}`:{hands}{layout}"
            )
        partial = request.root / "partial"
        shutil.rmtree(partial / request.spec.store, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: others are being fetched
            partial.rmdir()

    def _by_hand(self, request: LoadRequest, reasons: list[str]) -> bool:
        spec, given = request.spec, request.root / "raw" / request.spec.store
        if not given.is_dir():
            return False
        for way in self.ways:
            if way.route is None:
                continue
            try:
                unpacked = request.root / "partial" / spec.store / "by-hand"
                folder = way.route.adopt(given, unpacked)
                self._store(request, way, folder or given, f"files in {given}")
            except FileNotFoundError:
                continue  # the files fit another way
            except StorageError:
                raise
            except UNUSABLE as error:
                reasons.append(f"files in {given}: {error}")
            else:
                return True
        return False

    def _by_route(self, request: LoadRequest, reasons: list[str]) -> bool:
        spec = request.spec
        for number, way in enumerate(self.ways):
            label = way.route.label if way.route else "an installed package"
            folder = request.root / "partial" / spec.store / str(number)
            try:
                if way.route:
                    request.progress(f"fetching {spec.name}: {label}", 0, None)
                    way.route.fetch(folder, request.progress)
                request.progress(f"decoding {spec.name}", 0, None)
                self._store(request, way, folder, label)
            except StorageError:
                raise
            except UNUSABLE as error:
                if not isinstance(error, RouteError):
                    # Wrong files would fail every later call if they stayed.
                    shutil.rmtree(folder, ignore_errors=True)
                reasons.append(f"{label}: {error}")
            else:
                return True
        return False

    def _store(self, request: LoadRequest, way: Way, folder: Path, label: str) -> None:
        arrays = way.decode(folder)
        check(self.whole or request.spec, arrays)
        write_store(request.root, request.spec.store, arrays, label, self.pinned)
