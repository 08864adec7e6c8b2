"""Discriminators and critics of class-conditional GANs, without batch statistics: images -> one score per class."""

from __future__ import annotations

import math

from torch import Tensor, nn

from bench.core.errors import BenchError


class ConvDiscriminator(nn.Module):
    """Three strided convolutions (`maps`, 2 `maps` and 4 `maps` channels) and a dense layer with one score per class.

    Follows the MNIST discriminator of alexbie98/dpgan-revisit, which takes the label as an extra input map instead.
    """

    def __init__(self, channels: int, height: int, width: int, classes: int, maps: int = 128) -> None:
        """Raise BenchError for images below 4x4."""
        if min(height, width) < 4:
            raise BenchError(f"the discriminator takes images of 4x4 pixels or more, not {height}x{width}.")
        super().__init__()
        pixels = math.ceil(height // 4 / 2) * math.ceil(width // 4 / 2)
        self.net = nn.Sequential(
            nn.Conv2d(channels, maps, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(maps, 2 * maps, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * maps, 4 * maps, 3, 2, 1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(4 * maps * pixels, classes),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Map images (n, channels, height, width) in [0, 1] to scores (n, classes)."""
        scores: Tensor = self.net(2 * images - 1)
        return scores


class DenseDiscriminator(nn.Module):
    """Two dense hidden layers. DP-SGD clips them without per-example gradients, so its steps are much faster."""

    def __init__(self, channels: int, height: int, width: int, classes: int, units: int = 256) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * height * width, units), nn.LeakyReLU(0.2),
            nn.Linear(units, units), nn.LeakyReLU(0.2), nn.Linear(units, classes),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Map images (n, channels, height, width) in [0, 1] to scores (n, classes)."""
        scores: Tensor = self.net(2 * images - 1)
        return scores
