"""Image grids: released images as one PNG."""

from __future__ import annotations

import io
import math

import torch
from PIL import Image

GAP = 2  # pixels between images, after scaling
_BACKGROUND = 128  # grey, so that the borders of black and white images show
COLUMNS, ROWS = 10, 20
CELL = 56  # minimum width or height of an image in pixels: smaller images are enlarged by a whole factor


def image_grid(images: torch.Tensor, labels: torch.Tensor | None = None) -> bytes:
    """Return a PNG of the first images, :data:`ROWS` of :data:`COLUMNS`; equal images give equal bytes.

    `images` (n > 0, 1 or 3, height, width) are uint8, or float in [0, 1] (clipped; NaN is black). With `labels`, int64
    (n,), each class that occurs gets a row, in ascending order.
    """
    _, channels, height, width = images.shape
    factor = max(1, math.ceil(CELL / max(height, width)))
    if labels is None:
        lines = [list(range(first, min(first + COLUMNS, len(images)))) for first in range(0, len(images), COLUMNS)]
    else:
        lines = [(labels == label).nonzero().flatten()[:COLUMNS].tolist() for label in sorted(set(labels.tolist()))]
    lines = lines[:ROWS]
    high, wide = height * factor + GAP, width * factor + GAP
    page = torch.full((len(lines) * high + GAP, max(map(len, lines)) * wide + GAP, channels), _BACKGROUND)
    page = page.to(torch.uint8)
    for row, line in enumerate(lines):
        for column, index in enumerate(line):
            image = as_bytes(images[index]).permute(1, 2, 0)
            image = image.repeat_interleave(factor, 0).repeat_interleave(factor, 1)
            top, left = row * high + GAP, column * wide + GAP
            page[top : top + height * factor, left : left + width * factor] = image
    pixels = page.numpy()
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels).save(file, "PNG", optimize=False, compress_level=6)
    return file.getvalue()


def as_bytes(image: torch.Tensor) -> torch.Tensor:
    """Return `image`, uint8 or float in [0, 1], as uint8 on the CPU; entries that are not a number become 0."""
    image = image.detach().cpu()
    if image.dtype == torch.uint8:
        return image
    return (image.float().nan_to_num(0.0).clamp(0, 1) * 255).round().to(torch.uint8)
