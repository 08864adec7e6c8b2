"""Order records by a hash of their index; every split and partition is based on this order."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def keys(name: str, count: int, purpose: str) -> NDArray[np.uint64]:
    """Return a 64-bit key for each index 0..`count`-1 of the data set `name` and a `purpose`, independent of `count`.

    One SHA-256 of (name, purpose, i // 4), read big-endian on every platform, gives four keys to save time.
    """
    prefix = hashlib.sha256(f"bench.data/1\0{name}\0{purpose}\0".encode())

    def block(number: int) -> bytes:
        copy = prefix.copy()
        copy.update(number.to_bytes(8, "big"))
        return copy.digest()

    raw = b"".join(map(block, range((count + 3) // 4)))
    return np.frombuffer(raw, dtype=">u8")[:count].astype(np.uint64)


def ranks(name: str, count: int, purpose: str) -> NDArray[np.int64]:
    """Return the indices 0..`count`-1 ordered by their :func:`keys`, int64 (count,)."""
    return np.argsort(keys(name, count, purpose), kind="stable").astype(np.int64)
