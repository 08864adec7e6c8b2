"""Distances from images to the nearest of other images."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.interface import as_float

AT_ONCE = 2000


def nearest(images: Tensor, others: Tensor, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return the L2 distance from each of `images` (n, ...) to the nearest of `others` (m, ...), and its index.

    Both are uint8 or float in [0, 1]; the result is float32 and int64 (n,), on the CPU.
    """
    rows = as_float(images).flatten(1).to(device)
    least, place = torch.full((len(rows),), torch.inf), torch.zeros(len(rows), dtype=torch.int64)
    for start in range(0, len(others), AT_ONCE):
        part = as_float(others[start : start + AT_ONCE]).flatten(1).to(device)
        index = torch.cdist(rows, part).argmin(1)
        # cdist multiplies matrices, whose rounding gives equal images a distance above 0: recompute by differences.
        distance = torch.linalg.vector_norm(rows - part[index], dim=1).cpu()
        nearer = distance < least
        least, place = torch.where(nearer, distance, least), torch.where(nearer, index.cpu() + start, place)
    return least, place
