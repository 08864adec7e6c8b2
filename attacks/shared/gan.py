"""The GAN of GMI and BREP-MI: a Wasserstein GAN with gradient penalty, on auxiliary images only.

Gulrajani et al., NeurIPS 2017 (arXiv:1704.00028), as in GMI (Zhang et al., CVPR 2020, section 3 and published code):
Adam 2e-4 (0.5, 0.999), batches of 64, five critic steps per generator step, penalty 10, 100 noise values. It does not
depend on the target, so targets share it through the cache. The generator is the DCGAN of :mod:`bench.training.gan`;
the critic has two strided convolutions without batch normalisation, because the penalty is per image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.attacks.shared.inversion import images_digest
from bench.core.progress import Stage
from bench.core.seeds import Streams, seeded
from bench.interface import Context, as_float, setting
from bench.models.layers import Normalise
from bench.storage.cache import Arrays
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.divergence import check_finite, descend
from bench.training.gan import GanGenerator

BATCH, PENALTY = 64, 10.0


@dataclass(frozen=True)
class GanAttackConfig:
    """Settings of an attack's GAN, and of the filter on its images; defaults are GMI's for MNIST."""

    gan_epochs: float = setting(100.0, "the published code, MNIST", gt=0)
    gan_steps: int = setting(0, "0: as many as gan_epochs makes", ge=0)
    gan_width: int = setting(64, "DCGAN", ge=1)
    gan_noise: int = setting(100, "the published code (z_dim)", ge=1)
    gan_rate: float = setting(2e-4, "the published code", gt=0)
    gan_critic_steps: int = setting(5, "the published code (n_critic)", ge=1)
    blur: float = setting(0.0, "ours: the images' Gaussian blur, deviation in pixels", later=True, ge=0)
    subspace: int = setting(
        0, "ours: eigenfaces of the auxiliary images that span the images; 0: any", later=True, ge=0
    )

    def generator_steps(self, records: int) -> int:
        """Return the number of generator steps for this many `records`."""
        return self.gan_steps or max(1, round(self.gan_epochs * records / (BATCH * self.gan_critic_steps)))


class Critic(nn.Module):
    """A critic of two strided convolutions for images of `shape`."""

    def __init__(self, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        channels, high, wide = shape
        self.net = nn.Sequential(
            Normalise(), nn.Conv2d(channels, width, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
            nn.Linear(2 * width * (high // 4) * (wide // 4), 1),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Return a score (n,) per image."""
        score: Tensor = self.net(images)
        return score.squeeze(1)


def auxiliary_gan(images: Tensor, config: GanAttackConfig, context: Context) -> tuple[GanGenerator, Critic]:
    """Return generator and critic for `images` (n, channels, height, width), trained or cached, in evaluation mode.

    They are on the context's device, without gradients. Random streams depend only on the run's seed, so that all
    targets share the GAN.
    """
    shape = (images.shape[1], images.shape[2], images.shape[3])
    streams = Streams(context.streams.seed).child("auxiliary-gan")

    def make() -> Arrays:
        nets, steps = _nets(shape, config, streams.torch("start"), context.device), config.generator_steps(len(images))
        with context.stage("auxiliary-gan", depends, steps, "GAN on auxiliary images") as (checkpoint, stage):
            _train(*nets, images, config, streams.torch("training"), context.device, stage, checkpoint)
        return {
            f"{part}/{name}": value.detach().cpu().numpy()
            for part, net in zip(("generator", "critic"), nets, strict=True)
            for name, value in net.state_dict().items()
        }

    settings = {
        "epochs": config.gan_epochs, "steps": config.gan_steps, "width": config.gan_width,
        "noise_size": config.gan_noise, "rate": config.gan_rate, "critic_steps": config.gan_critic_steps,
        "batch_size": BATCH, "penalty": PENALTY,
    }  # fmt: skip
    depends = {"settings": settings, "images": images_digest(images), "seed": streams.integer("start"), "version": 2}
    arrays = context.cache.get("auxiliary-gan", depends, make)
    generator, critic = _nets(shape, config, streams.torch("start"), context.device)
    for part, net in (("generator", generator), ("critic", critic)):
        state = net.state_dict()
        # Files store no zero-dimensional arrays, so restore the shape of batch normalisation's counters.
        loaded = {name: torch.from_numpy(arrays[f"{part}/{name}"]).view(value.shape) for name, value in state.items()}
        net.load_state_dict(loaded)
        net.eval().requires_grad_(False)
    return generator, critic


def _nets(
    shape: tuple[int, int, int], config: GanAttackConfig, generator: torch.Generator, device: torch.device
) -> tuple[GanGenerator, Critic]:
    with seeded(generator):
        net, critic = GanGenerator(shape, config.gan_noise, width=config.gan_width), Critic(shape, config.gan_width)
    return net.to(device).train(), critic.to(device).train()


def _train(
    net: GanGenerator, critic: Critic, images: Tensor, config: GanAttackConfig, generator: torch.Generator,
    device: torch.device, stage: Stage, checkpoint: Checkpoint | None = None,
) -> None:  # fmt: skip
    rate, betas = config.gan_rate, (0.5, 0.999)
    optimizers = [torch.optim.Adam(part.parameters(), rate, betas, fused=True) for part in (net, critic)]
    size, total = min(BATCH, len(images)), config.generator_steps(len(images))
    held: dict[str, Part] = {
        "generator": net, "critic": critic, "generator_step": optimizers[0], "critic_step": optimizers[1],
        "random": generator,
    }  # fmt: skip
    loop = Loop(checkpoint, held, [images], device)
    for step in range(loop.start(stage), total):
        terms: dict[str, Tensor] = {}
        for _ in range(config.gan_critic_steps):
            index = torch.randint(len(images), (size,), generator=generator)
            real = as_float(images[index].to(device))
            with torch.no_grad():
                made = net(net.noise(size, generator, device))
            terms["critic"] = critic(made).mean() - critic(real).mean()
            terms["penalty"] = PENALTY * slope_penalty(critic, real, made, generator)
            descend(optimizers[1], terms["critic"] + terms["penalty"])
        terms["generator"] = -critic(net(net.noise(size, generator, device))).mean()
        check_finite(terms, step, "the GAN on auxiliary images")
        descend(optimizers[0], terms["generator"], inputs=list(net.parameters()))
        stage.advance()
        loop.done(step + 1, total)


def slope_penalty(critic: Critic, real: Tensor, made: Tensor, generator: torch.Generator) -> Tensor:
    """Return the mean of (slope - 1)^2 of the critic at random points between real and generated images, in [0, 1]."""
    share = torch.rand((len(real), 1, 1, 1), generator=generator).to(real.device)
    between = torch.lerp(made, real, share).requires_grad_()
    slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
    penalty: Tensor = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    return penalty
