"""Image transforms shared by training, teachers and attacks."""

from __future__ import annotations

import torch
from torch import Tensor


def as_float(images: Tensor) -> Tensor:
    """Return images or features as float32: uint8 divided by 255, to [0, 1]; floats of any precision unchanged."""
    return images.float().div_(255.0) if images.dtype == torch.uint8 else images.float()


def shifted(images: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Return `images`, each moved by up to `most` pixels along both axes; edges repeat the border."""
    moves = torch.randint(-most, most + 1, (2, len(images), 1), generator=generator, device=generator.device)
    return moved(images, moves.to(images.device))


def moved(images: Tensor, moves: Tensor) -> Tensor:
    """Return `images` (n, channels, height, width) moved by `moves` (2, n, 1): pixels along height, then width."""
    count, _, height, width = images.shape
    rows = (torch.arange(height, device=images.device) + moves[0]).clamp_(0, height - 1)
    columns = (torch.arange(width, device=images.device) + moves[1]).clamp_(0, width - 1)
    number = torch.arange(count, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[number, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def mixed(images: Tensor, labels: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Return `images` (n, ...) and soft `labels` (n, classes), each mixed with another of the batch (mixup).

    Zhang et al., ICLR 2018 (arXiv:1710.09412): the batch has one mixing weight, drawn from Beta(alpha, alpha) by
    torch's global generator.
    """
    share = float(torch.distributions.Beta(alpha, alpha).sample())
    other = torch.randperm(len(images)).to(images.device)
    return torch.lerp(images[other], images, share), torch.lerp(labels[other], labels, share)
