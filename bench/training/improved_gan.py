"""Students from few labels and many unlabelled images: the improved GAN with feature matching (Salimans et al., 2016).

The student is the discriminator: its logits l(x) over k classes say by Z(x) = log sum exp l(x) that x is real, with
probability sigmoid(Z). It learns the labels of the few labelled images, real for unlabelled ones, fake for generated
ones. The generator matches the batch mean of the student's last hidden layer. PATE 2017 trains its students so.

Everything here sees public images and released labels only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.errors import BenchError
from bench.core.seeds import seeded
from bench.models.build import features_and_logits
from bench.models.generators import ConvGenerator, DenseGenerator
from bench.models.layers import data_dependent_start
from bench.training.checkpoint import Checkpoint, Loop, Part
from bench.training.loop import Batches
from bench.training.transforms import as_float, shifted

if TYPE_CHECKING:
    from bench.core.progress import Stage


@dataclass(frozen=True, slots=True)
class ImprovedGANSettings:
    """The published MNIST settings. Places are in openai/improved-gan, ``mnist_svhn_cifar10/``.

    ``train_mnist_fm_custom_labels.py`` is the script that PATE's authors used for their MNIST student: Adam 0.003 with
    beta1 0.5 for both nets, batches of 100, unlabelled weight 1, 300 epochs by default, an average of the student's
    weights with decay 0.9999, and scales and biases set from 500 images. The authors' own run of it is named "epochs
    600" in ``research/pate_2017/README.md`` of tensorflow/privacy.
    """

    epochs: float = 600
    """Passes over the unlabelled images."""
    batch_size: int = 100
    lr: float = 0.003
    generator_lr: float | None = None
    """The generator's own rate; None for the student's, as published."""
    beta1: float = 0.5
    epsilon: float = 1e-4
    """Adam's. The published ``adam_updates`` (``nn.py``) adds 1e-8 below the root, which is 1e-4 outside it."""
    unlabelled_weight: float = 1.0
    ema: float | None = 0.9999
    """Decay of the average of the student's weights; None for the last weights. Warmed up as in
    :class:`bench.training.loop.FitSettings`, where the published average starts from zero."""
    start_images: int = 500
    """Images for the data-dependent start of weight-normed layers; 0 for none."""
    linear_decay_from: float = 1.0
    """The share of the training after which the rate falls linearly to zero; 1 for never, as published."""
    shift: int = 0
    """The largest random translation of labelled images in pixels; the published code has none."""
    label_smoothing: float = 0.0
    """Smoothing of the released labels, which are noisy; the published code has none."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant."""
        if not self.epochs > 0 or self.batch_size < 2 or not (math.isfinite(self.lr) and self.lr > 0):
            raise BenchError("the improved GAN needs epochs > 0, batch_size >= 2 and a positive finite lr.")

    def total_steps(self, unlabelled: int) -> int:
        """Return how many steps (one of each net) training beside so many unlabelled images takes."""
        return max(1, round(self.epochs * max(1, unlabelled // self.batch_size)))


def train_improved_gan(
    student: nn.Module,
    generator: DenseGenerator | ConvGenerator,
    images: Tensor,
    labels: Tensor,
    unlabelled: Tensor,
    settings: ImprovedGANSettings,
    randomness: torch.Generator,
    *,
    device: torch.device | str = "cpu",
    bf16: bool = False,
    stage: Stage | None = None,
    checkpoint: Checkpoint | None = None,
) -> nn.Module:
    """Train `student` (any timm model) in place against `generator` and return it in evaluation mode.

    `images` (m, channels, height, width) with `labels`, int64 (m,), are the labelled ones; `unlabelled` (n, ...) the
    others, of which the labelled ones may be some; uint8, or float in [0, 1]. `stage` is advanced at every step;
    `checkpoint` is as for :func:`bench.training.loop.fit`.

    Raises :class:`BenchError` without a labelled image or with fewer than two unlabelled ones, or where training
    diverges.
    """
    if len(images) == 0 or len(images) != len(labels) or len(unlabelled) < 2:
        raise BenchError("the improved GAN needs at least one labelled and two unlabelled images.")
    device = torch.device(device)
    size = min(settings.batch_size, len(unlabelled))
    total = settings.total_steps(len(unlabelled))
    student.to(device).train()
    generator.to(device).train()
    images, labels, unlabelled = as_float(images).to(device), labels.to(device), as_float(unlabelled).to(device)
    betas = (settings.beta1, 0.999)
    student_step = torch.optim.Adam(student.parameters(), settings.lr, betas, settings.epsilon, fused=True)
    generator_step = torch.optim.Adam(generator.parameters(), settings.lr, betas, settings.epsilon, fused=True)
    average = [p.detach().clone() for p in student.parameters()] if settings.ema is not None else []
    labelled_order = Batches(len(images), size, randomness, joined=True)
    real_order, matched_order = (Batches(len(unlabelled), size, randomness, joined=True) for _ in range(2))
    loss = torch.zeros(())
    with seeded(randomness, device):
        if settings.start_images:
            start = torch.randperm(len(unlabelled), generator=randomness, device=randomness.device)
            with torch.no_grad(), data_dependent_start(student):
                student(unlabelled[start[: settings.start_images].to(device)])
            average = [p.detach().clone() for p in student.parameters()] if average else []
        held: dict[str, Part] = {
            "student": student, "generator": generator, "student_step": student_step, "average": average,
            "generator_step": generator_step, "randomness": randomness, "labelled": labelled_order,
            "real": real_order, "matched": matched_order,
        }  # fmt: skip
        # After the data-dependent start, which replaces the average and is cheap to repeat.
        loop = Loop(checkpoint, held, [images, labels, unlabelled], device)
        for step in range(loop.start(stage), total):
            kept = _kept_rate(settings, step, total)
            index = next(labelled_order).to(device)
            labelled = images[index]
            if settings.shift:
                labelled = shifted(labelled, settings.shift, randomness)
            real = unlabelled[next(real_order).to(device)]
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                with torch.no_grad():
                    fake = generator(generator.noise(size, randomness, device)).float()
                logits = student(torch.cat([labelled, real, fake]))
            logits = logits.float()
            on_labelled, on_real, on_fake = logits.split([len(labelled), len(real), len(fake)])
            loss = functional.cross_entropy(on_labelled, labels[index], label_smoothing=settings.label_smoothing)
            loss = loss + settings.unlabelled_weight * unlabelled_loss(on_real, on_fake)
            _update(student_step, loss, settings.lr * kept)
            if average and settings.ema is not None:
                decay = min(settings.ema, (1.0 + step) / (10.0 + step))
                torch._foreach_lerp_(average, list(student.parameters()), 1.0 - decay)

            student.requires_grad_(False)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                fake = generator(generator.noise(size, randomness, device))
                of_fake = features_and_logits(student, fake)[0].float().mean(0)
                with torch.no_grad():
                    of_real = (
                        features_and_logits(student, unlabelled[next(matched_order).to(device)])[0].float().mean(0)
                    )
            _update(generator_step, (of_fake - of_real).square().mean(), (settings.generator_lr or settings.lr) * kept)
            student.requires_grad_(True)
            if stage is not None:
                stage.advance()
            loop.done(step + 1, total)
    if not math.isfinite(float(loss.detach())):
        raise BenchError("the improved GAN diverged: the loss is not finite. Lower its learning rate (lr).")
    with torch.no_grad():
        for parameter, mean in zip(student.parameters(), average, strict=bool(average)):
            parameter.copy_(mean)
    return student.eval()


def unlabelled_loss(on_real: Tensor, on_fake: Tensor) -> Tensor:
    """Return half the binary cross-entropy of real and of fake images, from logits (n, classes) of each.

    With Z = log sum exp of the logits: ``(-Z_real + softplus(Z_real) + softplus(Z_fake)) / 2``, means over batches.
    """
    real, fake = torch.logsumexp(on_real, 1), torch.logsumexp(on_fake, 1)
    return 0.5 * (functional.softplus(-real).mean() + functional.softplus(fake).mean())


def _update(optimizer: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()


def _kept_rate(settings: ImprovedGANSettings, step: int, total: int) -> float:
    kept = settings.linear_decay_from * total
    return 1.0 if step < kept else (total - step) / max(total - kept, 1.0)
