"""Per-record values that are bit-identical whatever other records are in the batch.

Libraries choose a kernel by the shape of a batch, and each kernel rounds differently. If the values feed a
nearest-candidate search, arg max, threshold or equality test, removing one record could change the answers of others,
by more than the mechanism is charged for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from bench.core.errors import BenchError
from bench.core.fixed_products import REPRODUCIBLE, SETTING
from bench.training.processes import one_thread

STEPS = 2**16
"""Steps per grey level of the grid to which :func:`nearest` rounds its points."""


class Rows(Protocol):
    """Rows that are read batch by batch: a tensor, or images that stay in their file."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice) -> Tensor: ...


def in_equal_batches(function: Callable[[Tensor], Tensor], rows: Rows, size: int) -> Iterator[Tensor]:
    """Yield ``function(batch)`` (at most `size`, ...) for each batch of `rows` (n, ...) in turn.

    `function` maps each row independently. It always gets `size` rows, the last batch padded with zeros, on one CPU
    thread, so that kernels and summation order depend only on `size`. Without rows, there is one empty batch. Raise
    :class:`bench.core.errors.BenchError` if this process multiplies rows differently at different positions.
    """
    require_fixed_positions()
    for first in range(0, max(len(rows), 1), size):
        batch = rows[first : first + size]
        missing = size - len(batch)
        full = torch.cat([batch, batch.new_zeros(missing, *batch.shape[1:])]) if missing else batch
        with one_thread():
            found = function(full)
        yield found[: len(batch)]


@cache
def require_fixed_positions() -> None:
    """Raise BenchError if a row of a CPU product depends on its position in the batch; tested once per process."""
    drawn = torch.Generator().manual_seed(0)
    with one_thread():
        for dtype in (torch.float32, torch.float64):
            for inner in (7, 25, 250):  # rows start at addresses of every alignment
                rows, weight = (torch.randn(n, inner, generator=drawn, dtype=dtype) for n in (100, 10))
                if not torch.equal((rows.roll(1, 0) @ weight.T).roll(-1, 0), rows @ weight.T):
                    raise BenchError(
                        "matrix products in this process depend on the positions of the rows, so that one record's "
                        f"absence would change the values of others. Import bench before torch multiplies, or set "
                        f"{SETTING}={REPRODUCIBLE} before Python starts."
                    )


def nearest(images: Tensor, points: Tensor, size: int = 1000) -> Tensor:
    """Return the index of the nearest of `points` (k, d), in [0, 1], for each of `images`, uint8 (n, d): int64 (n,).

    k is at least 1; ties go to the first point. Points are rounded to a grid of :data:`STEPS` per grey level and pixels
    are whole numbers, so their product is exact in float64 for up to 2^21 pixels: neither the summation order nor
    another image changes it.
    """
    grid = (points.double() * 255 * STEPS).round() / STEPS
    norms = grid.square().sum(1)  # rounded, but public and the same for all images
    return torch.cat([(norms - 2 * some.double() @ grid.T).argmin(1) for some in torch.split(images, size)])
