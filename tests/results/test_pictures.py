"""Publishable pictures of attacks: small PNG files that contain only an image."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from bench.results.pictures import LARGEST_PICTURE, read_picture
from helpers.site import attack


def png(size: int = 8, **saved: object) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "PNG", **saved)
    return file.getvalue()


def with_text() -> bytes:
    text = PngInfo()
    text.add_text("Author", "somebody")
    return png(pnginfo=text)


FILE = "attacks/a--mi-face-1.png"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (with_text(), "more than an image"),
        (png(400), "larger than 256 KiB"),
        (png() + b"and more", "damaged"),
        (png()[:-6], "damaged"),
        (b"GIF89a", "not a PNG"),
        (b"\x89PNG\r\n\x1a\n", "damaged"),
    ],
)
def test_other_files_are_refused(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "attacks").mkdir()
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(ValueError, match=said):
        read_picture(tmp_path, attack("a", pictures=[FILE]))


def test_a_picture_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "attacks").mkdir()
    (tmp_path / FILE).write_bytes(png(dpi=(100, 100)))
    assert len(png(dpi=(100, 100))) < LARGEST_PICTURE
    assert read_picture(tmp_path, attack("a", pictures=[FILE])) == png(dpi=(100, 100))
    with pytest.raises(ValueError, match="no picture"):
        read_picture(tmp_path, attack("a", pictures=["attacks/another.png"]))
    (tmp_path / FILE).unlink()
    with pytest.raises(FileNotFoundError):
        read_picture(tmp_path, attack("a", pictures=[FILE]))
