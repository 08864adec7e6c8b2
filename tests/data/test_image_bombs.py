"""Untrusted image folders: irregular files and images that declare a huge size are refused by name."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.core.errors import BenchError
from bench.data.datasets import load
from bench.data.image_files import decode, list_images
from bench.data.image_folder import folder_spec
from helpers.data import image_folder


def announced(width: int, height: int) -> bytes:
    """Return a grey PNG that declares this size and has no pixels."""
    data = b"\x89PNG\r\n\x1a\n"
    for name, content in ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IEND", b"")):
        data += struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    return data


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sound images in two classes, in a data root of its own."""
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "root"))
    image_folder(tmp_path / "data", 5)
    return tmp_path / "data"


STRANGE: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link to an endless device": lambda path: path.symlink_to("/dev/zero"),
    "link to a pipe": lambda path: (os.mkfifo(path.parent.parent.parent / "p"), path.symlink_to("../../p")),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", ["-.png", "x.png"])
def test_what_is_no_plain_file_is_named_at_once(kind: str, name: str, folder: Path) -> None:
    """The first file gives the shape, others are met when the folder is listed."""
    STRANGE[kind](folder / "cat" / name)
    with pytest.raises(BenchError, match=rf"image .*{name}.* not a regular file"):
        load(f"folder:{folder}")


def test_links_to_plain_files_are_images(folder: Path) -> None:
    (folder / "cat" / "00.png").symlink_to("1.png")
    assert len(load(f"folder:{folder}").train) + len(load(f"folder:{folder}").test) == 11


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ((50_000, 50_000), "decompression bomb"),
        ((12_000, 12_000), "it has 12,000 x 12,000 pixels; the maximum is 67,108,864"),
        ((1, 10_000_000), "scaled to cover 8 x 8 it has 8 x 80,000,000 pixels"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_named_and_not_decoded(
    size: tuple[int, int], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda image: pytest.fail("decoded"))
    path = tmp_path / "1.png"
    path.write_bytes(announced(*size))
    with pytest.raises(BenchError, match=rf"the image .*1\.png is damaged or not an image \(.*{says}"):
        decode(path, (1, 8, 8))


def test_a_bomb_as_first_image_of_a_folder_is_named(folder: Path) -> None:
    (folder / "cat" / "0.png").write_bytes(announced(50_000, 50_000))
    with pytest.raises(BenchError, match=r"the image .*0\.png is damaged or not an image \(.*decompression bomb"):
        folder_spec(f"folder:{folder}")


def test_a_huge_file_and_a_format_that_starts_a_program_are_named(tmp_path: Path) -> None:
    path = tmp_path / "1.png"
    path.write_bytes(announced(8, 8))
    os.truncate(path, 23 << 30)  # takes no space on the disk
    with pytest.raises(BenchError, match=r"1\.png .*its file has 23,552 MiB; the maximum is 256"):
        decode(path, (1, 8, 8))
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n")
    with pytest.raises(BenchError, match=r"1\.png is damaged or not an image \(UnidentifiedImageError"):
        decode(path, (1, 8, 8))


def test_an_image_that_cannot_be_scaled_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "resize", full)
    path = tmp_path / "1.png"
    Image.new("L", (9, 9)).save(path)
    with pytest.raises(BenchError, match=r"1\.png is damaged or not an image \(MemoryError\)"):
        decode(path, (1, 8, 8))


def stored(image: Image.Image, kind: str = "PNG", **options: object) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(mode: str) -> None:
    """Else ink on a transparent ground would be black on black."""
    ink = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    ink.paste((0, 0, 0, 255), (2, 2, 5, 5))
    for channels in (1, 3):
        found = decode(stored(ink.convert(mode)), (channels, 8, 8))
        assert (found[:, 2:5, 2:5] == 0).all()
        assert (found[:, :2] == 255).all()


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_values_of_an_unknown_range_are_refused(kind: type, tmp_path: Path) -> None:
    Image.fromarray(np.arange(64).reshape(8, 8).astype(kind)).save(tmp_path / "a.tif")
    with pytest.raises(BenchError, match=r"a\.tif .*32-bit numbers of an unknown range"):
        decode(tmp_path / "a.tif", (1, 8, 8))


def test_every_format_is_listed_and_hidden_copies_are_not(tmp_path: Path) -> None:
    for name in (
        "a/1.JPG",
        "a/2.jfif",
        "a/3.gif",
        "a/.ipynb_checkpoints/1.jpg",
        "a/._1.jpg",
        "a/deep/4.png",
        "a/notes.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert list_images(tmp_path / "a") == ["1.JPG", "2.jfif", "3.gif", "deep/4.png"]


def test_sixteen_bits_of_grey_become_eight() -> None:
    values = np.array([[0, 255, 256], [65_535, 32_768, 511]], dtype=np.uint16)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "png")
    assert decode(file, (1, 2, 3), "grey").tolist() == [[[0, 0, 1], [255, 128, 1]]]
