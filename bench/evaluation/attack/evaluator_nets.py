"""The evaluators of reconstructions: three kinds of nets that view images differently, and their training.

All take float images in [0, 1], scale them down, and remove each image's brightness and contrast, which differ more
between photos of one person than between persons. They have the feature interface of timm's models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.seeds import seeded
from bench.interface import Facts, FitSettings, as_float, fit
from bench.models.feature_net import FeatureNet
from bench.storage.checkpoint import Checkpoint
from bench.training.loop import Augment

FEW = 50  # records per class below which evaluators use small images and strong augmentation, as for faces
_SMALL, _LARGE = 37, 64  # longest side in pixels for few and for many records
_COPIES = 6_000  # augmented images for the discriminant
_DIRECTIONS = 120


class Scaled(nn.Module):
    """Scale images down to `size` (height, width) by averaging areas; smaller ones are unchanged."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Return the images at the evaluator's size, area-averaged if they shrink."""
        return images if images.shape[-2:] == self.size else functional.interpolate(images, self.size, mode="area")


class Contrast(nn.Module):
    """Give each image mean 0 and deviation 1; flat ones stay flat."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the images standardised one by one."""
        mean = images.mean((1, 2, 3), keepdim=True)
        return (images - mean) / images.std((1, 2, 3), keepdim=True).clamp_min(0.05)


class Gradients(nn.Module):
    """Normalised histograms of gradient directions in cells of 4 x 4 pixels (Dalal, Triggs 2005, without blocks)."""

    def __init__(self, bins: int = 8, cell: int = 4) -> None:
        super().__init__()
        self.bins, self.cell = bins, cell

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, channels, height, width) to (n, bins, height // cell, width // cell)."""
        grey = functional.pad(images.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
        across = grey[..., 1:-1, 2:] - grey[..., 1:-1, :-2]
        down = grey[..., 2:, 1:-1] - grey[..., :-2, 1:-1]
        angles = [2 * math.pi * step / self.bins for step in range(self.bins)]
        parts = torch.cat([functional.relu(across * math.cos(a) + down * math.sin(a)) for a in angles], 1).square()
        strength = parts.sum(1, keepdim=True).add(1e-8).sqrt()
        cells = functional.avg_pool2d(parts / (strength + 1e-3), self.cell, ceil_mode=True)
        return cells / (cells.square().sum(1, keepdim=True).add(1e-8).sqrt() + 0.02)


def _width(layers: nn.Module, facts: Facts) -> int:
    with torch.no_grad():
        return int(layers(torch.zeros(1, *facts.shape)).numel())


def _dense(layers: list[nn.Module], widths: tuple[int, ...], facts: Facts, dropout: float) -> FeatureNet:
    layers = [*layers, nn.Flatten()]
    width = _width(nn.Sequential(*layers), facts)
    for units in widths:
        layers += [nn.Dropout(dropout), nn.Linear(width, units), nn.ReLU()]
        width = units
    return FeatureNet(nn.Sequential(*layers), nn.Linear(width, facts.classes), width, nn.Dropout(dropout))


def _convolutional(facts: Facts, size: tuple[int, int]) -> FeatureNet:
    """Three convolutions, two of stride 2: sensitive to parts and their positions."""
    layers: list[nn.Module] = [Scaled(size), Contrast()]
    channels = facts.shape[0]
    for width, kernel, stride in ((24, 5, 2 if min(size) >= 16 else 1), (48, 3, 2), (48, 3, 1)):
        layers += [nn.Conv2d(channels, width, kernel, stride, kernel // 2), nn.ReLU()]
        channels = width
    return _dense([*layers, nn.MaxPool2d(2, ceil_mode=True)], (128,), facts, 0.3)


def _gradients(facts: Facts, size: tuple[int, int]) -> FeatureNet:
    """A dense layer on histograms of gradients: sensitive to directions of edges, not to brightness."""
    return _dense([Scaled(size), Gradients(cell=4 if min(size) >= 16 else 2)], (256,), facts, 0.3)


def _deep_gradients(facts: Facts, size: tuple[int, int]) -> FeatureNet:
    layers = [Scaled(size), Gradients(cell=2), nn.Conv2d(8, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return _dense(layers, (128,), facts, 0.2)


def _wide(facts: Facts, size: tuple[int, int]) -> FeatureNet:
    stride = 2 if min(size) >= 16 else 1
    layers: list[nn.Module] = [
        Scaled(size), Contrast(),
        nn.Conv2d(facts.shape[0], 32, 7, stride, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, stride if min(size) > 32 else 1, 2), nn.BatchNorm2d(64), nn.ReLU(),
    ]  # fmt: skip
    return _dense(layers, (), facts, 0.2)


def _discriminant(facts: Facts, size: tuple[int, int]) -> FeatureNet:
    """Fisher's linear discriminant on principal components of the pixels; its weights are computed, not trained."""
    body = nn.Sequential(Scaled(size), Contrast(), nn.Flatten())
    pixels = _width(body, facts)
    directions = min(_DIRECTIONS, pixels)
    body.append(nn.Linear(pixels, directions))
    return FeatureNet(body, nn.Linear(directions, facts.classes), directions, None)


KINDS: dict[str, Callable[[Facts, tuple[int, int]], FeatureNet]] = {
    "convolutional": _convolutional,
    "gradients": _gradients,
    "deep gradients": _deep_gradients,
    "wide": _wide,
    "discriminant": _discriminant,
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """One evaluator: `kind` of `KINDS`, longest side in pixels, training (`settings` None for the discriminant)."""

    kind: str
    side: int
    settings: FitSettings | None
    augmentation: str

    def size(self, facts: Facts) -> tuple[int, int]:
        """Return the height and width at which this evaluator sees images of `facts`."""
        height, width = facts.shape[1:]
        factor = min(1.0, self.side / max(height, width))
        return max(1, round(height * factor)), max(1, round(width * factor))

    def build(self, facts: Facts) -> FeatureNet:
        """Return the untrained net for data of `facts`."""
        return KINDS[self.kind](facts, self.size(facts))

    def shorter(self) -> Recipe:
        """Return the recipe of the tiny preset, with a tenth of the steps."""
        settings = self.settings
        if settings is None or settings.steps is None:
            return self
        return replace(self, settings=replace(settings, steps=settings.steps // 10))

    def train(
        self,
        images: Tensor,
        labels: Tensor,
        facts: Facts,
        generator: torch.Generator,
        device: torch.device,
        checkpoint: Checkpoint | None = None,
    ) -> FeatureNet:
        """Return the net trained on `images` with `labels`."""
        with seeded(generator):
            net = self.build(facts)
        scale, augment = Scaled(self.size(facts)), AUGMENTATIONS[self.augmentation]
        small = torch.cat([scale(as_float(images[first : first + 500])) for first in range(0, len(images), 500)])
        if self.settings is None:
            return _solve(net, small, labels, facts.classes, augment, generator).to(device).eval()
        fit(net, small, labels, self.settings, generator, device=device, augment=augment, checkpoint=checkpoint)
        return net


def recipes(facts: Facts, records: int) -> tuple[Recipe, Recipe, Recipe]:
    """Return the three evaluators for `records` training images, chosen by the number per class."""
    if records < FEW * facts.classes:
        settings = FitSettings(steps=600, batch_size=64, optimizer="adam", lr=2e-3, weight_decay=1e-4)
        views = "turned, not mirrored" if facts.characters else "turned"
        return (
            Recipe("convolutional", _SMALL, settings, views),
            Recipe("gradients", _SMALL, settings, views),
            Recipe("discriminant", _SMALL, None, views),
        )
    settings = FitSettings(steps=1_000, batch_size=64, optimizer="adam", lr=2e-3, weight_decay=1e-5, shift=1)
    return (
        Recipe("convolutional", _LARGE, replace(settings, steps=1_500, lr=1.5e-3), "slanted"),
        Recipe("deep gradients", _LARGE, settings, "slanted"),
        Recipe("wide", _LARGE, settings, "slanted"),
    )


def turned(images: Tensor, generator: torch.Generator, *, mirrored: bool = True) -> Tensor:
    """Return `images` rotated by up to 10 degrees, scaled by 7 %, shifted by 3.5 %, half of them `mirrored`."""
    draw = _Draws(len(images), generator, images.device)
    angle, scale = draw(math.radians(10)), 1 + draw(0.07)
    mirror = torch.where(draw(1.0) < 0, -1.0, 1.0) if mirrored else torch.ones_like(scale)
    across, down = torch.cos(angle) * scale, torch.sin(angle) * scale
    moved = _warped(images, [across * mirror, -down, draw(0.07), down * mirror, across, draw(0.07)])
    contrast, brightness = (1 + draw(0.25)).view(-1, 1, 1, 1), draw(0.12).view(-1, 1, 1, 1)
    return ((moved - 0.5) * contrast + 0.5 + brightness).clamp(0, 1)


def slanted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return `images` turned by up to 0.12 (7 degrees), scaled by 7 %, sheared by 0.1, shifted by 3 %; not mirrored."""
    draw = _Draws(len(images), generator, images.device)
    angle, scale, slant = draw(0.12), 1 + draw(0.07), draw(0.1)
    across, down = torch.cos(angle) * scale, torch.sin(angle) * scale
    return _warped(images, [across, slant - down, draw(0.06), down, across, draw(0.06)])


AUGMENTATIONS: dict[str, Augment] = {
    "turned": turned, "turned, not mirrored": partial(turned, mirrored=False), "slanted": slanted,
}  # fmt: skip


class _Draws:
    def __init__(self, count: int, generator: torch.Generator, device: torch.device) -> None:
        self.count, self.generator, self.device = count, generator, device

    def __call__(self, most: float) -> Tensor:
        values = torch.rand(self.count, generator=self.generator, device=self.generator.device)
        return (values * 2 - 1).to(self.device) * most


def _warped(images: Tensor, matrix: list[Tensor]) -> Tensor:
    """Return `images` with each pixel sampled where the affine `matrix` (6 entries, row-major) maps it."""
    proportion = images.shape[2] / images.shape[3]  # grid coordinates span [-1, 1] on both sides
    a, b, c, d, e, f = matrix
    rows = torch.stack([a, b * proportion, c, d / proportion, e, f], 1).view(-1, 2, 3)
    grid = functional.affine_grid(rows, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


@torch.no_grad()
def _solve(
    net: FeatureNet, images: Tensor, labels: Tensor, classes: int, augment: Augment, generator: torch.Generator
) -> FeatureNet:
    """Compute the discriminant's weights from augmented copies; features have unit covariance within classes."""
    copies = max(1, _COPIES // len(images))
    labels = labels.repeat(copies)
    pixels = torch.cat([net.body[:3](augment(images, generator)) for _ in range(copies)]).double()
    linear, head = net.body[3], net.head
    assert isinstance(linear, nn.Linear)
    assert isinstance(head, nn.Linear)
    middle = pixels.mean(0)
    values, vectors = torch.linalg.eigh((pixels - middle).T @ (pixels - middle))
    directions = vectors[:, values.argsort(descending=True)[: linear.out_features]]
    scores = (pixels - middle) @ directions
    sums = torch.zeros(classes, scores.shape[1], dtype=torch.float64).index_add_(0, labels, scores)
    means = sums / labels.bincount(minlength=classes).clamp_min(1)[:, None]
    within = (scores - means[labels]).T @ (scores - means[labels]) / len(labels)
    # Add a hundredth of the mean variance, to limit directions with hardly any variance within classes.
    spread, axes = torch.linalg.eigh(within + 0.01 * within.diagonal().mean() * torch.eye(len(within)).double())
    whiten = axes / spread.sqrt()
    centres = means @ whiten
    linear.weight.copy_((directions @ whiten).T)
    assert linear.bias is not None
    linear.bias.copy_(-(middle @ directions @ whiten))
    head.weight.copy_(centres)
    assert head.bias is not None
    head.bias.copy_(-centres.square().sum(1) / 2)
    return net
