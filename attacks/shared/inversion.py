"""Shared by several inversion attacks: losses, priors of natural images, filters, input checks."""

from __future__ import annotations

import functools
import hashlib
import math

import torch
from torch import Tensor, nn

from bench.interface import BenchError, as_float


def margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the largest other logit minus the label's, (n,), of `logits` (n, classes); its gradient never vanishes."""
    mine = logits.gather(1, labels[:, None]).squeeze(1)
    others = logits.scatter(1, labels[:, None], -math.inf)
    return others.amax(1) - mine


def total_variation(images: Tensor) -> Tensor:
    """Return the sum of absolute differences between neighbouring pixels of each image: (n,)."""
    down = (images[:, :, 1:] - images[:, :, :-1]).abs().flatten(1).sum(1)
    across = (images[:, :, :, 1:] - images[:, :, :, :-1]).abs().flatten(1).sum(1)
    return down + across


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Return `images` (n, channels, height, width) under a Gaussian of `sigma` pixels (0: none), borders extended."""
    if not sigma:
        return images
    down, across = (_smoothing(side, sigma).to(images) for side in images.shape[-2:])
    return down @ images @ across.T


@functools.lru_cache(maxsize=16)
def _smoothing(side: int, sigma: float) -> Tensor:
    """Return the matrix (side, side) that blurs a line of pixels: much faster than a convolution of one channel."""
    radius = max(1, math.ceil(3 * sigma))
    steps = torch.arange(-radius, radius + 1)
    kernel = torch.exp(-steps.float().square() / (2 * sigma**2))
    seen = (torch.arange(side)[:, None] + steps).clamp(0, side - 1)
    return torch.zeros(side, side).scatter_add_(1, seen, (kernel / kernel.sum()).expand(side, -1))


class ImageFilter:
    """An attacker's prior on its images: blurred by `blur` pixels, in the span of `subspace` eigenfaces (0: any).

    Eigenfaces are the first principal components of the attacker's own images; there is at least one more image than
    eigenfaces.
    """

    def __init__(self, blur: float, subspace: int, auxiliary: Tensor | None, device: torch.device) -> None:
        self._blur, self._mean, self._axes = blur, torch.zeros(()), torch.zeros(0)
        if not subspace:
            return
        if auxiliary is None or len(auxiliary) < 2:
            raise BenchError(
                "subspace needs 2 or more images of the attacker. Choose them with --auxiliary, or subspace=0."
            )
        rows = as_float(auxiliary).flatten(1)
        self._mean = rows.mean(0).to(device)
        axes = torch.linalg.svd(rows.to(device) - self._mean, full_matrices=False).Vh
        self._axes = axes[: min(subspace, len(rows) - 1)]

    def __call__(self, images: Tensor) -> Tensor:
        """Return the filtered images (n, channels, height, width); values may leave [0, 1]."""
        images = blurred(images, self._blur)
        if not len(self._axes):
            return images
        flat = images.flatten(1) - self._mean
        return (flat @ self._axes.T @ self._axes + self._mean).view_as(images)

    def change(self, steps: Tensor) -> Tensor:
        """Return how far the filtered images move when images move by `steps` (n, channels, height, width)."""
        steps = blurred(steps, self._blur)
        if not len(self._axes):
            return steps
        return (steps.flatten(1) @ self._axes.T @ self._axes).view_as(steps)


class Filtered(nn.Module):
    """A generator whose images pass an :class:`ImageFilter` and are clipped to [0, 1]."""

    def __init__(self, net: nn.Module, look: ImageFilter) -> None:
        super().__init__()
        self.net, self._look = net, look

    def forward(self, noise: Tensor) -> Tensor:
        """Return the filtered images of `noise` (n, values)."""
        return self._look(self.net(noise)).clamp(0, 1)


def class_tries(classes: int, per_class: int) -> Tensor:
    """Return the labels (classes * per_class,) of independent tries, class by class."""
    return torch.arange(classes).repeat_interleave(per_class)


def best_of(scores: Tensor, groups: int) -> Tensor:
    """Return the index of the lowest score in each of `groups` runs of equal length; NaN never wins."""
    table = scores.nan_to_num(math.inf, math.inf, -math.inf).view(groups, -1)
    return table.argmin(1) + torch.arange(groups, device=scores.device) * table.shape[1]


def images_digest(images: Tensor) -> str:
    """Return a digest of the shape, type and values of public images, for cache keys."""
    images = images.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{images.dtype}|{tuple(images.shape)}|".encode())
    digest.update(images.numpy().tobytes())
    return digest.hexdigest()[:20]
