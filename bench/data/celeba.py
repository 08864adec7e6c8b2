"""CelebA: its files, and the two data sets that papers derive from it.

``celeba-g`` has all images, with the attribute Male as class; ``celeba-h`` those with exactly one of Black_Hair,
Blond_Hair, Brown_Hair, in this order. In the owner's partition, 0 is for training, 2 for testing, and 1 is unused.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.fetch_progress import Progress
from bench.core.lazy_libraries import torchvision
from bench.data.image_files import decode
from bench.data.loaders import chosen_view
from bench.storage.array_store import Blocks, storage_errors
from bench.storage.download import HandRoute, RouteError, file_digest

_NAMES = """
5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose Black_Hair Blond_Hair
Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup High_Cheekbones
Male Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline
Rosy_Cheeks Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick
Wearing_Necklace Wearing_Necktie Young
"""
ATTRIBUTES = _NAMES.split()
HAIR = ("Black_Hair", "Blond_Hair", "Brown_Hair")
SHAPE = (3, 64, 64)
FILES = ("img_align_celeba.zip", "list_attr_celeba.txt", "list_eval_partition.txt")
PARTS = {"train": 0, "test": 2}
_STEP = 512


@dataclass(frozen=True)
class DriveRoute(HandRoute):
    """The owner's shared drive, accessed by torchvision's code, which needs the package gdown."""

    by_hand: str = f"download {', '.join(FILES)} (aligned and cropped images) from the owner's page on CelebA"
    label: str = "its owner's shared drive"

    def fetch(self, into: Path, progress: Progress) -> None:
        """Download the three files; see :class:`bench.storage.download.Route`."""
        if importlib.util.find_spec("gdown") is None:
            raise RouteError("needs the package gdown: pip install gdown")
        with storage_errors(into):
            into.mkdir(parents=True, exist_ok=True)
        for file_id, md5, name in torchvision.datasets.CelebA.file_list:
            target = into / name
            if name not in FILES or (target.exists() and file_digest(target, "md5") == md5):
                continue
            progress(f"downloading {name}", 0, None)
            try:
                torchvision.datasets.utils.download_file_from_google_drive(file_id, str(into), name, md5)
            except Exception as error:  # gdown and requests have their own types for quota and network errors
                raise RouteError(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}") from error


def decode_celeba(folder: Path) -> Mapping[str, Blocks]:
    """Return images uint8 (n, 3, 64, 64) and attributes uint8 (n, 40) of 0 and 1, for train and test.

    Images (178 x 218 pixels, in the archive or unpacked) are scaled to a width of 64 and cropped at the centre.
    """
    names, attributes = _attributes(folder / FILES[1])
    parts = _partition(folder / FILES[2], names)
    out: dict[str, Blocks] = {}
    for half, number in PARTS.items():
        chosen = np.flatnonzero(parts == number)
        files = [names[i] for i in chosen]
        out[f"{half}_images"] = Blocks((len(files), *SHAPE), "uint8", _pieces(folder, files))
        out[f"{half}_attributes"] = Blocks.of(attributes[chosen])
    if not (folder / "img_align_celeba").is_dir() and not (folder / FILES[0]).is_file():
        raise FileNotFoundError(f"{folder} has neither {FILES[0]} nor a folder img_align_celeba")
    return out


def _attributes(path: Path) -> tuple[list[str], NDArray[np.uint8]]:
    """Read a count, a line with 40 names, then a file name and 40 values of -1 or 1 per line."""
    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    if len(lines) < 3 or lines[1].split() != ATTRIBUTES or int(lines[0]) != len(lines) - 2:
        raise ValueError(f"{path.name} is truncated or not a list of CelebA's 40 attributes")
    rows = [line.split() for line in lines[2:]]
    if any(len(row) != 41 for row in rows):
        raise ValueError(f"{path.name}: a line does not have 40 attributes")
    values = np.array([row[1:] for row in rows], dtype=np.int8)
    return [Path(row[0]).name for row in rows], (values > 0).astype(np.uint8)


def _partition(path: Path, names: list[str]) -> NDArray[np.int64]:
    """Read a file name and 0, 1 or 2 per line."""
    rows = [line.split() for line in path.read_text(encoding="ascii", errors="replace").splitlines() if line.strip()]
    if [row[0] for row in rows] != names:
        raise ValueError(f"{path.name} does not list the same images as {FILES[1]}")
    return np.array([int(row[1]) for row in rows], dtype=np.int64)


def _pieces(folder: Path, files: list[str]) -> Iterator[NDArray[Any]]:
    inside = folder / "img_align_celeba"
    packed = None if inside.is_dir() else zipfile.ZipFile(folder / FILES[0])
    try:
        for start in range(0, len(files), _STEP):
            step = files[start : start + _STEP]
            piece = np.empty((len(step), *SHAPE), dtype=np.uint8)
            for row, name in enumerate(step):
                if packed is None:
                    piece[row] = decode(inside / name, SHAPE)
                else:
                    with packed.open(f"img_align_celeba/{name}") as stream:
                        piece[row] = decode(stream, SHAPE, name)
            yield piece
    except zipfile.BadZipFile as error:
        raise ValueError(f"{FILES[0]} is damaged or truncated ({error})") from error
    finally:
        if packed is not None:
            packed.close()


def _gender(attributes: NDArray[np.uint8]) -> tuple[None, NDArray[np.int64]]:
    return None, attributes[:, ATTRIBUTES.index("Male")].astype(np.int64)


def _hair(attributes: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    colours = attributes[:, [ATTRIBUTES.index(name) for name in HAIR]]
    index = np.flatnonzero(colours.sum(axis=1) == 1).astype(np.int64)
    return index, colours[index].argmax(axis=1).astype(np.int64)


VIEWS = {"celeba-g": chosen_view(_gender, "attributes"), "celeba-h": chosen_view(_hair, "attributes")}
