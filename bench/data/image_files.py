"""Decode image files to arrays of one shape, all at once or on each read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from bench.core.errors import BenchError
from bench.core.lazy_libraries import Image
from bench.core.plain_files import open_plain
from bench.data.file_list import ChangedError, Half, forget_list, stamp
from bench.data.spec import Records

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".pbm", ".pgm", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
THREADS_FROM = 64
"""Smallest number of images that are decoded by threads; Pillow releases the interpreter lock."""


FORMATS = ("PNG", "JPEG", "BMP", "PPM", "TIFF", "WEBP", "GIF")
"""Formats that Pillow may read; some of its other readers start external programs."""
MOST_PIXELS = 1 << 26
"""Maximum pixels of an image, as stored or scaled to cover its shape: a GB of memory with Pillow's copies."""
LARGEST = 1 << 28
"""Maximum bytes of an image file."""
DECODING = b"2"
"""Version of :func:`decode`. Raise it when pixels change, so that stored images of users' data are decoded again."""


@contextmanager
def open_image(source: Path | IO[bytes], name: str = "") -> Iterator[Image.Image]:
    """Open an image without decoding it; BenchErrors, even from inside the block, name the file `name` or its path.

    Links to regular files are followed. Raise FileNotFoundError if there is no file.
    """
    label = name or str(source)
    try:
        with ExitStack() as stack:
            if isinstance(source, Path):
                source = stack.enter_context(open_plain(source, links=True))
                if (size := os.fstat(source.fileno()).st_size) > LARGEST:
                    raise ValueError(f"its file has {size >> 20:,} MiB; the maximum is {LARGEST >> 20}")
            opened = stack.enter_context(Image.open(source, formats=FORMATS))
            _check_pixels("it has", opened.size)
            if opened.mode == "F" or (opened.mode == "I" and opened.format not in ("PNG", "PPM")):
                raise ValueError("its values are 32-bit numbers of an unknown range: save it with 8 or 16 bits")
            yield opened
    except FileNotFoundError:
        raise
    # Pillow raises SyntaxError for a corrupt chunk, and several kinds of parsing errors.
    except (OSError, SyntaxError, ValueError, MemoryError, Image.DecompressionBombError) as error:
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        raise BenchError(f"the image {label} is damaged or not an image ({why}).") from error


def _check_pixels(what: str, size: tuple[int, int]) -> None:
    if size[0] * size[1] > MOST_PIXELS:
        raise ValueError(f"{what} {size[0]:,} x {size[1]:,} pixels; the maximum is {MOST_PIXELS:,}")


def decode(source: Path | IO[bytes], shape: tuple[int, int, int], name: str = "") -> NDArray[np.uint8]:
    """Return one image as uint8 `shape`, (channels, height, width) with 1 or 3 channels; `name` is for messages.

    Other sizes are scaled to cover `shape` and cropped at the centre; 16-bit grey is divided by 256, and transparent
    pixels are white. EXIF's orientation is not applied, as in torchvision. Raise FileNotFoundError, or BenchError
    (before decoding, if an image has more than :data:`MOST_PIXELS`).
    """
    height, width = shape[1:]
    with open_image(source, name) as opened:
        factor = max(width / opened.width, height / opened.height)
        scaled = (max(width, round(opened.width * factor)), max(height, round(opened.height * factor)))
        _check_pixels(f"scaled to cover {width} x {height} it has", scaled)
        image = _channels(opened, shape[0])
        if image.size != (width, height):
            left, top = (scaled[0] - width) // 2, (scaled[1] - height) // 2
            image = image.resize(scaled, Image.Resampling.BILINEAR).crop((left, top, left + width, top + height))
        pixels = np.asarray(image, dtype=np.uint8)
    return np.ascontiguousarray(pixels[None] if shape[0] == 1 else pixels.transpose(2, 0, 1))


def _channels(image: Image.Image, channels: int) -> Image.Image:
    """Return `image` in grey or RGB, on white; Pillow's conversion would clip 16-bit values at 255 and drop alpha."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if channels == 1 else "RGB")


def decode_many(paths: Sequence[Path], shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Return the images at `paths` as uint8 (n, channels, height, width); see :func:`decode`."""
    out = np.empty((len(paths), *shape), dtype=np.uint8)
    if len(paths) < THREADS_FROM:
        for row, path in enumerate(paths):
            out[row] = decode(path, shape)
        return out
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for row, image in enumerate(pool.map(lambda path: decode(path, shape), paths)):
            out[row] = image
    return out


def decoded_pieces(paths: Sequence[Path], shape: tuple[int, int, int], step: int = 512) -> Iterator[NDArray[np.uint8]]:
    """Yield the images at `paths` in pieces of at most `step`."""
    for start in range(0, len(paths), step):
        yield decode_many(paths[start : start + step], shape)


class FileRecords(Records):
    """Records whose images are files that are decoded on each read and must not have changed since they were listed.

    `kept` is the path, without a suffix, of the data stored for these files; see :func:`bench.data.file_list.place`.
    """

    def __init__(self, half: Half, shape: tuple[int, int, int], kept: Path) -> None:
        self.half, self.kept = half, kept
        self.labels, self.shape = np.asarray(half.labels, dtype=np.int64), shape

    def listed(self, position: int) -> ListedFile:
        """Return path, size and time of the file at `position`."""
        half = self.half
        return half.base / half.files[position], *half.stamps[position].tolist()

    def _read(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        files = [self.listed(position) for position in positions.tolist()]
        check_listed(files, self.kept)
        return decode_many([path for path, *_ in files], self.shape)


ListedFile = tuple[Path, int, int]
"""A file's path, and its size in bytes and time in ns when it was listed."""


def check_listed(files: Sequence[ListedFile], kept: Path) -> None:
    """If a file has changed since it was listed, drop the list next to `kept` and raise ChangedError."""
    for path, *then in files:
        try:
            if stamp(path) == tuple(then):
                continue
            why = "it has another size or time"
        except ChangedError as error:
            why = str(error)
        forget_list(kept)
        raise ChangedError(
            f"the image {path} has changed since its folder was listed: {why.rstrip('.')}. The list is dropped; give "
            "the same command again."
        )


def list_images(folder: Path, folders: list[Path] | None = None) -> list[str]:
    """Return the image files below `folder`, as sorted relative paths with slashes; add all folders to `folders`.

    Hidden files and folders, such as ``.ipynb_checkpoints``, are left out: they may hold copies.
    """
    found: list[str] = []
    for where, below, names in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        names = [name for name in names if not name.startswith(".")]
        if folders is not None:
            folders.append(Path(where))
        relative = Path(where).relative_to(folder)
        found += [(relative / name).as_posix() for name in names if os.path.splitext(name)[1].lower() in SUFFIXES]
    return sorted(found, key=os.fsencode)


def list_classes(folder: Path) -> list[str]:
    """Return the sorted names of the class folders in `folder`, without hidden ones."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted((e.name for e in entries if e.is_dir() and not e.name.startswith(".")), key=os.fsencode)


def list_labelled(
    folder: Path, classes: Sequence[str], folders: list[Path] | None = None
) -> tuple[list[str], NDArray[np.int64]]:
    """Return the images below `folder`/CLASS for each of the `classes`, relative to `folder`, and their labels.

    Appends every folder that it reads to `folders`.
    """
    files: list[str] = []
    if folders is not None:
        folders.append(folder)
    labels: list[int] = []
    for label, name in enumerate(classes):
        inside = list_images(folder / name, folders) if (folder / name).is_dir() else []
        files += [f"{name}/{file}" for file in inside]
        labels += [label] * len(inside)
    return files, np.asarray(labels, dtype=np.int64)
