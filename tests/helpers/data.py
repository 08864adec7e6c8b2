"""Shared by tests of data: tiny data sets in the formats of the real ones."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.data import datasets
from bench.data import decoders as formats
from bench.data.spec import DatasetSpec, LoadRequest
from bench.storage.array_store import Blocks


def quiet(what: str, done: int, total: int | None) -> None:
    return None


def noise(*shape: int, high: int = 256) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, high, shape).astype(np.uint8)


def request(spec: DatasetSpec, root: Path, fetch: bool = True) -> LoadRequest:
    return LoadRequest(spec, root, fetch, quiet)


def idx_bytes(array: np.ndarray[Any, Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, train: int = 20, test: int = 10) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = [noise(train, 28, 28), noise(train, high=10), noise(test, 28, 28), noise(test, high=10)]
    for name, array in zip(formats.IDX, arrays, strict=True):
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
    return dict(zip(formats.IDX, arrays, strict=True))


def tiny(loader: Any, **changes: Any) -> DatasetSpec:
    facts: dict[str, Any] = {
        "name": "tiny", "classes": 10, "shape": (1, 28, 28), "class_names": tuple("0123456789"),
        "train_records": 20, "test_records": 10, "loader": loader, "split_rule": "official",
    }  # fmt: skip
    return DatasetSpec(**{**facts, **changes})


def by_hand(name: str) -> DatasetSpec:
    """A registered data set without its record counts, so that a few records suffice."""
    return replace(datasets.DATASETS[name], train_records=None, test_records=None)


def whole(blocks: Blocks) -> np.ndarray[Any, Any]:
    return np.concatenate(list(blocks.pieces))


def put_image(path: Path, value: int = 100, size: tuple[int, int] = (80, 70), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, value, value)).save(path)


def image_folder(path: Path, count: int = 60) -> str:
    """Write an image folder of random images, `count` for each of two labels; return its name as a data set."""
    from PIL import Image

    generator = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (path / label).mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(0, 256, (12, 12), dtype=np.uint8)
            Image.fromarray(pixels).save(path / label / f"{number}.png")
    return f"folder:{path}"
