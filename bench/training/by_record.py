"""Values of single records that do not change by a bit with the other records in the batch.

Libraries choose a kernel by the shape of a batch, and each kernel rounds differently. Where a nearest candidate, an
arg max, a threshold or an equality follows, the absence of one record could then change the answers of others, by more
than the mechanism is charged for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from bench.training.processes import one_thread

STEPS = 2**16
"""Steps per grey level of the grid on which :func:`nearest` puts its points."""


class Rows(Protocol):
    """Rows that are read batch by batch: a tensor, or images that stay in their file."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice) -> Tensor: ...


def in_equal_batches(function: Callable[[Tensor], Tensor], rows: Rows, size: int) -> Iterator[Tensor]:
    """Yield ``function(batch)`` (at most `size`, ...) for one batch of `rows` (n, ...) after the other.

    `function` maps each row by itself. It always sees `size` rows, the last batch filled up with zeros, and runs on one
    thread of a CPU, so that kernels and the order of sums depend on `size` alone. No rows are one batch of none.
    """
    for first in range(0, max(len(rows), 1), size):
        batch = rows[first : first + size]
        missing = size - len(batch)
        full = torch.cat([batch, batch.new_zeros(missing, *batch.shape[1:])]) if missing else batch
        with one_thread():
            found = function(full)
        yield found[: len(batch)]


def nearest(images: Tensor, points: Tensor, size: int = 1000) -> Tensor:
    """Return the index of the nearest of `points` (k, d), in [0, 1], for each of `images`, uint8 (n, d): int64 (n,).

    k is at least 1; of equally near points the first counts. Points are rounded to a grid of :data:`STEPS` per grey
    level and pixels are whole numbers, so that their product is exact in float64 for up to 2^21 pixels: neither the
    order of additions nor another image changes it.
    """
    grid = (points.double() * 255 * STEPS).round() / STEPS
    norms = grid.square().sum(1)  # rounded, but public and equal for all images
    return torch.cat([(norms - 2 * some.double() @ grid.T).argmin(1) for some in torch.split(images, size)])
