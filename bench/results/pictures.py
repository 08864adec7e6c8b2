"""Pictures of attacks that may be published: small PNG files that contain only an image."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from bench.core.plain_files import read_plain
from bench.results.attack_record import AttackRecord

LARGEST_PICTURE = 256 << 10
"""Limit on the bytes of a published picture."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNKS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"gAMA", b"sRGB", b"pHYs", b"IDAT", b"IEND"})


def picture_file(attack: AttackRecord) -> str:
    """Return the file of the attack's picture below its run directory, or "" if it has none."""
    file = f"attacks/{attack.key}.png"
    return file if file in attack.pictures and PurePosixPath(attack.key).name == attack.key else ""


def read_picture(home: Path, attack: AttackRecord) -> bytes:
    """Return the attack's picture in the run directory `home`.

    Raises OSError if it cannot be read, ValueError with the reason if it may not be published.
    """
    file = picture_file(attack)
    if not file:
        raise ValueError("the record names no picture")
    data = read_plain(home / file, LARGEST_PICTURE)
    if not data.startswith(SIGNATURE):
        raise ValueError("not a PNG file")
    place, names = len(SIGNATURE), list[bytes]()
    while place < len(data) and names[-1:] != [b"IEND"]:
        names.append(data[place + 4 : place + 8])
        place += 12 + int.from_bytes(data[place : place + 4], "big")  # length, name, content, checksum
    if names[-1:] != [b"IEND"] or place != len(data):
        raise ValueError("a damaged PNG file")
    if strange := set(names) - _CHUNKS:
        raise ValueError(f"it holds more than an image ({sorted(strange)[0].decode('latin-1')})")
    return data
