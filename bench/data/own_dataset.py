"""A ``torch.utils.data.Dataset`` of a user as an ``.npz`` file, which other processes and machines can read."""

from __future__ import annotations

import hashlib
import hmac
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.core.errors import BenchError
from bench.core.processes import owner_only
from bench.data.file_list import FOLDERS
from bench.data.own_arrays import check_fits, is_bytes
from bench.data.own_name import PREFIX, salt_of
from bench.storage.array_store import data_root, storage_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch.utils.data import Dataset

ITEM = "an item is a pair of an image or a row of numbers, all of one shape, and a label, a whole number"


def save_dataset(
    into: str | Path, train: Dataset[Any], test: Dataset[Any] | None = None, *,
    values: tuple[float, float] | None = None, classes: Sequence[str] | None = None,
) -> str:  # fmt: skip
    """Save a torch ``Dataset`` as the file `into` (``.npz``), readable only by its owner, and return its name.

    The name, ``folder:INTO``, is for ``datasets`` of :func:`bench.run` and for every command. Items are pairs of an
    image (PIL, array or tensor) or a row of numbers, and a label.

    Args:
        into: The file to write.
        train: The training records; without `test`, a fifth of them, by a hash of their numbers, is for testing.
        test: The test records.
        values: Public range of the values, for instance (0, 1) after torchvision's ``ToTensor``; None for bytes.
        classes: Names of the labels 0, 1, ...; None: the Dataset's `classes`, or the labels that occur.

    Raises:
        BenchError: Items have several shapes or no whole labels, do not fit into memory, or `into` cannot be written.
    """
    into = Path(into)
    if into.suffix != ".npz":
        raise BenchError(f"{into} must end in .npz.")
    name = f"{PREFIX}{into}" + ("@" + "..".join(map(_exactly, values)) if values else "")
    _write(into, _arrays(train, test, values, classes))
    return name


def _exactly(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def given_dataset(train: Dataset[Any], test: Dataset[Any] | None = None) -> str:
    """Save a Dataset in the data root unless it is there, and return its name; see :func:`save_dataset`."""
    arrays = _arrays(train, test, None, None)
    root = data_root()
    digest = hmac.new(salt_of(root), digestmod=hashlib.sha256)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}{array.shape}{array.dtype}".encode() + np.ascontiguousarray(array).tobytes())
    into = root / FOLDERS / f"{type(train).__name__}-{digest.hexdigest()[:12]}.npz"
    if not into.exists():
        _write(into, arrays)
    return f"{PREFIX}{into}"


def _arrays(
    train: Dataset[Any], test: Dataset[Any] | None, values: tuple[float, float] | None, classes: Sequence[str] | None
) -> dict[str, NDArray[Any]]:
    halves = {"": train} if test is None else {"_train": train, "_test": test}
    arrays: dict[str, NDArray[Any]] = {}
    for half, given in halves.items():
        x, y = _stacked(given)
        if values is None and not is_bytes(x):
            raise BenchError(
                f"{type(given).__name__} gives numbers of type {x.dtype}. State their range, which is "
                "public: bench.save_dataset('mine.npz', train, values=(0, 1)) returns a name for bench.run."
            )
        arrays |= {f"x{half}": x, f"y{half}": y}
    names = classes if classes is not None else getattr(train, "classes", None)
    theirs = getattr(test, "classes", None)
    if classes is None and names is not None and theirs is not None and list(theirs) != list(names):
        if unknown := [str(one) for one in theirs if one not in names]:
            raise BenchError(f"the test set has classes that the training set lacks: {', '.join(unknown[:5])}.")
        # An ImageFolder numbers the classes that it holds, so one without an image shifts the others.
        arrays["y_test"] = np.array([list(names).index(one) for one in theirs], dtype=np.int64)[arrays["y_test"]]
    if names is not None:
        arrays["classes"] = np.array([str(one) for one in names], dtype=np.str_)
    return arrays


def _stacked(given: Dataset[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return all items as arrays, values (n, ...) and labels (n,)."""
    kind = type(given).__name__
    try:
        count = len(given)  # type: ignore[arg-type]
    except TypeError as error:
        raise BenchError(f"{kind} has no length. Give a Dataset with __len__ and __getitem__.") from error
    x: NDArray[Any] | None = None
    labels = np.empty(count, dtype=np.int64)
    for number in range(count):
        try:
            image, label = given[number]
            # The values of a palette image are indices, not brightness.
            one = np.asarray(image.convert("RGB") if getattr(image, "mode", "") == "P" else image)
            labels[number] = int(label)
            if labels[number] != label:
                raise ValueError(f"its label is {label}")
            if x is None:
                check_fits(kind, count * one.nbytes)
                x = np.empty((count, *one.shape), dtype=one.dtype)
            if one.shape != x.shape[1:] or one.dtype != x.dtype:
                raise ValueError(f"its values are {one.dtype} {one.shape}, those of item 0 {x.dtype} {x.shape[1:]}")
        except (TypeError, ValueError) as error:
            raise BenchError(f"item {number} of {kind} cannot be used ({error}): {ITEM}.") from error
        x[number] = one
    if x is None:
        raise BenchError(f"{kind} is empty.")
    return x, labels


def _write(into: Path, arrays: dict[str, NDArray[Any]]) -> None:
    aside = into.with_name(f".{into.name}.{os.getpid()}")
    with storage_errors(into), owner_only(True):
        try:
            into.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(aside, "w") as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                        np.lib.format.write_array(file, array, allow_pickle=False)
            os.replace(aside, into)
        finally:
            aside.unlink(missing_ok=True)
