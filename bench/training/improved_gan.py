"""Train students by the improved GAN with feature matching (Salimans et al., 2016), as in PATE 2017.

The student is the discriminator: with Z(x) = log sum exp of its logits, sigmoid(Z) is the probability that x is real.
It learns the labels of the labelled images, real for unlabelled and fake for generated ones. The generator matches the
batch mean of the student's last hidden layer. Only public images and released labels are used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.errors import BenchError
from bench.core.progress import SILENT, Stage
from bench.core.seeds import seeded
from bench.core.transforms import as_float
from bench.models.build import features_and_logits
from bench.models.generators import ConvGenerator, DenseGenerator
from bench.models.layers import data_dependent_start
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.divergence import descend
from bench.training.loop import Batches


@dataclass(frozen=True, slots=True)
class ImprovedGANSettings:
    """The published MNIST settings, from the script that PATE's authors used for their student.

    openai/improved-gan, ``mnist_svhn_cifar10/train_mnist_fm_custom_labels.py``: Adam 0.003 with beta1 0.5 for both
    nets, unlabelled weight 1, 300 epochs by default; tensorflow/privacy, ``research/pate_2017/README.md``: 600 epochs.
    """

    epochs: float = 600  # Passes over the unlabelled images.
    batch_size: int = 100
    lr: float = 0.003
    ema: float = 0.9999
    """Decay of the student's average, warmed up as in ``FitSettings``; the published one starts from zero."""
    start_images: int = 500  # images for the data-dependent initialisation of weight-normed layers; 0: none

    def total_steps(self, unlabelled: int) -> int:
        """Return the number of steps (one of each net) for this number of `unlabelled` images."""
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
    stage: Stage = SILENT,
    checkpoint: Checkpoint | None = None,
) -> nn.Module:
    """Train `student` (any timm model) in place against `generator` and return it in evaluation mode.

    `images` (m, channels, height, width) have `labels`, int64 (m,), and may be among the `unlabelled` (n, ...); all are
    uint8 or float in [0, 1]. `stage` advances at every step; `checkpoint`: see :func:`bench.training.loop.fit`. Raises
    :class:`BenchError` without a labelled image, with fewer than two unlabelled ones, or if training diverges.
    """
    if len(images) == 0 or len(images) != len(labels) or len(unlabelled) < 2:
        raise BenchError("the improved GAN needs at least one labelled and two unlabelled images.")
    device = torch.device(device)
    size = min(settings.batch_size, len(unlabelled))
    total = settings.total_steps(len(unlabelled))
    student.to(device).train()
    generator.to(device).train()
    images, labels, unlabelled = as_float(images).to(device), labels.to(device), as_float(unlabelled).to(device)
    # The published ``adam_updates`` (``nn.py``) adds 1e-8 inside the square root, which is 1e-4 outside it.
    student_step, generator_step = (
        torch.optim.Adam(net.parameters(), settings.lr, (0.5, 0.999), 1e-4, fused=True) for net in (student, generator)
    )
    labelled_order = Batches(len(images), size, randomness, joined=True)
    real_order, matched_order = (Batches(len(unlabelled), size, randomness, joined=True) for _ in range(2))
    loss = torch.zeros(())
    with seeded(randomness, device):
        if settings.start_images:
            start = torch.randperm(len(unlabelled), generator=randomness, device=randomness.device)
            with torch.no_grad(), data_dependent_start(student):
                student(unlabelled[start[: settings.start_images].to(device)])
        average = [p.detach().clone() for p in student.parameters()]
        held: dict[str, Part] = {
            "student": student, "generator": generator, "student_step": student_step, "average": average,
            "generator_step": generator_step, "randomness": randomness, "labelled": labelled_order,
            "real": real_order, "matched": matched_order,
        }  # fmt: skip
        # Resume after the data-dependent initialisation, which resets the average and is cheap to repeat.
        loop = Loop(checkpoint, held, [images, labels, unlabelled], device)
        for step in range(loop.start(stage), total):
            index = next(labelled_order).to(device)
            labelled = images[index]
            real = unlabelled[next(real_order).to(device)]
            with torch.no_grad():
                fake = generator(generator.noise(size, randomness, device))
            logits = student(torch.cat([labelled, real, fake]))
            on_labelled, on_real, on_fake = logits.split([len(labelled), len(real), len(fake)])
            loss = functional.cross_entropy(on_labelled, labels[index]) + unlabelled_loss(on_real, on_fake)
            descend(student_step, loss)
            decay = min(settings.ema, (1.0 + step) / (10.0 + step))
            torch._foreach_lerp_(average, list(student.parameters()), 1.0 - decay)

            student.requires_grad_(False)
            fake = generator(generator.noise(size, randomness, device))
            of_fake = features_and_logits(student, fake)[0].mean(0)
            with torch.no_grad():
                of_real = features_and_logits(student, unlabelled[next(matched_order).to(device)])[0].mean(0)
            descend(generator_step, (of_fake - of_real).square().mean())
            student.requires_grad_(True)
            stage.advance()
            loop.done(step + 1, total)
    if not math.isfinite(float(loss.detach())):
        raise BenchError("the improved GAN diverged: the loss is not finite. Lower its learning rate (lr).")
    with torch.no_grad():
        for parameter, mean in zip(student.parameters(), average, strict=True):
            parameter.copy_(mean)
    return student.eval()


def unlabelled_loss(on_real: Tensor, on_fake: Tensor) -> Tensor:
    """Return ``(-Z_real + softplus(Z_real) + softplus(Z_fake)) / 2``, Z = log sum exp of logits (n, classes)."""
    real, fake = torch.logsumexp(on_real, 1), torch.logsumexp(on_fake, 1)
    return 0.5 * (functional.softplus(-real).mean() + functional.softplus(fake).mean())
