"""Label-only inversion by repulsion from the boundary: Kahla, Chen, Just and Jia, CVPR 2022 (BREP-MI).

Threat model: the attacker may query the student for labels only, and holds unlabelled auxiliary images, none of them
private. GMI's GAN (:mod:`bench.attacks.shared.gan`) makes the images. The student labels points on a sphere around the
noise, and the noise moves away from the mean of those labelled as other classes. Once nearly all get the class as
label, the sphere grows: the larger it is at the end, the deeper the image lies inside the class.

Differences from the paper: the published code attacks the classes that the GAN happens to hit; here every class is
attacked, each try from its own start, and a class without a start within ``draws`` images is a failure (``reached`` is
False, the image black). The published threshold of 0.75 on the mean of +1 and -1 requires 29 of 32 points, which the
setting states. The GAN is a small DCGAN. All tries move in one batch. In the published code a try also moves when its
sphere grows, and a move that leaves the class does not count towards ``patience``; here it stays, and each move counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.attacks.gmi import QUICK_GAN, TINY_GAN
from bench.attacks.shared.gan import GanAttackConfig, auxiliary_gan
from bench.attacks.shared.inversion import Filtered, ImageFilter, class_tries
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
)
from bench.training.gan import GanGenerator


@dataclass(frozen=True)
class BrepMIConfig(GanAttackConfig):
    """Settings of the attack."""

    images_per_class: int = setting(10, "ours: the paper makes one", ge=1)
    draws: int = setting(100_000, "ours: images searched for starts of all classes", ge=1)
    bound: float = setting(1.5, "the published code: noise is clipped to [-1.5, 1.5] after every move", gt=0)
    points: int = setting(32, "CVPR 2022, section 4 (N)", ge=1)
    radius: float = setting(2.0, "CVPR 2022, section 4 (R0)", gt=0)
    growth: float = setting(1.3, "CVPR 2022, section 4 (gamma)", gt=0)
    inside: float = setting(
        0.75, "the published code: mean of +1 (the label) and -1 above which the sphere grows", ge=-1, le=1
    )
    longest: float = setting(3.0, "the published code: a move is a third of the radius, and at most this long", gt=0)
    unit_moves: bool = setting(False, "the published code scales the mean by that length; True: its direction")
    patience: int = setting(1000, "CVPR 2022, section 4 (maxIters): moves at one radius", ge=1)
    steps: int = setting(20_000, "ours: total number of moves; the paper's end by patience alone", ge=1)


@register_attack("brep-mi")
class BrepMI(InversionAttack[BrepMIConfig]):
    """Moves away from the boundary of a class, using labels only."""

    version = 2
    access = Access.LABELS
    knowledge = Knowledge.AUXILIARY
    least_side = 8  # of its GAN
    citation = "Kahla et al., CVPR 2022"
    tunable: ClassVar[Mapping[str, tuple[float, ...]]] = {
        "blur": (0.0, 1.0, 2.0, 4.0), "subspace": (0, 20, 40, 80), "radius": (1.0, 2.0, 3.0),
    }  # fmt: skip

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        return {
            "quick": {**QUICK_GAN, "images_per_class": 5, "draws": 5000, "points": 20, "patience": 10, "steps": 60,
                      "unit_moves": True},
            "tiny": {**TINY_GAN, "images_per_class": 2, "draws": 300, "points": 8, "patience": 3, "steps": 6},
        }  # fmt: skip

    def run(
        self, target: Target, auxiliary: PublicData | None, observed: torch.Tensor | None, context: Context
    ) -> Reconstructions:
        """Find a start for every try, and move them all."""
        config = self.config
        known = self.own_images(auxiliary)
        gan, _ = auxiliary_gan(known, config, context)
        net = Filtered(gan, ImageFilter(config.blur, config.subspace, known, context.device))
        labels = class_tries(target.classes, config.images_per_class)
        noise, reached = _starts(config, target, gan, net, labels, context)
        images = torch.zeros((len(labels), *target.shape))
        if reached.any():
            noise = _repel(config, target, net, noise[reached], labels[reached], context)
            images[reached] = _images(net, noise, context.device)
        return Reconstructions(images, labels, reached)


def _starts(
    config: BrepMIConfig, target: Target, gan: GanGenerator, net: nn.Module, labels: Tensor, context: Context
) -> tuple[Tensor, Tensor]:
    generator = context.streams.torch("brep-mi/starts")
    noise = torch.zeros(len(labels), gan.noise_size)
    reached = torch.zeros(len(labels), dtype=torch.bool)
    with context.progress.stage("starts", config.draws) as stage:
        for done in range(0, config.draws, 500):
            drawn = gan.noise(min(500, config.draws - done), generator).clamp(-config.bound, config.bound)
            found = target.labels(_images(net, drawn, context.device))
            for label in range(target.classes):
                open_tries = ((labels == label) & ~reached).nonzero().squeeze(1)
                mine = (found == label).nonzero().squeeze(1)[: len(open_tries)]
                noise[open_tries[: len(mine)]] = drawn[mine]
                reached[open_tries[: len(mine)]] = True
            stage.advance(len(drawn))
            if reached.all():
                break
    return noise, reached


def _repel(
    config: BrepMIConfig, target: Target, net: nn.Module, noise: Tensor, labels: Tensor, context: Context
) -> Tensor:
    """Return each try's noise when its sphere last grew, or at the end if it never did."""
    generator = context.streams.torch("brep-mi/spheres")
    noise = noise.clone()
    kept, grown = noise.clone(), torch.zeros(len(noise), dtype=torch.bool)
    radius, since = torch.full((len(noise),), config.radius), torch.zeros(len(noise))
    with context.progress.stage("repulsion", config.steps) as stage:
        for _ in range(config.steps):
            active = (since < config.patience).nonzero().squeeze(1)
            if not len(active):
                break
            shape = (len(active), config.points, noise.shape[1])
            directions = functional.normalize(torch.randn(shape, generator=generator), dim=2)
            around = noise[active, None] + radius[active, None, None] * directions
            found = _labels(target, net, around.flatten(0, 1), context.device).view(shape[:2])
            signs = (found == labels[active, None]).float() * 2 - 1
            # Only points outside the class contribute: the try moves away from them.
            push = (((signs - 1) / 2)[:, :, None] * directions).mean(1)
            full = signs.mean(1) > config.inside
            larger, others = active[full], active[~full]
            kept[larger], grown[larger] = noise[larger], True
            radius[larger] *= config.growth
            since[larger] = 0
            length = (radius[others] / 3).clamp_max(config.longest)
            move = functional.normalize(push[~full], dim=1) if config.unit_moves else push[~full]
            moved = (noise[others] + length[:, None] * move).clamp(-config.bound, config.bound)
            same = _labels(target, net, moved, context.device) == labels[others] if len(others) else others > 0
            noise[others[same]] = moved[same]
            since[others] += 1
            stage.advance()
    return torch.where(grown[:, None], kept, noise)


def _labels(target: Target, net: nn.Module, noise: Tensor, device: torch.device) -> Tensor:
    return torch.cat([target.labels(_images(net, part, device)) for part in torch.split(noise, 1000)])


def _images(net: nn.Module, noise: Tensor, device: torch.device) -> Tensor:
    with torch.no_grad():
        return torch.cat([net(part.to(device)).float().clamp(0, 1).cpu() for part in torch.split(noise, 1000)])
