"""Decoders from the raw files in a folder to the stored arrays.

Each returns ``train_images`` uint8 (n, channels, height, width), ``train_labels`` int64 (n,) and the same for ``test``.
A malformed file raises ValueError with its name, a missing file FileNotFoundError. Decoders never unpickle.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.lazy_libraries import Image, scipy, sklearn
from bench.data.image_files import decoded_pieces, list_labelled
from bench.data.index_hash import ranks
from bench.storage.array_store import Blocks

Decode = Callable[[Path], Mapping[str, Blocks]]

CIFAR10 = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def present(folder: Path, name: str) -> Path:
    """Return the file `name` in `folder`; raise FileNotFoundError if it is missing."""
    if not (folder / name).is_file():
        raise FileNotFoundError(f"{folder} has no {name}")
    return folder / name


def read_raw(folder: Path, name: str) -> bytes:
    """Return the bytes of `name` in `folder`, or of the unpacked `name`.gz."""
    plain = folder / name
    if plain.is_file():
        return plain.read_bytes()
    packed = folder / f"{name}.gz"
    try:
        return gzip.decompress(packed.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} has neither {name} nor {name}.gz") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{packed.name} is damaged or truncated ({error})") from error


def read_idx(raw: bytes, name: str) -> NDArray[np.uint8]:
    """Return the array in an idx file of unsigned bytes: magic 0, 0, 8, rank, then big-endian sizes, then the data."""
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{name} is not an idx file of unsigned bytes")
    rank = raw[3]
    shape = tuple(int(n) for n in np.frombuffer(raw[4 : 4 + 4 * rank].ljust(4 * rank, b"\0"), dtype=">u4"))
    data = np.frombuffer(raw, dtype=np.uint8, offset=min(4 + 4 * rank, len(raw)))
    if data.size != int(np.prod(shape)):
        raise ValueError(f"{name} is truncated or too long: {data.size} values for the shape {shape}")
    return data.reshape(shape)


def _arrays(
    train_images: NDArray[np.uint8],
    train_labels: NDArray[Any],
    test_images: NDArray[np.uint8],
    test_labels: NDArray[Any],
) -> dict[str, Blocks]:
    made: dict[str, Blocks] = {}
    for half, images, labels in (("train", train_images, train_labels), ("test", test_images, test_labels)):
        if len(images) != len(labels):
            raise ValueError(f"{half}: {len(images)} images and {len(labels)} labels")
        made[f"{half}_images"] = Blocks.of(images)
        made[f"{half}_labels"] = Blocks.of(np.asarray(labels).reshape(-1).astype(np.int64))
    return made


def idx(folder: Path) -> Mapping[str, Blocks]:
    """Decode MNIST's four files, packed with gzip or not."""
    images, labels, test_images, test_labels = (read_idx(read_raw(folder, name), name) for name in IDX)
    return _arrays(images[:, None], labels, test_images[:, None], test_labels)


def cifar_rows(raw: bytes, name: str, label_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images (n, 3, 32, 32) and fine labels (n,) of a CIFAR binary file: labels, then 3072 bytes by channel."""
    row = label_bytes + 3072
    if not raw or len(raw) % row:
        raise ValueError(f"{name} is truncated: {len(raw)} bytes is not a multiple of {row}")
    table = np.frombuffer(raw, dtype=np.uint8).reshape(-1, row)
    return np.ascontiguousarray(table[:, label_bytes:]).reshape(-1, 3, 32, 32), table[:, label_bytes - 1].copy()


def cifar10_binary(folder: Path) -> Mapping[str, Blocks]:
    """Decode the owner's binary version: ``data_batch_1.bin`` to ``5``, ``test_batch.bin``."""
    *parts, test = (cifar_rows(read_raw(folder, name), name, 1) for name in CIFAR10)
    return _arrays(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]), *test)


def cifar10_grids(folder: Path) -> Mapping[str, Blocks]:
    """Decode the npm package: one PNG per batch with one image in each of its 10,000 rows, labels in two JSON files."""
    images = np.concatenate([_image_grid(folder / f"data_batch_{i}.png") for i in range(1, 6)])
    test = _image_grid(folder / "test_batch.png")
    labels = [np.asarray(json.loads(read_raw(folder, name))) for name in ("train_lables.json", "test_lables.json")]
    return _arrays(images, labels[0], test, labels[1])


def _image_grid(path: Path) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as opened:
            if opened.size[0] != 1024 or opened.mode not in ("RGB", "RGBA"):
                raise ValueError(f"it has {opened.size} {opened.mode}, not 1024 RGB pixels a row")
            pixels = np.asarray(opened.convert("RGB"))
    except FileNotFoundError:
        raise
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises SyntaxError for a corrupt chunk
        raise ValueError(f"{path.name} is damaged or not an image grid ({error})") from error
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def cifar100_binary(folder: Path) -> Mapping[str, Blocks]:
    """Decode the owner's binary version, ``train.bin`` and ``test.bin``, with the fine labels."""
    train = cifar_rows(read_raw(folder, "train.bin"), "train.bin", 2)
    return _arrays(*train, *cifar_rows(read_raw(folder, "test.bin"), "test.bin", 2))


def svhn_mat(folder: Path) -> Mapping[str, Blocks]:
    """Decode ``train_32x32.mat`` and ``test_32x32.mat``: X (32, 32, 3, n), y with 10 for the digit 0."""
    halves: list[NDArray[Any]] = []
    for name in ("train_32x32.mat", "test_32x32.mat"):
        path = present(folder, name)
        try:
            content = scipy.io.loadmat(str(path), variable_names=("X", "y"))
            pixels, labels = content["X"], content["y"].reshape(-1).astype(np.int64)
        except Exception as error:  # scipy raises many types for a damaged file
            raise ValueError(f"{name} is damaged or not a MATLAB file ({type(error).__name__})") from error
        if pixels.shape[:3] != (32, 32, 3) or pixels.dtype != np.uint8:
            raise ValueError(f"{name}: X is {pixels.dtype} {pixels.shape}, not uint8 (32, 32, 3, n)")
        halves += [np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels % 10]
    return _arrays(*halves)


def stl10_binary(folder: Path) -> Mapping[str, Blocks]:
    """Decode ``{train,test}_{X,y}.bin``: images (n, 3, 96, 96) stored column by column, labels from 1."""
    halves: list[NDArray[Any]] = []
    for half in ("train", "test"):
        raw = read_raw(folder, f"{half}_X.bin")
        if not raw or len(raw) % (3 * 96 * 96):
            raise ValueError(f"{half}_X.bin is truncated: {len(raw)} bytes is not a multiple of {3 * 96 * 96}")
        labels = np.frombuffer(read_raw(folder, f"{half}_y.bin"), dtype=np.uint8).astype(np.int64) - 1
        pixels = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)
        halves += [np.ascontiguousarray(pixels), labels]
    return _arrays(*halves)


def medmnist_npz(file: str, channels: int, any_finding: bool = False) -> Decode:
    """Return the decoder of a MedMNIST ``.npz``; with `any_finding`, a row of 0/1 findings becomes 1 if any is 1."""

    def decode(folder: Path) -> Mapping[str, Blocks]:
        path = present(folder, file)
        halves: list[NDArray[Any]] = []
        try:
            with np.load(path, allow_pickle=False) as content:
                for half in ("train", "test"):
                    pixels, labels = content[f"{half}_images"], content[f"{half}_labels"]
                    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
                    labels = labels.any(axis=1) if any_finding else labels.reshape(len(pixels), -1)[:, 0]
                    halves += [np.ascontiguousarray(pixels, dtype=np.uint8), labels]
        except Exception as error:  # any error means that this is not the expected file
            raise ValueError(f"{file} is damaged or not a MedMNIST file ({type(error).__name__})") from error
        if halves[0].shape[1] != channels:
            raise ValueError(f"{file} has {halves[0].shape[1]} channels, not {channels}")
        return _arrays(*halves)

    return decode


def digits(_: Path) -> Mapping[str, Blocks]:
    """Return scikit-learn's 1,797 digits, scaled from 0..16 to 0..255; an index hash selects 397 for testing."""
    pixels, labels = sklearn.datasets.load_digits(return_X_y=True)
    images = np.rint(pixels.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    order = ranks("digits", len(images), "official test")
    test = np.sort(order[:397])
    train = np.sort(order[397:])
    return _arrays(images[train], labels[train], images[test], labels[test])


def _image_files(halves: Mapping[str, tuple[list[Path], Any]], shape: tuple[int, int, int]) -> dict[str, Blocks]:
    out: dict[str, Blocks] = {}
    for half, (paths, labels) in halves.items():
        out[f"{half}_images"] = Blocks((len(paths), *shape), "uint8", decoded_pieces(paths, shape))
        out[f"{half}_labels"] = Blocks.of(np.asarray(labels, dtype=np.int64))
    return out


def class_folders(classes: tuple[str, ...], shape: tuple[int, int, int]) -> Decode:
    """Return a decoder of ``{train,test}/CLASS/*``."""

    def decode(folder: Path) -> Mapping[str, Blocks]:
        halves = {}
        for half in ("train", "test"):
            files, labels = list_labelled(folder / half, classes)
            if not files:
                raise FileNotFoundError(f"{folder / half} has no images in the folders {', '.join(classes)}")
            halves[half] = ([folder / half / file for file in files], labels)
        return _image_files(halves, shape)

    return decode


COVIDX = ("normal", "pneumonia", "COVID-19")


PHOTOS = 70


def photographs(folder: Path) -> Mapping[str, Blocks]:
    """Decode ``*_LABEL.{jpg,png}``, photographs with ImageNet's class number, all for testing, to 3 x 64 x 64."""
    files = sorted(path for path in folder.iterdir() if re.search(r"_\d{1,4}\.(?:jpg|png)$", path.name))
    if len(files) != PHOTOS:
        raise FileNotFoundError(f"{folder} has {len(files)} photographs with a label in the name, not {PHOTOS}")
    labels = [int(path.stem.rpartition("_")[2]) for path in files]
    return _image_files({"train": ([], []), "test": (files, labels)}, (3, 64, 64))


def covidx(folder: Path) -> Mapping[str, Blocks]:
    """Decode COVIDx: images in ``{train,test}``, by ``{train,test}.txt`` (patient, file, class) or class folders."""
    halves = {}
    for half in ("train", "test"):
        path = folder / f"{half}.txt"
        if not path.is_file():
            return class_folders(COVIDX, (1, 64, 64))(folder)
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        bad = [row for row in rows if len(row) < 3 or row[2] not in COVIDX or Path(row[1]).name != row[1]]
        if bad or not rows:
            raise ValueError(f"{path.name}: a line is not 'patient file class' with a class of {', '.join(COVIDX)}")
        halves[half] = ([folder / half / row[1] for row in rows], [COVIDX.index(row[2]) for row in rows])
    return _image_files(halves, (1, 64, 64))


def att_faces(folder: Path) -> Mapping[str, Blocks]:
    """Decode ``s1`` .. ``s40``, each with ``1.pgm`` .. ``10.pgm``; a hash selects three per person for testing."""
    halves: dict[str, tuple[list[Path], list[int]]] = {"train": ([], []), "test": ([], [])}
    for person in range(40):
        names = [f"s{person + 1}/{number}.pgm" for number in range(1, 11)]
        ranked = sorted(names, key=lambda name: hashlib.sha256(f"bench.data/att-faces test\0{name}".encode()).digest())
        for name in names:
            paths, labels = halves["test" if name in ranked[:3] else "train"]
            paths.append(present(folder, name))
            labels.append(person)
    return _image_files(halves, (1, 112, 92))
