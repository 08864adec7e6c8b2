"""A wide residual net (``noise_wrn``) for images of 32 pixels, pretrained on images of random processes alone.

WRN-16-4 of Zagoruyko and Komodakis (arXiv:1605.07146), the net of DP-RandP (arXiv:2306.06076). Its features are means
over the quarters of the image and of its mirror image, after the second and third group of blocks. :class:`Whitening`
decorrelates them by statistics of random images, because noise that is equal in every direction then harms predictions
least. :mod:`bench.training.noise_pretraining` makes the weights, without any record of any data set. Quarters,
whitening and mirror images were chosen by accuracy on CIFAR-10's public records: docs/transfer.md.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from timm.models import register_model
from torch import Tensor, nn
from torch.nn import functional

from bench.models.feature_net import TwoPartNet
from bench.models.registration import check_rgb, rgb_cfgs

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
"""Public constants, for RGB values in [0, 1]."""
SIDE = 32
WIDTHS = (64, 128, 256)
CHANNELS = sum(WIDTHS[1:])
HAAR = ((1, 1, 1, 1), (1, -1, 1, -1), (1, 1, -1, -1), (1, -1, -1, 1))
"""Signs of the four quarters: their sum, and their horizontal, vertical and diagonal differences."""

default_cfgs = rgb_cfgs("noise_wrn", SIDE, mean=MEAN, std=STD, first_conv="stem", classifier="fc")


class Block(nn.Module):
    """Two convolutions of 3 x 3, each after normalisation and ReLU, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        normed = self.norm1(x).relu()
        past = x if self.shortcut is None else self.shortcut(normed)
        made: Tensor = past + self.conv2(self.norm2(self.conv1(normed)).relu())
        return made


class Whitening(nn.Module):
    """Takes the Haar transform of quarters, then centres and maps each of its four parts by public statistics."""

    mean: Tensor
    maps: Tensor

    def __init__(self) -> None:
        super().__init__()
        parts = len(HAAR)
        self.register_buffer("mean", torch.zeros(parts, CHANNELS))
        self.register_buffer("maps", torch.eye(CHANNELS).repeat(parts, 1, 1))

    def parts(self, quarters: Tensor) -> Tensor:
        """Map (n, channels, 4) to the transform's parts, float32 (4, n, channels)."""
        haar = torch.tensor(HAAR, dtype=torch.float32, device=quarters.device) / 2
        return torch.einsum("hq,ncq->hnc", haar, quarters.float())

    def forward(self, quarters: Tensor) -> Tensor:
        """Map (n, channels, 4) to float32 (n, 4 * channels)."""
        kind = quarters.device.type
        # Small differences of means must not be rounded to bfloat16; the meta device has no autocast.
        known = torch.amp.is_autocast_available(kind)
        with torch.autocast(kind, enabled=False) if known else contextlib.nullcontext():
            white = torch.bmm(self.parts(quarters) - self.mean[:, None], self.maps)
        return white.transpose(0, 1).flatten(1)

    def fit(self, quarters: Tensor, ridge: float) -> None:
        """Compute mean and map of each part from (n, channels, 4) of public images; the map is (covariance + r I)^-1/2.

        r is `ridge` times the mean eigenvalue over all parts.
        """
        parts = self.parts(quarters).double()
        centred = parts - parts.mean(1, keepdim=True)
        values, vectors = torch.linalg.eigh(centred.transpose(1, 2) @ centred / (parts.shape[1] - 1))
        scale = (values.clamp_min(0) + ridge * values.mean()).rsqrt()
        self.mean.copy_(parts.mean(1))
        self.maps.copy_(vectors * scale[:, None] @ vectors.transpose(1, 2))


class NoiseWRN(TwoPartNet):
    """The net, with a linear classifier if `classes` is not 0."""

    end = "fc"

    def __init__(self, classes: int = 0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        inputs = (16, *WIDTHS)
        self.groups = nn.ModuleList(
            nn.Sequential(Block(inputs[n], width, 1 if n == 0 else 2), Block(width, width, 1))
            for n, width in enumerate(WIDTHS)
        )
        self.norm = nn.BatchNorm2d(WIDTHS[-1])
        self.white = Whitening()
        self.num_features = self.head_hidden_size = len(HAAR) * CHANNELS
        self.num_classes = classes
        self.fc = nn.Linear(self.num_features, classes) if classes else nn.Identity()

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of the second and third group, after ReLU, for normalised images (n, 3, h, w)."""
        middle: Tensor = self.groups[1](self.groups[0](self.stem(images)))
        return middle.relu(), self.norm(self.groups[2](middle)).relu()

    def quarters(self, images: Tensor) -> Tensor:
        """Return the means over the four quarters of images and of their mirror images: (n, channels, 4)."""
        both = [
            torch.cat([functional.adaptive_avg_pool2d(found.float(), 2).flatten(2) for found in self.maps(looked)], 1)
            for looked in (images, images.flip(3))
        ]
        return (both[0] + both[1]) / 2

    def forward_features(self, images: Tensor) -> Tensor:
        """Map normalised images (n, 3, height, width) to features (n, 1536)."""
        features: Tensor = self.white(self.quarters(images))
        return features


@register_model
def noise_wrn(pretrained: bool = False, num_classes: int = 0, in_chans: int = 3, **options: Any) -> nn.Module:
    """Build the net for normalised RGB images (n, 3, height, width) of 8 pixels or more; `options` are ignored.

    Raise BenchError unless `in_chans` is 3, and for `pretrained`: no hub has the weights.
    """
    check_rgb("noise_wrn", pretrained, in_chans)
    return NoiseWRN(num_classes)
