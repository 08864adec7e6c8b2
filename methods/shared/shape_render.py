"""A public simulator of objects: soft-edged shapes over a plain background, most of them symmetric.

No constant is fitted to data. An image is a background and :data:`PARTS` shapes painted one over the other: rounded
rectangles and ellipses, possibly narrower at one end, turned, and mirrored left to right.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PARTS = 6
FIELDS = 13
"""Of a shape: centre (2), half sizes (2), angle, taper, roundness, sharpness, opacity, mirrored, colour (3)."""
COLOURS = slice(10, 13)
CHUNK = 2000  # images drawn at a time


def random_parameters(count: int, draws: torch.Generator) -> Tensor:
    """Return random parameters in [0, 1]: float (count, PARTS + 1, FIELDS), the background first."""
    return torch.rand(count, PARTS + 1, FIELDS, generator=draws)


def varied(parameters: Tensor, degree: float, draws: torch.Generator) -> Tensor:
    """Return `parameters` moved by normal steps of standard deviation `degree`, reflected at 0 and 1.

    With probability `degree` / :data:`PARTS` a shape is replaced by a random one.
    """
    moved = parameters + degree * torch.randn(parameters.shape, generator=draws)
    moved = 1 - (1 - moved.abs()).abs()
    fresh = torch.rand(*parameters.shape[:2], 1, generator=draws) < degree / PARTS
    return torch.where(fresh, torch.rand(parameters.shape, generator=draws), moved.clamp(0, 1))


def rendered(parameters: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Return the images, float (n, *shape) in [0, 1], of `parameters`; grey unless there are three channels."""
    return torch.cat([_drawn(some, shape) for some in torch.split(parameters, CHUNK)])


def _drawn(parameters: Tensor, shape: tuple[int, int, int]) -> Tensor:
    channels, height, width = shape
    y, x = (torch.linspace(-1, 1, side) for side in (height, width))
    colours = parameters[..., COLOURS] if channels == 3 else parameters[..., COLOURS.start, None]
    images = colours[:, 0, :, None, None].expand(-1, -1, height, width).clone()
    for part in range(1, PARTS + 1):
        fields = parameters[:, part].T[:10, :, None, None]
        mask = _mask(fields, y[:, None], x)
        mirrored = torch.maximum(mask, mask.flip(2))
        mask = torch.where(fields[9] < 2 / 3, mirrored, mask) * fields[8].clamp(max=0.5) * 2
        images += mask[:, None] * (colours[:, part, :, None, None] - images)
    return images.expand(-1, channels, -1, -1)


def _mask(fields: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return how much a shape covers each pixel: (n, height, width) in [0, 1]."""
    angle = (fields[4] - 0.5) * math.pi
    down, right = y - (2 * fields[0] - 1), x - (2 * fields[1] - 1)
    along, across = down * angle.cos() - right * angle.sin(), down * angle.sin() + right * angle.cos()
    tall, wide = 0.05 + 0.95 * fields[2], 0.05 + 0.95 * fields[3]
    wide = wide * (1 + (fields[5] - 0.5) * (along / tall).clamp(-1, 1))  # up to half narrower at one end
    power = 2 + 8 * fields[6]  # an ellipse to a rectangle
    radius = ((along / tall).abs() ** power + (across / wide).abs() ** power) ** (1 / power)
    return torch.sigmoid((1 - radius) * torch.minimum(tall, wide) * (8 + 56 * fields[7]))
