"""Pseudo-label guided model inversion: Yuan et al., AAAI 2023 (PLG-MI, arXiv:2302.09814).

Threat model: the attacker holds the student's weights and unlabelled auxiliary images, none of them private. Of these,
the ``top`` images per class of which the student is most confident get the class as label. They train a conditional GAN
that is also pulled towards images of the student's class (:mod:`bench.attacks.shared.conditional_gan`). Then, for a
fixed label, noise descends the student's margin loss on two augmented views of its image. As in the paper, nothing is
selected at the end, so each start counts.

Differences from the paper: small nets, not residual ones; the class is an input of the generator, not used in
conditional batch normalisation; mirrored views for photographs only, not for digits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.attacks.shared.conditional_gan import ProjectionDiscriminator, augmented, train_conditional_gan
from bench.attacks.shared.inversion import Filtered, ImageFilter, class_tries, margin_loss
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
    predict,
    register_attack,
    setting,
)
from bench.models.frozen_backbone import state_digest
from bench.training.gan import GanGenerator


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
    depends = {"settings": dataclasses.asdict(config), "version": 1, "target": state_digest(target.model)}
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
