"""Comparison of a stored data set with its manifest."""

from __future__ import annotations

from bench.core.errors import BenchError
from bench.core.fetch_progress import Progress
from bench.data.datasets import data_root, get_dataset
from bench.data.file_list import place
from bench.data.image_folder import PublicFolderLoader
from bench.data.image_map import verify_map
from bench.data.own_data import arrays_place
from bench.data.own_name import PREFIX, parse
from bench.storage.array_store import DamagedError, locked, set_aside, verify_store


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
