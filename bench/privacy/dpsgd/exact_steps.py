"""DP-SGD without floating-point sums and noise: clipped gradients become whole numbers before they are added.

With floating-point noise, the last digits of a noisy sum can reveal the sum itself (Mironov, CCS 2012), and one more
record changes how the others' sum is rounded. Here each example's clipped gradient is rounded to a public grid, its
norm is checked in whole numbers, sums are exact, and the noise is normal noise rounded down to the grid
(:mod:`bench.privacy.dpsgd.exact_normal`). A step costs what one with continuous noise does.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.privacy.dpsgd.clipping import FILLED, Clipping, Flat, PerLayer, TopK
from bench.privacy.dpsgd.dp_sgd import DPSGDRun, NoisySteps
from bench.privacy.dpsgd.exact_normal import BITS, floored_normals, system_words
from bench.privacy.dpsgd.example_checks import random_images
from bench.privacy.dpsgd.gradient_forms import Gradients, Outer, picked

EXACT: tuple[type[Clipping], ...] = (Flat, PerLayer, TopK)
"""The ways of clipping whose sums are those of the examples' clipped gradients."""
LEAST = 2.0**-6
"""Smallest noise multiplier; with much smaller ones squared norms in grid steps would exceed 64 bits."""
NUMBERS = 2**22
"""Maximum number of entries that are rounded at once."""


def check_exact(run: DPSGDRun) -> None:
    """Raise :class:`BenchError` if exact noise cannot be drawn for `run`."""
    if type(run.clipping) not in EXACT:
        able = ", ".join(one.__name__ for one in EXACT)
        raise BenchError(
            f"--noise secure has no exact sums for DP-SGD with {type(run.clipping).__name__} clipping, only with "
            f"{able}. Use --noise seeded, and keep the seed secret if you need a guarantee."
        )
    if run.noise_multiplier < LEAST:
        raise BenchError(
            f"--noise secure needs a noise multiplier of at least {LEAST}, not {run.noise_multiplier:g}. Use a smaller "
            "--eps, or --noise seeded."
        )


class ExactSteps(NoisySteps):
    """Steps with exact sums and noise; the ledger's randomness draws only the batches.

    Raises :class:`BenchError` for a net with so many parameters that rounding would outweigh clipping.
    """

    words = staticmethod(system_words)
    """The source of the noise's random bits."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.sizes = [parameter.numel() for parameter in self.parameters]
        above, below = float(self.noise_multiplier).as_integer_ratio()
        self.longest = 2**BITS * below // above
        """The sensitivity in grid steps; 2^BITS is at least `noise_multiplier` times it."""
        room = self.longest - math.sqrt(sum(self.sizes)) / 2 - 1  # each entry rounds by at most half a step
        if room < self.longest / 2:
            raise BenchError(f"--noise secure cannot round gradients of {sum(self.sizes):,} parameters finely enough.")
        self.steps_per_unit = room / self.clipping.norm

    @property
    def pass_size(self) -> int:
        """Return the number of examples in every pass, as the rounding of a gradient depends on it."""
        return FILLED

    def add(self, samples: Sequence[Gradients]) -> None:
        """Add one pass's clipped, rounded gradients of each parameter to the batch's sum."""
        count = len(samples[0].left if isinstance(samples[0], Outer) else samples[0])
        for part in self.parts(samples, count):
            summed = [one.sum(0) for one in part]
            self.sums = [one + more for one, more in zip(self.sums, summed, strict=True)] if self.sums else summed
        if not self.sums:
            self.sums = [torch.zeros_like(parameter, dtype=torch.int64) for parameter in self.parameters]

    def parts(self, samples: Sequence[Gradients], count: int) -> Iterator[list[torch.Tensor]]:
        """Yield :meth:`rounded` of the first `count` examples, of at most :data:`NUMBERS` entries at a time."""
        size = max(1, NUMBERS // sum(self.sizes))
        for start in range(0, count, size):
            yield self.rounded([picked(sample, slice(start, min(start + size, count))) for sample in samples])

    def draw(self) -> Iterator[NDArray[np.float32]]:
        """Yield nothing: the noise is not drawn from the batches' randomness."""
        yield from ()

    def rounded(self, samples: Sequence[Gradients]) -> list[torch.Tensor]:
        """Return the examples' clipped gradients in grid steps: int64 (n, *shape), with norms of at most `longest`."""
        kept, factors = self.clipping.clipped(samples)
        steps = []
        for sample, factor in zip(kept, factors, strict=True):
            formed = picked(sample, slice(None)).double()
            steps.append((formed * _beside(factor.double() * self.steps_per_unit, formed)).round())
        # Floats decide only that the whole numbers fit their 64 bits.
        fits = torch.stack([one.square().flatten(1).sum(1) for one in steps]).sum(0) < 2 * self.longest**2
        whole = [one.where(_beside(fits, one), 0.0).long() for one in steps]
        squares = torch.stack([one.square().flatten(1).sum(1) for one in whole]).sum(0)
        return [one * _beside((squares <= self.longest**2).long(), one) for one in whole]

    def step(self) -> None:
        noise = torch.split(torch.from_numpy(floored_normals(sum(self.sizes), BITS, self.words)), self.sizes)
        self.take([
            ((total + drawn.to(total.device).view_as(total)).double() / self.steps_per_unit).to(parameter.dtype)
            for total, drawn, parameter in zip(self.sums, noise, self.parameters, strict=True)
        ])  # fmt: skip

    def check(self, gradients_of: Callable[[torch.Tensor], Sequence[Gradients]], images: torch.Tensor) -> None:
        """Raise :class:`BenchError` unless an example has the same gradient at other places, among other examples."""
        device = self.parameters[0].device
        drawn = random_images(images, 2 * FILLED, torch.Generator().manual_seed(secrets.randbits(63))).to(device)
        some, others = drawn[:FILLED], drawn[FILLED:]
        few = 1 + secrets.randbelow(FILLED - 1)

        def steps_of(examples: torch.Tensor, count: int) -> torch.Tensor:
            found = self.parts(gradients_of(examples), count)
            return torch.cat([torch.cat([one.flatten(1) for one in part], 1) for part in found]).cpu()

        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            alone = steps_of(some, FILLED)
            moved = steps_of(some.roll(1, 0), FILLED).roll(-1, 0)  # as if a record came before them
            beside = steps_of(torch.cat([some[:few], others[few:]]), few)
            padded = steps_of(torch.cat([some[:few], torch.zeros_like(some[few:])]), few)
        if not (torch.equal(alone, moved) and torch.equal(alone[:few], beside) and torch.equal(beside, padded)):
            raise BenchError(
                "--noise secure: an example's gradient depends on the other examples in its pass, perhaps only in its "
                "last digits, or on random numbers, as with dropout. So one more record would change the others' "
                "gradients. Choose another net, --device cpu or --noise seeded."
            )


def _beside(values: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
    """Return `values` (n,) in a shape that broadcasts against `sample` (n, ...)."""
    return values.view(-1, *[1] * (sample.dim() - 1))
