"""FixMatch: few labelled images, and many unlabelled ones that the net labels itself where confident.

Sohn et al., NeurIPS 2020 (arXiv:2001.07685). The net's label of a shifted image, if its probability reaches the
threshold, is the target for a stronger augmentation of the same image: instead of RandAugment, another shift, contrast
and a grey square, which suit grey images of any size, and no image is mirrored. The mean of the weights is a plain one
at first, and the decay includes biases and normalisation; the code that `pate-fm` follows does neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.core.progress import SILENT, Stage
from bench.core.seeds import seeded
from bench.interface import FitSettings, as_float, shifted
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.divergence import descend
from bench.training.loop import Batches, make_optimizer

SHIFT = 2  # pixels


@dataclass(frozen=True, slots=True)
class FixMatchSettings:
    """Settings of FixMatch; `batch_size` counts labelled images; a batch has `times` as many unlabelled ones."""

    steps: int
    batch_size: int = 64
    times: int = 7
    threshold: float = 0.95
    lr: float = 0.03
    weight_decay: float = 5e-4
    ema: float = 0.999


def fixmatch(
    net: nn.Module, images: Tensor, labels: Tensor, pool: Tensor, settings: FixMatchSettings,
    generator: torch.Generator, *, device: torch.device, stage: Stage = SILENT,
    checkpoint: Checkpoint | None = None,
) -> nn.Module:  # fmt: skip
    """Train `net` in place on uint8 `images` (m, channels, height, width) with `labels` (m,), and on those of `pool`.

    The result has the averaged weights, in evaluation mode; without labelled images `net` is unchanged. Resumes from
    `checkpoint`, which the caller clears.
    """
    net.to(device)
    if not len(images):
        return net.eval()
    images, labels, pool = images.to(device), labels.to(device), pool.to(device)
    plan = FitSettings(
        steps=settings.steps, lr=settings.lr, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay
    )
    optimizer, average = make_optimizer(net, plan), [p.detach().clone() for p in net.parameters()]
    known = Batches(len(images), settings.batch_size, generator, joined=True)
    others = Batches(len(pool), settings.batch_size * settings.times, generator, joined=True)
    held: dict[str, Part] = {
        "model": net, "optimizer": optimizer, "average": average, "order": generator, "known": known, "others": others,
    }  # fmt: skip
    loop = Loop(checkpoint, held, [images, labels, pool], device)
    net.train()
    with seeded(generator, device):
        for step in range(loop.start(stage), settings.steps):
            rows, unknown = next(known).to(device), pool[next(others).to(device)]
            batch = as_float(shifted(images[rows], SHIFT, generator))
            weak = as_float(shifted(unknown, SHIFT, generator))
            strong = changed(as_float(shifted(unknown, SHIFT, generator)), generator)
            logits = net(torch.cat([batch, weak, strong]))
            own, first, second = logits.split([len(batch), len(weak), len(strong)])
            sure, guessed = first.detach().softmax(1).max(1)
            certain = (cross_entropy(second, guessed, reduction="none") * (sure >= settings.threshold)).mean()
            loss = cross_entropy(own, labels[rows]) + certain
            for group in optimizer.param_groups:
                group["lr"] = plan.rate(step, settings.steps)
            descend(optimizer, loss)
            decay = min(settings.ema, (1 + step) / (10 + step))
            torch._foreach_lerp_(average, list(net.parameters()), 1 - decay)
            stage.advance()
            loop.done(step + 1, settings.steps)
    with torch.no_grad():
        for parameter, mean in zip(net.parameters(), average, strict=True):
            parameter.copy_(mean)
    return net.eval()


def changed(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return float `images` (n, channels, height, width) with random contrast and a grey square in each."""
    count, _, height, width = images.shape

    def random(low: float, high: float) -> Tensor:
        return (low + (high - low) * torch.rand(count, 1, 1, 1, generator=generator)).to(images.device)

    side = max(1, min(height, width) // 3)
    rows, columns = torch.arange(height, device=images.device)[:, None], torch.arange(width, device=images.device)
    top, left = random(-side / 2, height - side / 2).round(), random(-side / 2, width - side / 2).round()
    inside = (rows >= top) & (rows < top + side) & (columns >= left) & (columns < left + side)
    mean = images.mean((2, 3), keepdim=True)
    contrast = (mean + (images - mean) * random(0.5, 1.5)).clamp(0, 1)
    return torch.where(inside, torch.full_like(images, 0.5), contrast)
