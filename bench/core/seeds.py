"""Named random streams: each is derived from the run's seed and its own name, so adding one moves no other.

The seed of a stream is SHA-256 over the run's seed and the stream's name; nothing else goes in. The noise of privacy
mechanisms has a stream of its own whose name holds the cell's key, so that no two cells ever add the same noise: two
releases with common noise could be subtracted from each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Streams:
    """The random streams of one run. `seed` is the run's seed, `prefix` the path of names above this one."""

    seed: int
    prefix: str = ""

    def child(self, name: str) -> Streams:
        """Return the streams below `name`."""
        return Streams(self.seed, f"{self.prefix}{name}/")

    def integer(self, name: str) -> int:
        """Return the 63-bit seed of the stream `name`."""
        text = f"{self.seed}|{self.prefix}{name}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1

    def numpy(self, name: str) -> np.random.Generator:
        """Return a fresh NumPy generator at the start of the stream `name`."""
        return np.random.Generator(np.random.PCG64(self.integer(name)))

    def torch(self, name: str, device: str | torch.device = "cpu") -> torch.Generator:
        """Return a fresh torch generator at the start of the stream `name`, living on `device`."""
        import torch

        return torch.Generator(device=device).manual_seed(self.integer(name))

    def seed_globals(self, name: str = "global") -> None:
        """Seed the global generators of torch, NumPy and Python from the stream `name`, and leave them so.

        What a method draws from them, or a library that it calls, is then repeated with the run.
        """
        import torch

        seed = self.integer(name)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # NumPy takes 32 bits
        random.seed(seed)


@contextlib.contextmanager
def seeded(generator: torch.Generator, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global generators from `generator` for the block and put them back after it.

    Layers such as dropout and the starts of weights draw from the global ones and take no other.
    """
    import torch

    device = torch.device(device)
    seed = int(torch.randint(0, 2**62, (), generator=generator, device=generator.device))
    devices = (
        [device.index if device.index is not None else torch.cuda.current_device()] if device.type == "cuda" else []
    )
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
