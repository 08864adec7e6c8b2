"""Shared by several inversion attacks: losses, priors of natural images, input checks."""

from __future__ import annotations

import hashlib
import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from bench.interface import BenchError, PublicData, Target

Loss = Literal["cross-entropy", "margin"]


def identity_loss(logits: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Return the loss (n,) of `logits` (n, classes): -log p_y, or the margin, whose gradient never vanishes."""
    if loss == "cross-entropy":
        return functional.cross_entropy(logits, labels, reduction="none")
    mine = logits.gather(1, labels[:, None]).squeeze(1)
    others = logits.scatter(1, labels[:, None], -math.inf)
    return others.amax(1) - mine


def total_variation(images: Tensor) -> Tensor:
    down = (images[:, :, 1:] - images[:, :, :-1]).abs().flatten(1).sum(1)
    across = (images[:, :, :, 1:] - images[:, :, :, :-1]).abs().flatten(1).sum(1)
    return down + across


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Return `images` (n, channels, height, width) under a Gaussian of `sigma` pixels (0: none), borders extended."""
    if not sigma:
        return images
    radius = max(1, math.ceil(3 * sigma))
    steps = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    kernel = torch.exp(-steps.square() / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).expand(images.shape[1], 1, 1, -1)
    channels = images.shape[1]
    wide = functional.pad(images, (radius, radius, 0, 0), mode="replicate")
    wide = functional.conv2d(wide, kernel, groups=channels)
    high = functional.pad(wide, (0, 0, radius, radius), mode="replicate")
    return functional.conv2d(high, kernel.transpose(2, 3), groups=channels)


def class_tries(classes: int, per_class: int) -> Tensor:
    """Return the labels (classes * per_class,) of independent tries, class by class."""
    return torch.arange(classes).repeat_interleave(per_class)


def best_of(scores: Tensor, groups: int) -> Tensor:
    """Return the index of the lowest score in each of `groups` runs of equal length; NaN never wins."""
    table = scores.nan_to_num(math.inf, math.inf, -math.inf).view(groups, -1)
    return table.argmin(1) + torch.arange(groups, device=scores.device) * table.shape[1]


def check_auxiliary(auxiliary: PublicData | None, target: Target, attack: str, least: int = 2) -> Tensor:
    """Return the auxiliary images; raise :class:`BenchError` for fewer than `least`, or shapes unlike the target's."""
    if auxiliary is None or len(auxiliary) < least:
        count = 0 if auxiliary is None else len(auxiliary)
        raise BenchError(
            f"{attack} needs at least {least} auxiliary images and was given {count}. Choose a data set whose "
            "split has public images, or an attack that needs none (mi-face, data-free)."
        )
    if tuple(auxiliary.images.shape[1:]) != target.shape:
        raise BenchError(
            f"{attack} takes auxiliary images of the target's shape {target.shape}, not "
            f"{tuple(auxiliary.images.shape[1:])}. Resize them, or take auxiliary images of the same data set."
        )
    return auxiliary.images


def images_digest(images: Tensor) -> str:
    """Return a digest of the shape, type and values of public images, for cache keys."""
    images = images.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{images.dtype}|{tuple(images.shape)}|".encode())
    digest.update(images.numpy().tobytes())
    return digest.hexdigest()[:20]


def check_counts(**counts: float) -> None:
    for name, value in counts.items():
        if not (math.isfinite(value) and value > 0):
            raise BenchError(f"{name} must be a positive number, not {value}. Try --set {name}=1.")
