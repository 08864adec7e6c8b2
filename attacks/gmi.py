"""Generative model inversion: Zhang et al., CVPR 2020 (GMI, arXiv:1911.07135).

Threat model: the attacker holds the student's weights and unlabelled auxiliary images, none of them private. These
train a Wasserstein GAN (:mod:`bench.attacks.shared.gan`), whose noise then minimises -D(G(z)) + 100 * (-log p_y), by
gradient descent with momentum: the image should look real to the critic, and of the class to the student. Of several
starts, the image of which the student is most confident is kept; no evaluator is used.

Differences from the paper: small DCGANs; no blurred or masked images as starts; the search for the best start begins
at minus infinity, not at 0, which hides negative scores in the published code, and compares losses, not logits; each
latent descends on its own loss, while the published code averages the loss over a batch of identities, whose size
divides each step; auxiliary images come from the data set's split, while the paper's private and public MNIST images
show different digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.attacks.shared.gan import Critic, GanAttackConfig, auxiliary_gan
from bench.attacks.shared.inversion import Filtered, ImageFilter, best_of, class_tries
from bench.interface import (
    Access,
    Context,
    Facts,
    InversionAttack,
    Knowledge,
    PublicData,
    Reconstructions,
    Target,
    register_attack,
    setting,
    shifted,
)

QUICK_GAN: dict[str, Any] = {"gan_steps": 800, "gan_width": 16, "gan_rate": 1e-3, "gan_critic_steps": 2}
"""A GAN that trains in a minute on one core, shared with BREP-MI's quick preset through the cache."""
TINY_GAN: dict[str, Any] = {"gan_steps": 20, "gan_width": 8, "gan_rate": 1e-3, "gan_critic_steps": 1}


@dataclass(frozen=True)
class GMIConfig(GanAttackConfig):
    """Settings of the attack."""

    images_per_class: int = setting(10, "ours: the paper makes one", ge=1)
    restarts: int = setting(5, "the published code's random seeds, recovery.py", ge=1)
    steps: int = setting(1500, "CVPR 2020, section 4.1", ge=1)
    rate: float = setting(0.02, "CVPR 2020, section 4.1", gt=0)
    momentum: float = setting(0.9, "CVPR 2020, section 4.1", ge=0, lt=1)
    identity_weight: float = setting(100.0, "CVPR 2020, section 4.1 (lambda)", ge=0)
    bound: float = setting(1.0, "the published code: noise is clipped to [-1, 1]", gt=0)
    shift: int = setting(
        0, "ours: random shift, in pixels, of the images that the student sees; the paper's is 0", ge=0
    )
    batch_size: int = setting(300, "ours: latents optimised together; other sizes draw other shifts", ge=1)


@register_attack("gmi")
class GMI(InversionAttack[GMIConfig]):
    """Gradient descent on the noise of a GAN trained on auxiliary images."""

    version = 2
    access = Access.WEIGHTS
    knowledge = Knowledge.AUXILIARY
    least_side = 8  # of its GAN
    citation = "Zhang et al., CVPR 2020"
    tunable: ClassVar[Mapping[str, tuple[float, ...]]] = {
        "blur": (0.0, 1.0, 2.0, 4.0), "subspace": (0, 20, 40, 80), "identity_weight": (10.0, 30.0, 100.0, 300.0),
    }  # fmt: skip

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {
            "quick": {**QUICK_GAN, "steps": 150, "rate": 0.02, "restarts": 2, "shift": 2},
            "tiny": {**TINY_GAN, "steps": 10, "restarts": 2, "images_per_class": 2},
        }

    def run(
        self, target: Target, auxiliary: PublicData | None, observed: torch.Tensor | None, context: Context
    ) -> Reconstructions:
        """Train the GAN, or load it from the cache, and optimise its noise for every class."""
        config = self.config
        images = self.own_images(auxiliary)
        net, critic = auxiliary_gan(images, config, context)
        made_by = Filtered(net, ImageFilter(config.blur, config.subspace, images, context.device))
        labels = class_tries(target.classes, config.images_per_class)
        every = labels.repeat_interleave(config.restarts)
        noise = net.noise(len(every), context.streams.torch("gmi/start"))
        chunks = list(zip(torch.split(noise, config.batch_size), torch.split(every, config.batch_size), strict=True))
        generator = context.streams.torch("gmi/shifts")
        found, losses = [], []
        with context.progress.stage("descent on noise", config.steps * len(chunks)) as stage:
            for start, wanted in chunks:
                made, loss = _descend(
                    config, target, made_by, critic, start.to(context.device), wanted.to(context.device), generator,
                    stage.advance,
                )  # fmt: skip
                found.append(made)
                losses.append(loss)
        chosen = best_of(torch.cat(losses), len(labels))
        return Reconstructions(torch.cat(found)[chosen], labels)


def _descend(
    config: GMIConfig, target: Target, net: nn.Module, critic: Critic, noise: Tensor, labels: Tensor,
    generator: torch.Generator, advance: Callable[[], None],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the final images and the student's loss (n,) for their labels, on the CPU."""
    noise = noise.clamp(-config.bound, config.bound).requires_grad_()
    optimizer = torch.optim.SGD([noise], config.rate, config.momentum, nesterov=config.momentum > 0)
    for _ in range(config.steps):
        images = net(noise)
        target.count(len(images))
        # A shift breaks adversarial noise but leaves a digit recognisable.
        shown = shifted(images, config.shift, generator) if config.shift else images
        identity = functional.cross_entropy(target.model(shown), labels, reduction="sum")
        loss = config.identity_weight * identity - critic(images).sum()
        noise.grad = torch.autograd.grad(loss, noise)[0]
        optimizer.step()
        with torch.no_grad():
            noise.clamp_(-config.bound, config.bound)
        advance()
    with torch.no_grad():
        images = net(noise)
        target.count(len(images))
        losses = functional.cross_entropy(target.model(images), labels, reduction="none")
    return images.float().clamp(0, 1).cpu(), losses.cpu()
