"""PLG-MI's conditional GAN: hinge losses, spectral norms, and a generator loss that pulls towards the target's class.

Spectral normalisation (Miyato et al. 2018, arXiv:1802.05957) and projection discriminator (Miyato and Koyama 2018) as
in Yuan et al., AAAI 2023, with small nets: the DCGAN of :mod:`bench.training.gan` with the class as input, and a
discriminator of two strided convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from bench.attacks.shared.inversion import margin_loss
from bench.core.progress import Stage
from bench.interface import as_float
from bench.models.layers import Normalise
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.divergence import check_finite, descend
from bench.training.gan import GanGenerator

_FEATURES = 128


class ProjectionDiscriminator(nn.Module):
    """score(features) + <label embedding, features>, (n,): bounded, and higher for real images of the label."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int) -> None:
        super().__init__()
        channels, high, wide = shape
        self.body = nn.Sequential(
            Normalise(), spectral_norm(nn.Conv2d(channels, width, 4, 2, 1)), nn.LeakyReLU(0.1),
            spectral_norm(nn.Conv2d(width, 2 * width, 4, 2, 1)), nn.LeakyReLU(0.1), nn.Flatten(),
            spectral_norm(nn.Linear(2 * width * (high // 4) * (wide // 4), _FEATURES)), nn.LeakyReLU(0.1),
        )  # fmt: skip
        self.score = spectral_norm(nn.Linear(_FEATURES, 1))
        self.embedding = spectral_norm(nn.Embedding(classes, _FEATURES))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        features = self.body(images)
        score: Tensor = self.score(features).squeeze(1) + (self.embedding(labels) * features).sum(1)
        return score


def augmented(images: Tensor, generator: torch.Generator, *, flips: bool) -> Tensor:
    """Return random views of `images` (n, channels, height, width): cropped, rotated, brightened, clipped to [0, 1].

    Crops keep 0.8 to 1 of the area, rotations are up to 5 degrees, brightness and contrast change by up to a fifth, the
    outside is black. `flips` mirrors half of the images, for photographs, not characters.
    """
    count = len(images)
    draws = torch.rand((count, 7), generator=generator).to(images.device)
    side = (0.8 + 0.2 * draws[:, 0]).sqrt()
    angle = (2 * draws[:, 1] - 1) * math.radians(5)
    mirror = torch.where(draws[:, 2] < 0.5, -1.0, 1.0) if flips else torch.ones_like(side)
    move = (2 * draws[:, 3:5] - 1) * (1 - side)[:, None]
    ratio = images.shape[3] / images.shape[2]
    across = torch.stack([side * mirror * angle.cos(), -side * angle.sin() / ratio, move[:, 0]], 1)
    down = torch.stack([side * mirror * angle.sin() * ratio, side * angle.cos(), move[:, 1]], 1)
    grid = functional.affine_grid(torch.stack([across, down], 1), list(images.shape), align_corners=False)
    views = functional.grid_sample(images, grid, align_corners=False)
    views = views * (0.8 + 0.4 * draws[:, 5, None, None, None])
    mean = views.mean((1, 2, 3), keepdim=True)
    return ((views - mean) * (0.8 + 0.4 * draws[:, 6, None, None, None]) + mean).clamp(0, 1)


def train_conditional_gan(
    net: GanGenerator, critic: ProjectionDiscriminator, images: Tensor, labels: Tensor, student: nn.Module,
    generator: torch.Generator, *, steps: int, batch_size: int, critic_steps: int, rate: float, alpha: float,
    flips: bool, count: Callable[[int], None], stage: Stage, checkpoint: Checkpoint | None = None,
) -> GanGenerator:  # fmt: skip
    """Train `net` and `critic` in place on their device; return `net` in evaluation mode.

    `images` (n, channels, height, width) are auxiliary, `labels` (n,) are the student's classes for them
    (pseudo-labels). Each of the generator's `steps` comes with `critic_steps` discriminator steps; both use Adam at
    `rate`. `alpha` weighs the student's margin against the critic's score. `count` is called with the number of images
    that the student has seen.
    """
    device = next(net.parameters()).device
    optimizers = [torch.optim.Adam(part.parameters(), rate, (0.0, 0.9), fused=True) for part in (net, critic)]
    held: dict[str, Part] = {
        "generator": net, "critic": critic, "generator_step": optimizers[0], "critic_step": optimizers[1],
        "random": generator,
    }  # fmt: skip
    loop = Loop(checkpoint, held, [images, labels, *student.state_dict().values()], device)
    first = loop.start(stage)
    count(first * batch_size)
    for step in range(first, steps):
        terms: dict[str, Tensor] = {}
        for _ in range(critic_steps):
            index = torch.randint(len(images), (batch_size,), generator=generator)
            real, said = as_float(images[index].to(device)), labels[index].to(device)
            with torch.no_grad():
                noise = net.noise(batch_size, generator, device)
                made = net(noise)
            terms["discriminator"] = (
                functional.relu(1 - critic(real, said)) + functional.relu(1 + critic(made, net.labels_of(noise)))
            ).mean()
            descend(optimizers[1], terms["discriminator"])
        noise = net.noise(batch_size, generator, device)
        made, wanted = net(noise), net.labels_of(noise)
        terms["generator"] = -critic(made, wanted).mean()
        terms["margin"] = margin_loss(student(augmented(made, generator, flips=flips)), wanted).mean()
        count(batch_size)
        check_finite(terms, step, "the conditional GAN")
        descend(optimizers[0], terms["generator"] + alpha * terms["margin"], inputs=list(net.parameters()))
        stage.advance()
        loop.done(step + 1, steps)
    return net.eval()
