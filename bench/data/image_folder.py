"""A user's images, ``folder:PATH``, and public sets that are too large to store decoded.

Two layouts are accepted: ``PATH/train/CLASS/*.png`` with ``PATH/test/CLASS/*.png`` (or ``val``, ``valid``,
``validation``), and ``PATH/CLASS/*.png``, where a hash of each relative path selects a fifth for testing. The shape
(channels, height, width) is stated as in ``folder:PATH@1x64x64``, else taken from the first file by name. It is public,
like the number of records and the class names.

A revision must not reveal the content, so it is an HMAC-SHA256 over names, sizes and contents with a random salt in the
data root (``folder-salt``, readable only by its owner): without the salt no guess of the content can be tested. Files
are read once for it; later jobs compare folders and a sample of files: :mod:`bench.data.file_list`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.core.errors import BenchError
from bench.core.plain_files import open_plain, user_path
from bench.data.file_list import Half, Listing, kept_list, place
from bench.data.image_files import FileRecords, list_classes, list_images, list_labelled, open_image
from bench.data.spec import DatasetSpec, Loaded, LoadRequest
from bench.storage.array_store import storage_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

PREFIX = "folder:"
TEST_NAMES = ("test", "val", "valid", "validation")
HALVES = {"train", "training", "testing", *TEST_NAMES}
TEST_SHARE = 0.2
SALT = "folder-salt"
_SHAPE = re.compile(r"^(?P<path>.+)@(?P<c>[13])x(?P<h>[1-9]\d{0,4})x(?P<w>[1-9]\d{0,4})$")

LAYOUT = "PATH/train/CLASS/*.png with PATH/test/CLASS/*.png, or PATH/CLASS/*.png"


def parse(name: str) -> tuple[Path, tuple[int, int, int] | None]:
    """Return the path and, if given, the shape of ``folder:PATH`` or ``folder:PATH@CxHxW``."""
    text = name.removeprefix(PREFIX)
    if (match := _SHAPE.match(text)) and not user_path(text).exists():
        path = user_path(match["path"])
        return path, (int(match["c"]), int(match["h"]), int(match["w"]))
    return user_path(text), None


def folder_spec(name: str) -> DatasetSpec:
    """Return the data set in a user's folder; raise BenchError if it is missing or has < 2 classes or no image."""
    path, shape = parse(name)
    if not path.is_dir():
        raise BenchError(f"{path} is no folder. Accepted: {LAYOUT}.")
    train, _ = _halves(path)
    classes = list_classes(train)
    if len(classes) < 2:
        raise BenchError(f"{train} has {len(classes)} class folders, but needs at least two. Accepted: {LAYOUT}.")
    if {one.casefold() for one in classes} <= HALVES:
        raise BenchError(
            f"the folders in {train} are halves, not classes: {', '.join(classes)}. Rename them: {LAYOUT}."
        )
    return DatasetSpec(
        name=name,
        classes=len(classes),
        shape=shape or _first_shape(train, classes),
        class_names=tuple(classes),
        train_records=None,
        test_records=None,
        loader=load_folder,
        split_rule="hash",
        public_benchmark=False,
        licence="the user's own",
        source=str(path),
        resolution="scaled to cover the shape and cut at the centre, where an image has another size",
        store="folder",
    )


def _halves(path: Path) -> tuple[Path, Path | None]:
    if not (path / "train").is_dir():
        return path, None
    tests = [path / name for name in TEST_NAMES if (path / name).is_dir()]
    return path / "train", tests[0] if tests else None


def _first_shape(train: Path, classes: Sequence[str]) -> tuple[int, int, int]:
    for name in classes:
        for file in list_images(train / name)[:1]:
            with open_image(train / name / file) as image:
                grey = image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;16")
                return (1 if grey else 3, image.height, image.width)
    raise BenchError(f"{train} has class folders but no image. Accepted: {LAYOUT}.")


def load_folder(request: LoadRequest) -> Loaded:
    """Return the records of a user's folder, which is listed once; images are decoded on demand.

    Raise BenchError if a test class is not a training class, a half is empty, or the salt cannot be stored.
    """
    spec = request.spec
    path, _ = parse(spec.name)
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

    salt = _salt(request.root)
    train, test, revision = kept_list(
        request, path, bases, listing, lambda halves: _keyed_revision(request, path, halves, salt), mark=salt
    )
    return _loaded(spec, path, train, test, revision, request.root)


def _check_filled(folder: Path, classes: Sequence[str], labels: NDArray[np.int64]) -> None:
    """Raise BenchError if a class has no training image."""
    empty = [classes[label] for label in np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0).tolist()]
    if empty:
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        raise BenchError(
            f"no training image in {', '.join(str(folder / name) for name in empty[:5])}{more}. Each folder in "
            f"{folder} is taken for a class: give the folder whose folders are the classes, and remove or fill empty "
            "ones."
        )


def _loaded(spec: DatasetSpec, path: Path, train: Half, test: Half, revision: str, root: Path) -> Loaded:
    kept = place(root, path, spec.shape)
    known = replace(spec, train_records=len(train.files), test_records=len(test.files))
    records = [FileRecords(half, spec.shape, kept) for half in (train, test)]
    return Loaded(known, records[0], records[1], revision, f"files in {path}", (path,))


def _is_test(relative: str) -> bool:
    """Return whether a file is for testing, decided only by a hash of its path."""
    digest = hashlib.sha256(b"bench.data/folder test\0" + os.fsencode(relative)).digest()
    return int.from_bytes(digest[:8], "big") < TEST_SHARE * 2**64


def _keyed_revision(request: LoadRequest, path: Path, halves: Sequence[Half], salt: bytes) -> str:
    digest = hmac.new(salt, digestmod="sha256")
    digest.update("x".join(map(str, request.spec.shape)).encode() + b"\0")
    total = sum(len(half.files) for half in halves)
    for number, full in enumerate(half.base / half.files[row] for half in halves for row in range(len(half.files))):
        name = os.fsencode(full.relative_to(path).as_posix())
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


def _salt(root: Path) -> bytes:
    """Return the salt of this data root, created atomically the first time."""
    target = root / SALT
    with storage_errors(target):
        root.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            aside = root / f".{SALT}.{os.getpid()}"
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as handle:
                    handle.write(os.urandom(32))
                    handle.flush()
                    os.fsync(handle.fileno())
                # The link fails if another process was first; use its salt then.
                os.link(aside, target)
            except FileExistsError:
                pass
            finally:
                aside.unlink(missing_ok=True)
        salt = target.read_bytes()
    if len(salt) != 32:
        raise BenchError(
            f"{target} is damaged: 32 bytes are expected. Remove it; the revisions of folders then change."
        )
    return salt


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
                f"{base}: {len(classes)} training and {len(list_classes(test))} test classes, {spec.classes} alike are "
                f"expected. {self.by_hand}"
            )
        bases = train, test

        def listing(folders: list[Path]) -> tuple[Listing, Listing]:
            one, other = ((half, *list_labelled(half, classes, folders)) for half in bases)
            _check_filled(train, classes, one[2])
            return one, other

        halves = kept_list(request, base, bases, listing, _plain_revision)
        return _loaded(replace(spec, class_names=tuple(classes)), base, *halves, request.root)


def _plain_revision(halves: Sequence[Half]) -> str:
    digest = hashlib.sha256()
    for half in halves:
        for number, size in enumerate(half.stamps[:, 0].tolist()):
            digest.update(os.fsencode(f"{half.base.name}/{half.files[number]}\0{size}\n"))
    return "names-sizes:" + digest.hexdigest()[:16]
