"""Batches of one run's DP-SGD, given to another run's passes, which must then form the same gradients.

Code inside DP-SGD (net, loss, hooks) may use the examples of its pass, public values and earlier answers. If it uses
other private data, wherever it keeps them, a run on another private set gives other gradients for the same batch. The
compared passes are ordinary ones, so code cannot tell them from the rest.

A run on unrelated data gets the first batch and a random half of the others, and all further runs get the other half.
The rest are a run's own, so that what a pass leaves behind also differs between runs, even after a single step.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bench.privacy.dpsgd.dp_sgd import Batch, DPSGDRun, NoisySteps
from bench.privacy.dpsgd.gradient_forms import Gradients, Outer

ROOM = 2**26
"""Approximate number of bytes of the known batches that one training keeps."""
LEAST = 8  # batches that are kept whatever their size
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def kept_steps(images: Tensor, labels: Tensor, run: DPSGDRun) -> set[int]:
    """Return the steps whose batches are kept: the first and as many random others as there is room for."""
    one = sum(part[:1].numel() * part.element_size() for part in (images, labels))
    most = min(run.steps, max(LEAST, ROOM // max(1, one * run.expected_batch_size)))
    return {0, *secrets.SystemRandom().sample(range(run.steps), most)}


@dataclass(slots=True)
class KnownBatch:
    """A step's `images` (n, ...) and `labels` (n,), the seed of its masks, and a digest of the gradients of each pass.

    `key` seeds the random numbers in the digests, so that no code can find other gradients with the same digest. With
    `far`, the run on unrelated data gets the batch, otherwise all further runs do.
    """

    images: Tensor
    labels: Tensor
    masks: int
    key: int
    far: bool
    digests: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, step: int, batch: Batch) -> KnownBatch:
        """Return a copy of the `batch` of `step`, without digests."""
        images, labels = (part[batch.rows].detach().cpu().clone() for part in (batch.images, batch.labels))
        return cls(images, labels, batch.masks, secrets.randbits(62), step == 0 or secrets.choice((False, True)))

    def again(self) -> KnownBatch:
        """Return the same batch, without digests."""
        return replace(self, images=self.images.clone(), labels=self.labels.clone(), digests=[])

    def batch(self) -> Batch:
        """Return the batch as an input of DP-SGD."""
        return Batch(self.images, self.labels, torch.arange(len(self.labels)), self.masks)

    def note(self, samples: Sequence[Gradients]) -> None:
        """Add the digest of one pass's gradients."""
        hashed = hashlib.sha256()
        for number, sample in enumerate(samples):
            parts = (sample.left, sample.right) if isinstance(sample, Outer) else (sample,)
            for place, part in enumerate(parts):
                hashed.update(_mixed(part, self.key + 2 * number + place).numpy().tobytes())
        self.digests.append(hashed.hexdigest())


def _mixed(sample: Tensor, key: int) -> Tensor:
    """Return for each example the sum of its numbers' bits times random integers, modulo 2^64: int64 (n,)."""
    rows = sample.detach().cpu().reshape(len(sample), -1) if len(sample) else sample.new_zeros((0, 1)).cpu()
    factors = torch.randint(-(2**62), 2**62, rows.shape[1:], generator=torch.Generator().manual_seed(key))
    sums = [(row.long() * factors).sum() for row in rows.contiguous().view(BITS[rows.element_size()])]
    return torch.stack(sums) if sums else factors[:0]


class Noting(NoisySteps):
    """Steps that pass the gradients of each pass to `note` before they are clipped."""

    def __init__(self, note: Callable[[Sequence[Gradients]], None], *parts: Any) -> None:
        super().__init__(*parts)
        self._note = note

    def add(self, samples: Sequence[Gradients]) -> None:
        """Note the gradients, and add them."""
        self._note(samples)
        super().add(samples)
