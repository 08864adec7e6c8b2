"""Images of random processes: teacher queries that need no data.

``strokes`` are equal shares of blobs (a softly thresholded, smoothed Gaussian field), ridges (its zero crossings,
inside a disc) and strokes (Bezier curves), in two random colours if the data have colour. On MNIST, 20,000 distil a
teacher of 99% into a student of 97%. Bright thin shapes on a dark background are the designer's prior, not learnt from
records.

``objects``, for pictures of things, are half strokes, half broad shapes (:mod:`bench.methods.shared.shape_render`), on
black if the data are grey.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from bench.methods.shared import shape_render

RandomKind = Literal["strokes", "objects"]
KINDS = "ours: methods/shared/random_images.py; objects: for data without characters"


def random_images(
    count: int, shape: tuple[int, int, int], generator: torch.Generator, kind: RandomKind = "strokes"
) -> Tensor:
    """Return `count` random images, uint8 (count, channels, height, width)."""
    if kind == "objects":
        parameters = shape_render.random_parameters(count // 2, generator)
        if shape[0] == 1:
            parameters[:, 0] = 0  # a black background
        shapes = (shape_render.rendered(parameters, shape) * 255).round().to(torch.uint8)
        images = torch.cat([random_images(count - count // 2, shape, generator), shapes])
        return images[torch.randperm(count, generator=generator)]
    channels, height, width = shape
    if count == 0:
        return torch.empty(0, *shape, dtype=torch.uint8)
    third = -(-count // 3)
    grey = torch.cat([make(third, height, width, generator) for make in (_blobs, _ridges, _strokes)])
    grey = grey[torch.randperm(len(grey), generator=generator)[:count], None]
    if channels > 1:
        ground, ink = torch.rand(2, count, channels, 1, 1, generator=generator)
        grey = ground + (ink - ground) * grey
    return (grey * 255).round().to(torch.uint8)


def _uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(count, 1, 1, generator=generator) * (high - low) + low


def _fields(count: int, height: int, width: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Return Gaussian random fields, standardised and smoothed over `low` to `high` pixels of 28."""
    scale = min(height, width) / 28
    smoothing = _uniform(count, low * scale, high * scale, generator)
    squares = torch.fft.fftfreq(height)[:, None] ** 2 + torch.fft.fftfreq(width)[None] ** 2
    response = torch.exp(-2 * math.pi**2 * squares * smoothing**2)
    white = torch.randn(count, height, width, generator=generator)
    field: Tensor = torch.fft.ifft2(torch.fft.fft2(white) * response).real
    return (field - field.mean((1, 2), keepdim=True)) / field.std((1, 2), keepdim=True).clamp_min(1e-6)


def _blobs(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    field = _fields(count, height, width, 1.0, 4.0, generator)
    return torch.sigmoid((field - _uniform(count, 0.0, 1.5, generator)) * 6)


def _ridges(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    field, scale = _fields(count, height, width, 1.5, 4.0, generator), min(height, width) / 28
    ridge = torch.exp(-((field / _uniform(count, 0.15, 0.5, generator)) ** 2))
    down = torch.arange(height) - (_uniform(count, -4, 4, generator)[:, 0] * scale + (height - 1) / 2)
    across = torch.arange(width) - (_uniform(count, -4, 4, generator)[:, 0] * scale + (width - 1) / 2)
    distance = (down[:, :, None] ** 2 + across[:, None, :] ** 2).sqrt()
    return ridge * torch.sigmoid((_uniform(count, 6, 11, generator) * scale - distance) * 2 / scale)


def _strokes(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Return one to three cubic Bezier curves per image; in blocks, because all distances would take gigabytes."""
    return torch.cat([_block(min(500, count - start), height, width, generator) for start in range(0, count, 500)])


def _block(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    scale = min(height, width) / 28
    curves = torch.randint(1, 4, (count, 1, 1), generator=generator)
    pen = _uniform(count, 0.8, 1.7, generator) * scale
    t = torch.linspace(0, 1, 24)
    weights = torch.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], 1)
    size = torch.tensor([height, width])
    image = torch.zeros(count, height, width)
    for number in range(3):
        # End points lie inside the image; control points may lie slightly outside.
        points = torch.rand(count, 4, 2, generator=generator) * 0.65 + 0.175
        points[:, 1:3] = torch.rand(count, 2, 2, generator=generator) * 1.1 - 0.05
        path = torch.einsum("tk,nkd->ntd", weights, points) * size
        down = path[:, :, 0, None] - torch.arange(height)
        across = path[:, :, 1, None] - torch.arange(width)
        nearest = (down[:, :, :, None] ** 2 + across[:, :, None, :] ** 2).amin(1).sqrt()
        image = torch.maximum(image, torch.sigmoid((pen - nearest) * 3 / scale) * (curves > number))
    return image
