"""Named random streams, each seeded by the SHA-256 of the run's seed and its name: a new stream changes no other.

The mechanisms' noise has a separate stream, also seeded by a random salt that no method receives. It depends on the
cell's key, because noise that two releases share would cancel in their difference.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

from bench.core.errors import BenchError
from bench.core.lazy_libraries import numpy as np
from bench.core.lazy_libraries import torch


@dataclass(frozen=True, slots=True)
class Streams:
    """Random streams of one run; `prefix` is the path of parent names."""

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
        """Return a new NumPy generator for the stream `name`."""
        return np.random.Generator(np.random.PCG64(self.integer(name)))

    def torch(self, name: str, device: str | torch.device = "cpu") -> torch.Generator:
        """Return a new torch generator on `device` for the stream `name`."""
        return torch.Generator(device=device).manual_seed(self.integer(name))

    def seed_globals(self, name: str = "global") -> None:
        """Seed torch, NumPy and Python globally and for good, so that draws by methods and libraries repeat."""
        seed = self.integer(name)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # NumPy takes 32 bits
        random.seed(seed)


def new_salt() -> str:
    """Return 32 bytes from the system's generator, in hexadecimal."""
    return os.urandom(32).hex()


def salted_digest(salt: str | None, purpose: str, seed: int, key: str) -> bytes:
    """Return a SHA-256 that reveals neither `salt` nor the digests of other purposes; None hashes no salt."""
    return hashlib.sha256(f"{purpose}|{salt or ''}|{seed}|{key}".encode()).digest()


@contextlib.contextmanager
def seeded(generator: torch.Generator, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global generators inside the block; dropout and weight initialisation accept no other generator."""
    seed = int(torch.randint(0, 2**62, (), generator=generator, device=generator.device))
    with seeded_with(seed, device):
        yield


@contextlib.contextmanager
def seeded_with(seed: int, device: torch.device | str = "cpu", *, secret: bool = False) -> Iterator[None]:
    """Seed torch's generators of the CPU and of `device`, and restore their states at the end of the block.

    On the CPU, torch's ``manual_seed`` uses 32 bits of a seed, few enough to try them all; with `secret` all of `seed`
    is used.
    """
    device = torch.device(device)
    # fork_rng and torch.manual_seed visit every kind of device, which takes 0.2 ms.
    generators = [torch.default_generator]
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # fills default_generators
        current = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[current])
    states = [generator.get_state() for generator in generators]
    for one in generators:
        one.manual_seed(seed % 2**63)
    if secret:
        generators[0].set_state(_state(seed))
    try:
        yield
    finally:
        for one, state in zip(generators, states, strict=True):
            one.set_state(state)


def _state(seed: int) -> torch.Tensor:
    """Return the state of a CPU generator, a Mersenne twister, with all its words drawn by `seed`."""
    generator = torch.Generator().manual_seed(5489)
    state = generator.get_state().numpy().view(np.uint64).copy()
    if state[4] != 1_301_868_182:  # the twister's second word after this seed
        raise BenchError("this version of torch keeps its generator's state in another form. Use torch 2.13.")
    state[3:627] = np.random.Generator(np.random.PCG64(seed)).integers(0, 2**32, 624, dtype=np.uint64)
    return torch.from_numpy(state.view(np.uint8))
