"""GANs on private images, without any privacy: DGD's comparison for its data-free generator (Fig. 4).

**Attach no epsilon to anything from these generators.** They are fitted to private images without noise, so their
weights, their images and students trained on these reveal the records. A method declares them with ``ledger.bypass``.

- ``acgan``: Odena, Olah and Shlens, ICML 2017 (arXiv:1610.09585). Binary cross-entropy for real or fake, cross-entropy
  for the class of real and generated images.
- ``wgan``: Arjovsky, Chintala and Bottou, ICML 2017 (arXiv:1701.07875), and martinarjovsky/WassersteinGAN. Unlabelled;
  critic weights in [-0.01, 0.01], RMSProp, five critic steps per generator step.
- ``infogan``: Chen et al., NeurIPS 2016 (arXiv:1606.03657), and openai/InfoGAN, ``run_mnist_exp.py``. Unlabelled: the
  second head recovers a categorical and two continuous codes; categories match classes by chance.

The nets are small DCGANs (Radford et al. 2016). Public constants map pixels to [-1, 1] for the discriminator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.errors import BenchError
from bench.core.progress import SILENT, Stage
from bench.core.seeds import seeded
from bench.core.transforms import as_float
from bench.models.generators import Generator
from bench.models.layers import Normalise
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.divergence import check_finite, descend
from bench.training.loop import Batches

Kind = Literal["acgan", "wgan", "infogan"]

RATES: dict[Kind, tuple[float, float]] = {"acgan": (2e-4, 2e-4), "wgan": (5e-5, 5e-5), "infogan": (1e-3, 2e-4)}
"""Learning rates of generator and critic."""
CONTINUOUS_CODES = 2  # InfoGAN, appendix C.1 (MNIST).
CLIP = 0.01  # Largest absolute weight of a WGAN's critic.


@dataclass(frozen=True, slots=True)
class GanSettings:
    """Training settings of a GAN; learning rates and losses are its paper's.

    `steps` counts generator steps; a WGAN takes `critic_steps` batches for each. `width` is the number of maps at half
    the image size, doubled at a quarter.
    """

    steps: int
    batch_size: int = 64
    width: int = 64
    critic_steps: int = 5


class GanGenerator(Generator):
    """A DCGAN generator.

    Its input (n, `noise_size`) is `plain` noise, a one-hot label of `classes` (0: none), `codes` values in [-1, 1].
    """

    def __init__(
        self, shape: tuple[int, int, int], plain: int, classes: int = 0, codes: int = 0, *, width: int = 64
    ) -> None:
        channels, high, wide = shape
        super().__init__(shape, plain + classes + codes, (2 * width, math.ceil(high / 4), math.ceil(wide / 4)))
        self.plain, self.classes, self.codes = plain, classes, codes
        self.project = nn.Linear(self.noise_size, math.prod(self.low), bias=False)
        self.net = nn.Sequential(
            nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.ConvTranspose2d(width, channels, 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    def noise(self, count: int, generator: torch.Generator, device: torch.device | str = "cpu") -> Tensor:
        """Draw inputs (count, noise_size); plain noise is normal, or uniform in [-1, 1] for InfoGAN as in its code."""
        where = generator.device
        if self.codes:
            parts = [2 * torch.rand(count, self.plain, generator=generator, device=where) - 1]
        else:
            parts = [torch.randn(count, self.plain, generator=generator, device=where)]
        if self.classes:
            labels = torch.randint(0, self.classes, (count,), generator=generator, device=where)
            parts.append(functional.one_hot(labels, self.classes).float())
        if self.codes:
            parts.append(2 * torch.rand(count, self.codes, generator=generator, device=where) - 1)
        return torch.cat(parts, 1).to(device)

    def labels_of(self, noise: Tensor) -> Tensor:
        """Return the labels (n,) in inputs (n, noise_size); InfoGAN's are categories, not classes."""
        return noise[:, self.plain : self.plain + self.classes].argmax(1)

    def forward(self, noise: Tensor) -> Tensor:
        """Map inputs (n, noise_size) to images (n, channels, height, width) in [0, 1]."""
        images: Tensor = self.net(self.project(noise).view(-1, *self.low))
        return images[:, :, : self.shape[1], : self.shape[2]]


class _Critic(nn.Module):
    """Two strided convolutions, a head for real or fake, and a head for labels followed by codes."""

    def __init__(self, shape: tuple[int, int, int], width: int, told: int, hidden: int) -> None:
        super().__init__()
        channels, high, wide = shape
        self.body = nn.Sequential(
            Normalise(), nn.Conv2d(channels, width, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2),
            nn.Flatten(),
        )  # fmt: skip
        features = 2 * width * (high // 4) * (wide // 4)
        self.score = nn.Linear(features, 1)
        if hidden:
            self.tell: nn.Module = nn.Sequential(
                nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, told)
            )
        else:
            self.tell = nn.Linear(features, told) if told else nn.Identity()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(images)
        return self.score(features).squeeze(1), self.tell(features)


def train_gan(
    kind: Kind,
    images: Tensor,
    labels: Tensor,
    classes: int,
    settings: GanSettings,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
    stage: Stage = SILENT,
    checkpoint: Checkpoint | None = None,
) -> GanGenerator:
    """Train a GAN on `images` without any privacy and return its generator, in evaluation mode, on `device`.

    Attach no epsilon to the result: see the module. `images` (n, channels, height, width) is uint8 or float in [0, 1],
    at least 8x8; only ``acgan`` learns from `labels`, int64 (n,); `classes` is also InfoGAN's number of categories. All
    randomness comes from `generator`. The caller clears `checkpoint`. Raises :class:`BenchError` for fewer than two
    images or too small ones, and NotFiniteError if a loss is not finite.
    """
    if len(images) < 2 or min(images.shape[2:]) < 8:
        raise BenchError(f"a GAN needs two images of 8x8 pixels or more, not {tuple(images.shape)}.")
    device = torch.device(device)
    with seeded(generator, device):
        game = Game(kind, images.shape[1:], classes, settings, device)
    batches = Batches(len(images), settings.batch_size, generator, least=2)  # batch normalisation needs two images

    def draw() -> tuple[Tensor, Tensor]:
        index = next(batches)
        return as_float(images[index.to(images.device)].to(device)), labels[index.to(labels.device)].to(device)

    held: dict[str, Part] = {
        "generator": game.generator, "critic": game.critic, "generator_step": game.optimizers[0],
        "critic_step": game.optimizers[1], "order": generator, "batches": batches,
    }  # fmt: skip
    loop = Loop(checkpoint, held, [images, labels], device)
    for step in range(loop.start(stage), settings.steps):
        if kind == "wgan":
            terms = _wasserstein_step(game, [draw()[0] for _ in range(settings.critic_steps)], generator)
        else:
            terms = _entropy_step(game, *draw(), generator)
        check_finite(terms, step, kind)
        stage.advance()
        loop.done(step + 1, settings.steps)
    return game.generator.eval()


class Game:
    """Generator and critic of one training, with their optimisers."""

    def __init__(
        self, kind: Kind, shape: torch.Size, classes: int, settings: GanSettings, device: torch.device
    ) -> None:
        image = (shape[0], shape[1], shape[2])
        self.kind, self.classes = kind, classes
        categories = 0 if kind == "wgan" else classes
        codes = CONTINUOUS_CODES if kind == "infogan" else 0
        plain = 62 if kind == "infogan" else 100
        self.generator = GanGenerator(image, plain, categories, codes, width=settings.width)
        self.critic = _Critic(image, settings.width, categories + codes, 128 if kind == "infogan" else 0)
        for net in (self.generator, self.critic):
            net.apply(_start)
            net.to(device).train()
        self.optimizers: list[torch.optim.Optimizer] = []
        for part, rate in zip((self.generator, self.critic), RATES[kind], strict=True):
            if kind == "wgan":
                self.optimizers.append(torch.optim.RMSprop(part.parameters(), rate))
            else:
                self.optimizers.append(torch.optim.Adam(part.parameters(), rate, (0.5, 0.999), fused=True))

    def descend(self, which: Literal["generator", "critic"], loss: Tensor) -> None:
        """Take a step of one net down the gradient of `loss`; the other stays."""
        number = 0 if which == "generator" else 1
        net, optimizer = (self.generator, self.critic)[number], self.optimizers[number]
        descend(optimizer, loss, inputs=list(net.parameters()))

    def told_of_made(self, told: Tensor, noise: Tensor) -> Tensor:
        """Return the second head's loss for the label and codes of generated images."""
        made_for = self.generator.labels_of(noise)
        loss = functional.cross_entropy(told[:, : self.classes], made_for)
        if self.generator.codes:
            # A Gaussian of standard deviation 1, as in the authors' code; the paper's weight is 0.1.
            miss = (told[:, self.classes :] - noise[:, -self.generator.codes :]).square().sum(1)
            loss = loss + 0.1 * 0.5 * miss.mean()
        return loss


def _entropy_step(game: Game, real: Tensor, labels: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Take one step of an ACGAN's or InfoGAN's discriminator and generator, on the same generated images."""
    noise = game.generator.noise(len(real), generator, real.device)
    made = game.generator(noise)
    score, told = game.critic(real)
    terms = {"real": functional.softplus(-score).mean()}
    if game.kind == "acgan":
        terms["real class"] = functional.cross_entropy(told, labels)
    score, told = game.critic(made.detach())
    terms["fake"] = functional.softplus(score).mean()
    terms["fake told"] = game.told_of_made(told, noise)
    game.descend("critic", torch.stack(list(terms.values())).sum())
    score, told = game.critic(made)
    terms["generator"] = functional.softplus(-score).mean() + game.told_of_made(told, noise)
    game.descend("generator", terms["generator"])
    return terms


def _wasserstein_step(game: Game, reals: list[Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """Take one step of a WGAN's critic on each of `reals`, then one of its generator."""
    terms: dict[str, Tensor] = {}
    for real in reals:
        with torch.no_grad():
            made = game.generator(game.generator.noise(len(real), generator, real.device))
        terms["critic"] = game.critic(made)[0].mean() - game.critic(real)[0].mean()
        game.descend("critic", terms["critic"])
        with torch.no_grad():
            for parameter in game.critic.parameters():
                parameter.clamp_(-CLIP, CLIP)
    noise = game.generator.noise(len(reals[-1]), generator, reals[-1].device)
    terms["generator"] = -game.critic(game.generator(noise))[0].mean()
    game.descend("generator", terms["generator"])
    return terms


def _start(layer: nn.Module) -> None:
    """Initialise a layer as DCGAN does."""
    if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(layer.weight, 0.0, 0.02)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        nn.init.normal_(layer.weight, 1.0, 0.02)
