"""Pseudo-label guided model inversion: Yuan et al., AAAI 2023 (PLG-MI, arXiv:2302.09814).

Threat model: the attacker holds the student's weights and unlabelled auxiliary images, none of them private. Of these,
the ``top`` images per class of which the student is most confident get the class as label. They train a conditional GAN
that is also pulled towards images of the student's class, with hinge losses, spectral normalisation (Miyato et al.
2018, arXiv:1802.05957) and projection discriminator (Miyato and Koyama 2018). Then, for a fixed label, noise descends
the student's margin loss on two augmented views of its image. As in the paper, nothing is selected at the end, so each
start counts.

Differences from the paper: small nets, not residual ones: the DCGAN of :mod:`bench.training.gan` and a discriminator of
two strided convolutions; the class is an input of the generator, not used in conditional batch normalisation; mirrored
views for photographs only, not for digits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from bench.attacks.shared.inversion import Filtered, ImageFilter, class_tries, margin_loss
from bench.core.progress import Stage
from bench.core.seeds import seeded
from bench.interface import (
    Access,
    Context,
    Facts,
    InversionAttack,
    Knowledge,
    PublicData,
    Reconstructions,
    Target,
    as_float,
    predict,
    register_attack,
    setting,
)
from bench.models.frozen_backbone import state_digest
from bench.models.layers import Normalise
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.divergence import check_finite, descend
from bench.training.gan import GanGenerator

_FEATURES = 128


@dataclass(frozen=True)
class PlgMIConfig:
    """Settings of the attack."""

    images_per_class: int = setting(5, "the published code: five seeds", ge=1)
    top: int = setting(30, "AAAI 2023, section 4.1 (n)", ge=1)
    gan_steps: int = setting(30_000, "AAAI 2023, section 4.1", ge=1)
    gan_width: int = setting(64, "DCGAN", ge=1)
    gan_noise: int = setting(128, "the published code (gen_dim_z)", ge=1)
    gan_rate: float = setting(2e-4, "AAAI 2023, section 4.1: Adam (0, 0.9)", gt=0)
    gan_critic_steps: int = setting(5, "AAAI 2023, section 4.1", ge=1)
    gan_batch: int = setting(64, "AAAI 2023, section 4.1", ge=1)
    alpha: float = setting(0.2, "AAAI 2023, section 4.1", ge=0)
    flips: bool = setting(True, "the published code; wrong for digits and letters")
    steps: int = setting(600, "AAAI 2023, section 4.1", ge=1)
    rate: float = setting(0.1, "AAAI 2023, section 4.1: Adam", gt=0)
    views: int = setting(2, "the published code: augmented views at each step", ge=1)
    batch_size: int = setting(300, "ours: latents optimised together", ge=1)
    blur: float = setting(0.0, "ours: the images' Gaussian blur, deviation in pixels", later=True, ge=0)
    subspace: int = setting(
        0, "ours: eigenfaces of the auxiliary images that span the images; 0: any", later=True, ge=0
    )


@register_attack("plg-mi")
class PlgMI(InversionAttack[PlgMIConfig]):
    """A GAN conditional on the student's own labels, and descent on its noise."""

    access = Access.WEIGHTS
    knowledge = Knowledge.AUXILIARY
    least_side = 8  # of its GAN
    citation = "Yuan et al., AAAI 2023"
    tunable: ClassVar[Mapping[str, tuple[float, ...]]] = {
        "blur": (0.0, 1.0, 2.0, 4.0), "subspace": (0, 20, 40, 80), "alpha": (0.1, 0.2, 0.5),
    }  # fmt: skip

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        quick: dict[str, Any] = {
            "images_per_class": 10, "top": 200, "gan_steps": 600, "gan_width": 16, "gan_rate": 5e-4,
            "gan_critic_steps": 2, "steps": 60, "flips": not facts.characters,
        }  # fmt: skip
        tiny = {"images_per_class": 2, "top": 20, "gan_steps": 20, "gan_width": 8, "gan_critic_steps": 1, "steps": 5}
        return {"paper": {"flips": not facts.characters}, "quick": quick, "tiny": quick | tiny}

    def run(
        self, target: Target, auxiliary: PublicData | None, observed: torch.Tensor | None, context: Context
    ) -> Reconstructions:
        """Train the GAN on the most confident images of every class, and optimise noise for each class."""
        config = self.config
        images = self.own_images(auxiliary)
        gan = _conditional_gan(config, target, images, context)
        net = Filtered(gan, ImageFilter(config.blur, config.subspace, images, context.device))
        labels = class_tries(target.classes, config.images_per_class)
        generator = context.streams.torch("plg-mi/descent")
        made = []
        chunks = torch.split(labels, config.batch_size)
        with context.progress.stage("descent on noise", config.steps * len(chunks)) as stage:
            for wanted in chunks:
                made.append(_descend(config, target, net, wanted.to(context.device), generator, stage.advance))
        return Reconstructions(torch.cat(made), labels)


def _conditional_gan(config: PlgMIConfig, target: Target, images: Tensor, context: Context) -> GanGenerator:
    """Return the generator trained on the `top` surest auxiliary images per class; not cached: it serves one target."""
    confidences = predict(target.model, images, device=context.device).softmax(1)
    target.count(len(images))
    best = confidences.topk(min(config.top, len(images)), dim=0).indices
    labels = torch.arange(target.classes).repeat(len(best))
    with seeded(context.streams.torch("plg-mi/start")):
        net = GanGenerator(target.shape, config.gan_noise, target.classes, width=config.gan_width)
        critic = ProjectionDiscriminator(target.shape, target.classes, config.gan_width)
    for part in (net, critic):  # channels last: two thirds of the time for photographs
        part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    depends = {"settings": dataclasses.asdict(config), "version": 2, "target": state_digest(target.model)}
    with context.stage("conditional-gan", depends, config.gan_steps, "conditional GAN") as (checkpoint, stage):
        return train_conditional_gan(
            net.to(context.device).train(), critic.to(context.device).train(), images[best.flatten()], labels,
            target.model, context.streams.torch("plg-mi/training"), steps=config.gan_steps,
            batch_size=config.gan_batch, critic_steps=config.gan_critic_steps, rate=config.gan_rate,
            alpha=config.alpha, flips=config.flips, count=target.count, stage=stage,
            checkpoint=checkpoint,
        )  # fmt: skip


def _descend(
    config: PlgMIConfig, target: Target, net: nn.Module, labels: Tensor, generator: torch.Generator, advance: Any
) -> Tensor:
    noise = torch.randn((len(labels), config.gan_noise), generator=generator).to(labels.device).requires_grad_()
    condition = functional.one_hot(labels, target.classes).float()
    optimizer = torch.optim.Adam([noise], config.rate)
    for _ in range(config.steps):
        images = net(torch.cat([noise, condition], 1))
        views = augmented(images.repeat(config.views, 1, 1, 1), generator, flips=config.flips)
        target.count(len(views))
        loss = margin_loss(target.model(views), labels.repeat(config.views)).sum() / config.views
        noise.grad = torch.autograd.grad(loss, noise)[0]
        optimizer.step()
        advance()
    with torch.no_grad():
        made: Tensor = net(torch.cat([noise, condition], 1))
    return made.float().clamp(0, 1).cpu()


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
