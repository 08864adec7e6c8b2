"""Batches of one run's DP-SGD, given to another run's passes, which must then form the same gradients.

Code inside DP-SGD (net, loss, hooks) may use the examples of its pass, public values and earlier answers. If it uses
other private data, wherever it keeps them, a run on another private set gives other gradients for the same batch. The
compared passes are ordinary ones, so code cannot tell them from the rest.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench.privacy.dpsgd.dp_sgd import Batch, DPSGDRun, NoisySteps
from bench.privacy.dpsgd.example_gradients import Gradients, Outer

ROOM = 2**26
"""Bytes of known batches that one training keeps, about."""
LEAST = 4  # steps that are compared whatever the size of a batch
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def compared_steps(images: Tensor, labels: Tensor, run: DPSGDRun) -> set[int]:
    """Return the steps to compare: a random half, or as many as there is room for."""
    one = sum(part[:1].numel() * part.element_size() for part in (images, labels))
    most = max(LEAST, ROOM // max(1, one * run.expected_batch_size))
    return set(secrets.SystemRandom().sample(range(run.steps), min(-(-run.steps // 2), most)))


@dataclass(slots=True)
class KnownBatch:
    """A step's `images` (n, ...) and `labels` (n,), the seed of its masks, and a digest of the gradients of each pass.

    `key` seeds the random numbers in the digests, so that no code can find other gradients with the same digest.
    """

    images: Tensor
    labels: Tensor
    masks: int
    key: int
    digests: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, batch: Batch) -> KnownBatch:
        """Return a copy of `batch`, without digests."""
        images, labels = (part[batch.rows].detach().cpu().clone() for part in (batch.images, batch.labels))
        return cls(images, labels, batch.masks, secrets.randbits(62))

    def again(self) -> KnownBatch:
        """Return the same batch, without digests."""
        return KnownBatch(self.images.clone(), self.labels.clone(), self.masks, self.key)

    def batch(self) -> Batch:
        """Return the batch as an input of DP-SGD."""
        return Batch(self.images, self.labels, torch.arange(len(self.labels)), self.masks)

    def note(self, samples: Sequence[Gradients]) -> None:
        """Add the digest of one pass's gradients."""
        hashed = hashlib.sha256()
        for number, sample in enumerate(samples):
            for part in (
                (sample.left, sample.right) if isinstance(sample, Outer) else (_mixed(sample, self.key + number),)
            ):
                hashed.update(part.detach().cpu().contiguous().numpy().tobytes())
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
