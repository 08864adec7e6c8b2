"""A user's images, ``folder:PATH``, and public sets that are too large to store decoded.

Two layouts are accepted: ``PATH/train/CLASS/*.png`` with ``PATH/test/CLASS/*.png`` (or ``val``, ``valid``,
``validation``), and ``PATH/CLASS/*.png``, where a hash of each relative path selects a fifth for testing. The shape
(channels, height, width) is stated as in ``folder:PATH@1x64x64``, or taken from the first file by name. It is public,
like the number of records and the class names.

The revision is an HMAC over names, sizes and contents (:mod:`bench.data.own_name`). Files are read once for it; later
jobs compare folders and a sample of files: :mod:`bench.data.file_list`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.core.errors import BenchError
from bench.core.plain_files import open_plain
from bench.core.printable import counted
from bench.data.file_list import Half, Listing, kept_list, place
from bench.data.image_files import DECODING, FileRecords, list_classes, list_images, list_labelled, open_image
from bench.data.own_name import HALVES, TEST_NAMES, TEST_SHARE, parse, salt_of
from bench.data.spec import DatasetSpec, Loaded, LoadRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

RESOLUTION = "scaled to cover the shape and cut at the centre, where an image has another size"
LAYOUT = "PATH/train/CLASS/*.png with PATH/test/CLASS/*.png, or PATH/CLASS/*.png"


def folder_spec(name: str) -> DatasetSpec:
    """Return the data set in a user's folder; raise BenchError if it is missing or has < 2 classes or no image."""
    own = parse(name)
    path = own.path
    if own.values:
        raise BenchError(f"{path} holds images, whose range of values is known: leave out what follows @.")
    if not path.is_dir():
        raise BenchError(f"{path} is not a folder. Accepted: {LAYOUT}, or a file of arrays or a table (docs/data.md).")
    train, _ = _halves(path)
    classes = list_classes(train)
    if len(classes) < 2:
        raise BenchError(
            f"{train} has {counted(len(classes), 'class folder')}, but needs at least two. Accepted: {LAYOUT}."
        )
    if {one.casefold() for one in classes} <= HALVES:
        raise BenchError(
            f"the folders in {train} are names of splits, not classes: {', '.join(classes)}. Rename them: {LAYOUT}."
        )
    return users_spec(name, path, classes, own.shape or _first_shape(train, classes), load_folder)


def users_spec(
    name: str, path: Path, classes: Sequence[str], shape: tuple[int, int, int],
    loader: Callable[[LoadRequest], Loaded], *, images: bool = True,
) -> DatasetSpec:  # fmt: skip
    """Return the data set in a user's folder or file `path`, of images or of arrays."""
    return DatasetSpec(
        name, len(classes), shape, tuple(classes), None, None, loader, "hash", licence="the user's own",
        source=str(path), resolution=RESOLUTION if images else "", store="folder",
    )  # fmt: skip


def _halves(path: Path) -> tuple[Path, Path | None]:
    if not (path / "train").is_dir():
        return path, None
    tests = [path / name for name in TEST_NAMES if (path / name).is_dir()]
    return path / "train", tests[0] if tests else None


def unread(path: Path) -> list[str]:
    """Return the names of folders beside ``train`` that hold neither training nor test images."""
    train, test = _halves(path)
    return [] if train == path else [name for name in list_classes(path) if path / name not in (train, test)]


def _first_shape(train: Path, classes: Sequence[str]) -> tuple[int, int, int]:
    for name in classes:
        for file in list_images(train / name)[:1]:
            with open_image(train / name / file) as image:
                return image_shape(image)
    raise BenchError(f"{train} has class folders but no image. Accepted: {LAYOUT}.")


def image_shape(image: Image) -> tuple[int, int, int]:
    """Return (channels, height, width) of an opened image: one channel if it is grey, otherwise three."""
    grey = image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;16")
    return 1 if grey else 3, image.height, image.width


def load_folder(request: LoadRequest) -> Loaded:
    """Return the records of a user's folder, which is listed once; images are decoded on demand.

    Raise BenchError if a test class is not a training class, a half is empty, or the salt cannot be stored.
    """
    spec = request.spec
    path = parse(spec.name).path
    train_folder, test_folder = _halves(path)
    bases = train_folder, test_folder or train_folder

    def listing(folders: list[Path]) -> tuple[Listing, Listing]:
        files, labels = list_labelled(train_folder, spec.class_names, folders)
        if test_folder:
            unknown = sorted(set(list_classes(test_folder)) - set(spec.class_names))
            if unknown:
                raise BenchError(
                    f"{test_folder} has classes that are missing from {train_folder}: {', '.join(unknown[:5])}."
                )
            tests, test_labels = list_labelled(test_folder, spec.class_names, folders)
        else:
            chosen = np.fromiter((_is_test(file) for file in files), dtype=np.bool_, count=len(files))
            tests, test_labels = [f for f, is_test in zip(files, chosen, strict=True) if is_test], labels[chosen]
            files, labels = [f for f, is_test in zip(files, chosen, strict=True) if not is_test], labels[~chosen]
        if not files or not tests:
            raise BenchError(f"{path} gives {len(files)} training and {len(tests)} test images: add more. {LAYOUT}.")
        _check_filled(train_folder, spec.class_names, labels)
        return (bases[0], files, labels), (bases[1], tests, test_labels)

    salt = salt_of(request.root)
    train, test, revision = kept_list(
        request, path, bases, listing, lambda halves: keyed_revision(request, path, halves, salt), mark=salt + DECODING
    )
    return files_loaded(spec, path, train, test, revision, request.root)


def _check_filled(folder: Path, classes: Sequence[str], labels: NDArray[np.int64]) -> None:
    """Raise BenchError if a class has no training image."""
    if empty := unfilled(labels, [str(folder / name) for name in classes]):
        raise BenchError(
            f"no training image in {empty}. Each folder in {folder} is taken for a class: give the folder whose "
            "folders are the classes, and remove or fill empty ones."
        )


def unfilled(labels: NDArray[np.int64], classes: Sequence[str]) -> str:
    """Return a text with the first five `classes` without a record, and the number of others."""
    empty = [classes[label] for label in np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0).tolist()]
    more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
    return ", ".join(empty[:5]) + more


def files_loaded(spec: DatasetSpec, path: Path, train: Half, test: Half, revision: str, root: Path) -> Loaded:
    """Return the files of `train` and `test`, listed in or below `path`, as records decoded on demand."""
    kept = place(root, path, spec.shape)
    known = replace(spec, train_records=len(train.files), test_records=len(test.files))
    records = [FileRecords(half, spec.shape, kept) for half in (train, test)]
    return Loaded(known, records[0], records[1], revision, f"files in {path}", (path,))


def _is_test(relative: str) -> bool:
    """Return whether a file is for testing, decided only by a hash of its path."""
    digest = hashlib.sha256(b"bench.data/folder test\0" + os.fsencode(relative)).digest()
    return int.from_bytes(digest[:8], "big") < TEST_SHARE * 2**64


def keyed_revision(
    request: LoadRequest, path: Path, halves: Sequence[Half], salt: bytes,
    name_of: Callable[[Half, int], bytes] | None = None,
) -> str:  # fmt: skip
    """Return an HMAC over the way of decoding, the shape and each file's name, size and content.

    `name_of` returns the name of a row of a split: by default its path below `path`, which identifies label and split.
    """
    digest = hmac.new(salt, digestmod="sha256")
    digest.update(DECODING + b"\0" + "x".join(map(str, request.spec.shape)).encode() + b"\0")
    total = sum(len(half.files) for half in halves)
    for number, (half, row) in enumerate((one, row) for one in halves for row in range(len(one.files))):
        full = half.base / half.files[row]
        name = name_of(half, row) if name_of else os.fsencode(full.relative_to(path).as_posix())
        try:
            with open_plain(full, links=True) as handle:
                content = hashlib.file_digest(handle, "sha256").digest()
                size = os.fstat(handle.fileno()).st_size
        except OSError as error:
            raise BenchError(f"cannot read the image {full}: {error.strerror}.") from error
        except ValueError as error:
            raise BenchError(f"cannot read the image {full}: it is {error}.") from error
        # Prefix lengths, so that no two lists of files give the same bytes.
        digest.update(len(name).to_bytes(8, "big") + name + size.to_bytes(8, "big") + content)
        if number % 256 == 0:
            request.progress(f"reading {path}", number, total)
    return "hmac-sha256:" + digest.hexdigest()[:16]


@dataclass(frozen=True)
class PublicFolderLoader:
    """Loads a large public set from ``raw/STORE/{train,val}/CLASS/*`` on demand; names and sizes give its revision."""

    by_hand: str

    def __call__(self, request: LoadRequest) -> Loaded:
        """Return the records; if folders are missing or classes differ, raise BenchError with how to get the data."""
        spec, base = request.spec, request.root / "raw" / request.spec.store
        train, test = base / "train", base / "val"
        classes = list_classes(train)
        if not classes or not test.is_dir():
            raise BenchError(f"data set {spec.name!r} is not under {base}. {self.by_hand}")
        if len(classes) != spec.classes or list_classes(test) != classes:
            raise BenchError(
                f"{base}: {len(classes)} training and {len(list_classes(test))} test classes; the same {spec.classes} "
                f"are expected. {self.by_hand}"
            )
        bases = train, test

        def listing(folders: list[Path]) -> tuple[Listing, Listing]:
            one, other = ((half, *list_labelled(half, classes, folders)) for half in bases)
            _check_filled(train, classes, one[2])
            return one, other

        halves = kept_list(request, base, bases, listing, _plain_revision)
        return files_loaded(replace(spec, class_names=tuple(classes)), base, *halves, request.root)


def _plain_revision(halves: Sequence[Half]) -> str:
    digest = hashlib.sha256()
    for half in halves:
        for number, size in enumerate(half.stamps[:, 0].tolist()):
            digest.update(os.fsencode(f"{half.base.name}/{half.files[number]}\0{size}\n"))
    return "names-sizes:" + digest.hexdigest()[:16]
