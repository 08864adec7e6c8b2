"""The registry of data sets: ``load("mnist").train.images(slice(0, 10))`` is uint8 (10, 1, 28, 28).

Other packages add data sets through the entry-point group ``bench.datasets``: each entry point is a
:class:`bench.data.spec.DatasetSpec`, or a function without arguments that returns one or several.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path

from bench.core.errors import BenchError, UnknownNameError, no_exit
from bench.core.fetch_progress import Progress, silent
from bench.core.plain_files import user_path
from bench.data import catalog as builtin
from bench.data.file_list import place
from bench.data.image_folder import PublicFolderLoader
from bench.data.image_map import verify_map
from bench.data.own_data import arrays_place, own_spec
from bench.data.own_name import PREFIX, parse
from bench.data.spec import ArrayRecords, DatasetSpec, Loaded, LoadRequest, Records
from bench.storage.array_store import DamagedError, data_root, locked, set_aside, verify_store

__all__ = [
    "DATASETS", "PLUGIN_ERRORS", "ArrayRecords", "DatasetSpec", "LoadRequest", "Loaded", "Records", "all_datasets",
    "data_root", "get_dataset", "load", "register_dataset",
]  # fmt: skip

ENTRY_POINTS = "bench.datasets"

DATASETS: dict[str, DatasetSpec] = {}
"""Registered data sets by name; :func:`get_dataset` and :func:`all_datasets` add those of entry points."""

PLUGIN_ERRORS: dict[str, str] = {}


def register_dataset(spec: DatasetSpec) -> DatasetSpec:
    """Register `spec` under its name and return it; raise BenchError if the name is taken or not valid in a path."""
    if not spec.name or spec.name.startswith((".", PREFIX)) or set(spec.name) & set("/\\\0 "):
        raise BenchError(f"{spec.name!r} is not a valid name for a data set: use letters, digits, '-' and '_'.")
    if spec.name in DATASETS:
        raise BenchError(f"a data set named {spec.name!r} is already registered; choose another name.")
    DATASETS[spec.name] = spec
    return spec


@cache
def read_plugins() -> None:
    """Register the data sets of entry points, once; store failures in `PLUGIN_ERRORS`."""
    for point in metadata.entry_points(group=ENTRY_POINTS):
        try:
            with no_exit(point.value):
                offered = point.load()
                if callable(offered) and not isinstance(offered, DatasetSpec):
                    offered = offered()
            for spec in [offered] if isinstance(offered, DatasetSpec) else offered:
                register_dataset(spec)
        except Exception as error:  # noqa: BLE001 (a third-party package may fail in any way and must not affect others)
            PLUGIN_ERRORS[point.name] = f"{type(error).__name__}: {error}"


def all_datasets() -> dict[str, DatasetSpec]:
    """Return every data set by name, including those of other packages."""
    read_plugins()
    return dict(DATASETS)


def get_dataset(name: str) -> DatasetSpec:
    """Return the data set `name` or ``folder:PATH``; raise UnknownNameError, or BenchError for unusable data."""
    if name.startswith(PREFIX):
        return own_spec(name)
    if name not in DATASETS:
        read_plugins()
    base, colon, _ = name.partition(":")
    if colon and base in DATASETS:
        where = data_root(None) / "raw" / (DATASETS[base].store or base)
        raise BenchError(
            f"{base} takes no path. If you have its files, put them into {where}; `python -m bench data get {base}` "
            "says in which form. BENCH_DATA names another folder of data sets. Data of your own: folder:PATH."
        )
    if name not in DATASETS:
        broken = "; ".join(f"plug-in {key} failed: {why}" for key, why in PLUGIN_ERRORS.items())
        mine = f"folder:{name}" if user_path(name).exists() else "folder:PATH"
        hint = f"Or {mine} for data of your own." + (f" {broken}." if broken else "")
        raise UnknownNameError("data set", name, DATASETS, hint)
    return DATASETS[name]


def load(name: str, root: Path | None = None, fetch: bool = True, progress: Progress | None = None) -> Loaded:
    """Return the data set called `name`, a registered name or ``folder:PATH``; `fetch` permits downloading.

    `root` defaults to ``$BENCH_DATA`` or the cache folder. Raise UnknownNameError, or BenchError if fetching fails.
    """
    spec = get_dataset(name)
    return spec.loader(LoadRequest(spec, data_root(root), fetch, progress or silent))


def verify_stored(name: str, progress: Progress) -> str:
    """Compare every byte of the stored data set `name` with its manifest, and return what was compared.

    Raises UnknownNameError, or BenchError for a damaged store, which is moved aside.
    """
    spec, root = get_dataset(name), data_root()
    own = name.startswith(PREFIX)
    if own and (stored := arrays_place(root, parse(name), spec)).is_dir():
        verify_store(stored.parent, stored.name, progress)
        return f"every byte under {stored}"
    if own or isinstance(spec.loader, PublicFolderLoader):
        kept = place(root, parse(name).path if own else root / "raw" / spec.store, spec.shape)
        verify_map(kept, progress)
        return f"every decoded image in {kept.with_suffix('.map')}"
    try:
        verify_store(root, spec.store, progress)
    except DamagedError as error:
        with locked(root, spec.store, progress):
            target = set_aside(root, spec.store, error)
        raise BenchError(
            f"{error} It was moved to {target}. Fetch it again with: python -m bench data get {name}"
        ) from error
    return f"every byte under {root / spec.store}"


for _spec in builtin.specs():
    register_dataset(replace(_spec, public_benchmark=True))
