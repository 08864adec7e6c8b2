"""A small file that announces a huge picture is named and not decoded."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.data.image_files import decode
from bench.data.image_folder import folder_spec


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """A PNG of 50,000 x 50,000 pixels in 45 bytes."""
    path = tmp_path / "data" / "a" / "1.png"
    (tmp_path / "data" / "b").mkdir(parents=True)
    path.parent.mkdir()
    data = b"\x89PNG\r\n\x1a\n"
    for name, content in ((b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0)), (b"IEND", b"")):
        data += struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    path.write_bytes(data)
    return path


def test_a_bomb_as_first_image_of_a_folder_is_named(bomb: Path) -> None:
    with pytest.raises(BenchError, match=r"the image .*1\.png is damaged or no image \(.*decompression bomb"):
        folder_spec(f"folder:{bomb.parent.parent}")


def test_a_bomb_in_a_folder_is_named(bomb: Path) -> None:
    with pytest.raises(BenchError, match=r"1\.png is damaged or no image \(DecompressionBombError"):
        decode(bomb, (1, 8, 8))
