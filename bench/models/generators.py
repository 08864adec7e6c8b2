"""Generators for the improved GAN (Salimans et al., 2016), data-free distillation and labelled images."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bench.core.errors import BenchError
from bench.models.layers import WeightNormLinear


class Generator(nn.Module):
    """Base of generators: `project` turns noise into feature maps of shape `low`, and `net` turns these into images."""

    project: nn.Module
    net: nn.Module

    def __init__(self, shape: tuple[int, int, int], noise_size: int, low: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.noise_size, self.low = shape, noise_size, low

    def noise(self, count: int, generator: torch.Generator, device: torch.device | str = "cpu") -> Tensor:
        """Draw noise (count, noise_size), uniform in [0, 1) as the published code of the improved GAN does."""
        return torch.rand(count, self.noise_size, generator=generator, device=generator.device).to(device)

    def forward(self, noise: Tensor) -> Tensor:
        """Map noise (n, noise_size) to images (n, channels, height, width) in [0, 1]."""
        images: Tensor = self.net(self.project(noise).view(-1, *self.low))
        return images.view(-1, *self.shape)


class DenseGenerator(Generator):
    """100 uniform values -> 500 -> 500 (softplus) -> pixels; ``train_mnist_feature_matching.py``, improved-gan."""

    def __init__(self, channels: int, height: int, width: int, noise_size: int = 100, units: int = 500) -> None:
        super().__init__((channels, height, width), noise_size, (noise_size,))
        first, second = nn.Linear(noise_size, units, bias=False), nn.Linear(units, units, bias=False)
        pixels = WeightNormLinear(units, channels * height * width, train_scale=True)
        for weight in (first.weight, second.weight, pixels.direction):
            nn.init.xavier_uniform_(weight)
        self.project = nn.Identity()
        self.net = nn.Sequential(
            first, ShiftedBatchNorm(units), nn.Softplus(), second, ShiftedBatchNorm(units), nn.Softplus(), pixels,
            nn.Sigmoid(),
        )  # fmt: skip


class ConvGenerator(Generator):
    """Noise -> 4x4x512 at 32x32 -> three 5x5 transposed convolutions (256, 128, channels) -> image.

    Follows ``mnist_svhn_cifar10/train_svhn_feature_matching.py`` of openai/improved-gan, but with sigmoid for tanh.
    """

    def __init__(self, channels: int, height: int, width: int, noise_size: int = 100, units: int = 512) -> None:
        """Raise BenchError if a side is not divisible by 8."""
        if height % 8 or width % 8:
            raise BenchError(f"the convolutional generator needs sides divisible by 8, not {height}x{width}.")
        super().__init__((channels, height, width), noise_size, (units, height // 8, width // 8))
        self.project = nn.Sequential(
            nn.Linear(noise_size, math.prod(self.low), bias=False), nn.BatchNorm1d(math.prod(self.low)), nn.ReLU()
        )
        self.net = nn.Sequential(
            nn.ConvTranspose2d(units, units // 2, 5, 2, 2, 1, bias=False), nn.BatchNorm2d(units // 2), nn.ReLU(),
            nn.ConvTranspose2d(units // 2, units // 4, 5, 2, 2, 1, bias=False), nn.BatchNorm2d(units // 4), nn.ReLU(),
            nn.ConvTranspose2d(units // 4, channels, 5, 2, 2, 1), nn.Sigmoid(),
        )  # fmt: skip


class ShiftedBatchNorm(nn.BatchNorm1d):
    """Batch normalisation with a trained shift and no trained scale (``g=None`` in the published code)."""

    def __init__(self, units: int) -> None:
        super().__init__(units, eps=1e-6, affine=False)
        self.shift = nn.Parameter(torch.zeros(units))

    def forward(self, values: Tensor) -> Tensor:
        """Return `values` normalised over the batch and shifted."""
        return super().forward(values) + self.shift


def generator_for(channels: int, height: int, width: int) -> DenseGenerator | ConvGenerator:
    """Return the improved GAN's generator: convolutional for colour images with sides divisible by 8, or dense."""
    if channels > 1 and height % 8 == 0 and width % 8 == 0:
        return ConvGenerator(channels, height, width)
    return DenseGenerator(channels, height, width)


class DataFreeGenerator(Generator):
    """Gaussian noise -> quarter-size maps -> two upsamplings, each with a convolution -> sigmoid pixels.

    DAFL's generator (Chen et al., ICCV 2019, arXiv:1904.01186), which DGD and DPSD build on, with a sigmoid instead of
    tanh and batch normalisation at the end. Its batch statistics come from generated images only.
    """

    def __init__(self, channels: int, height: int, width: int, noise_size: int = 100, units: int = 128) -> None:
        """Raise BenchError for `noise_size` outside 1..4096 or images below 4x4."""
        if not 1 <= noise_size <= 4096:
            raise BenchError(f"the generator takes noise of 1 to 4096 values, not {noise_size}.")
        if min(height, width) < 4:
            raise BenchError(f"the generator makes images of 4x4 pixels or more, not {height}x{width}.")
        super().__init__((channels, height, width), noise_size, (units, math.ceil(height / 4), math.ceil(width / 4)))
        self.project = nn.Linear(noise_size, math.prod(self.low))
        self.net = nn.Sequential(
            nn.BatchNorm2d(units), nn.Upsample(scale_factor=2),
            nn.Conv2d(units, units, 3, padding=1), nn.BatchNorm2d(units, eps=0.8), nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2) if not (height % 4 or width % 4) else nn.Upsample(size=(height, width)),
            nn.Conv2d(units, max(units // 2, 1), 3, padding=1), nn.BatchNorm2d(max(units // 2, 1), eps=0.8),
            nn.LeakyReLU(0.2), nn.Conv2d(max(units // 2, 1), channels, 3, padding=1), nn.Sigmoid(),
        )  # fmt: skip

    def noise(self, count: int, generator: torch.Generator, device: torch.device | str = "cpu") -> Tensor:
        """Draw noise (count, noise_size), standard normal."""
        return torch.randn(count, self.noise_size, generator=generator, device=generator.device).to(device)


class ConditionalGenerator(Generator):
    """Gaussian noise and a class -> dense layer -> quarter-size maps -> two upsamplings, each with a convolution.

    Follows ``code_balanced/models_gen.py`` of ParkLabML/DP-MERF, sigmoid and sizes included (the defaults here).
    """

    def __init__(
        self, channels: int, height: int, width: int, classes: int, noise_size: int = 5, units: int = 200,
        maps: int = 16,
    ) -> None:  # fmt: skip
        """Raise BenchError for images below 4x4."""
        if min(height, width) < 4:
            raise BenchError(f"the generator makes images of 4x4 pixels or more, not {height}x{width}.")
        super().__init__((channels, height, width), noise_size, (maps, math.ceil(height / 4), math.ceil(width / 4)))
        self.classes = classes
        pixels, between = math.prod(self.low), max(maps // 2, 1)
        self.project = nn.Sequential(
            nn.Linear(noise_size + classes, units), nn.BatchNorm1d(units), nn.ReLU(),
            nn.Linear(units, pixels), nn.BatchNorm1d(pixels), nn.ReLU(),
        )  # fmt: skip
        self.net = nn.Sequential(
            nn.UpsamplingBilinear2d((math.ceil(height / 2), math.ceil(width / 2))),
            nn.Conv2d(maps, between, 5, padding=2), nn.ReLU(),
            nn.UpsamplingBilinear2d((height, width)), nn.Conv2d(between, channels, 5, padding=2), nn.Sigmoid(),
        )  # fmt: skip

    def codes(self, labels: Tensor, generator: torch.Generator, device: torch.device | str = "cpu") -> Tensor:
        """Draw noise and return inputs (n, noise_size + classes) for images of the classes `labels`, int64 (n,)."""
        noise = torch.randn(len(labels), self.noise_size, generator=generator, device=generator.device)
        return torch.cat([noise.to(device), nn.functional.one_hot(labels.to(device), self.classes)], 1)


def generator_of(
    weights: Mapping[str, Tensor], shape: tuple[int, int, int], classes: int
) -> DataFreeGenerator | ConditionalGenerator | None:
    """Return a release's generator with its `weights`, in evaluation mode; None if they fit neither net."""
    net: DataFreeGenerator | ConditionalGenerator
    try:
        if "project.weight" in weights:
            net = DataFreeGenerator(*shape, weights["project.weight"].shape[1], weights["net.0.weight"].shape[0])
        else:
            units, inputs = weights["project.0.weight"].shape
            net = ConditionalGenerator(*shape, classes, inputs - classes, units, weights["net.1.weight"].shape[1])
        net.load_state_dict(dict(weights))
    except (KeyError, IndexError, ValueError, RuntimeError, BenchError):
        return None
    return net.eval().requires_grad_(False)
