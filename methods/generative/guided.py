"""Generators guided, through the ledger, by discriminators on disjoint parts of the private records.

PATE-GAN, G-PATE, DataLens and GS-WGAN differ in their queries. One record changes one discriminator, arbitrarily; none
is released. The generator's labels are drawn evenly. All seeds share the parts, so the spread over seeds does not
include the choice of parts.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from bench.interface import Context, Facts, Ledger, PrivateData, PublicData, partition, setting
from bench.methods.generative.family import Generative, GenerativeConfig, Source, balanced
from bench.methods.generative.gan_parts import Forger, ForgerConfig
from bench.training.divergence import descend

Loss = Literal["binary", "wasserstein"]
Guide = Callable[["Tensor", "Tensor"], "Tensor"]
"""Maps images (n, channels, height, width) in [0, 1] and labels (n,) to each pixel's direction, in the same shape."""
OURS = "ours: a small net, so that thousands train on one core; the paper's are convolutional"
NET = "ours: the net of methods/generative/dp_merf.py"


@dataclass(frozen=True)
class GuidedConfig(GenerativeConfig, ForgerConfig):
    """Settings of the discriminators and of the generator."""

    teachers: int = setting(2000, "set by the subclass", ge=1)
    batch: int = setting(64, "set by the subclass; batch normalisation needs two images", ge=2)
    critic_units: int = setting(16, OURS, ge=1)
    critic_batch: int = setting(32, "ours: at most the records of a part", ge=1)
    critic_lr: float = setting(1e-3, "G-PATE's code AI-secure/G-PATE, of Adam with betas 0.5 and 0.999", gt=0)
    critic_steps: int = setting(2, "DataLens's code AI-secure/DataLens: before each further step", ge=1)
    warm_steps: int = setting(10, "DataLens's code AI-secure/DataLens: before the first step of the generator", ge=1)
    generator_lr: float = setting(1e-3, "G-PATE's code AI-secure/G-PATE, of Adam with betas 0.5 and 0.999", gt=0)
    latent: int = setting(50, "G-PATE's code AI-secure/G-PATE: epsilon 1; 100 at epsilon 10", ge=1, le=4096)
    generator_units: int = setting(200, NET, ge=1)
    generator_maps: int = setting(16, NET, ge=1)


class Critics:
    """Nets with one hidden layer and one score per class, each trained on its own part with Adam.

    Weights are stacked, (teachers, ...): no operation mixes them. Which records of a part and which generated images a
    step uses is public.
    """

    def __init__(
        self, private: PrivateData, parts: list[Any], config: GuidedConfig, draws: torch.Generator, device: torch.device
    ) -> None:  # fmt: skip
        # Part sizes differ by at most one; leave the extra record out so that the parts can be stacked.
        size = min(map(len, parts))
        self.rows = torch.stack([torch.from_numpy(part[:size]) for part in parts])
        self._images, self._labels = private.images.flatten(1), private.labels
        self._device, self._draws = device, draws
        self._batch = min(config.critic_batch, size)
        pixels, units, classes = self._images.shape[1], config.critic_units, private.facts.classes

        def start(inputs: int, outputs: int) -> Tensor:
            weights = torch.randn(len(parts), inputs, outputs, generator=draws) / math.sqrt(inputs)
            return weights.to(device).requires_grad_()

        self._weights = [start(pixels, units), start(units, classes)]
        self._biases = [torch.zeros(len(parts), 1, n, device=device, requires_grad=True) for n in (units, classes)]
        self._optimizer = torch.optim.Adam([*self._weights, *self._biases], config.critic_lr, betas=(0.5, 0.999))

    def __len__(self) -> int:
        return len(self.rows)

    def scores(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the scores (teachers, n) of float images (teachers, n, pixels) as `labels` (teachers, n)."""
        hidden = torch.baddbmm(self._biases[0], 2 * images - 1, self._weights[0])
        found = torch.baddbmm(self._biases[1], functional.leaky_relu(hidden, 0.2), self._weights[1])
        return found.gather(2, labels[:, :, None])[:, :, 0]

    def real(self) -> tuple[Tensor, Tensor]:
        """Return a batch of each part: float images (teachers, n, pixels) and labels (teachers, n)."""
        columns = torch.randperm(self.rows.shape[1], generator=self._draws)[: self._batch]
        rows = self.rows[:, columns]
        return self._images[rows].to(self._device).float() / 255, self._labels[rows].to(self._device)

    def learn(self, forger: Forger, steps: int, loss: Loss = "binary") -> None:
        """Train every net for `steps` steps on real images and as many of `forger`'s, the same for all nets."""
        for _ in range(steps):
            images, labels = self.real()
            with torch.no_grad():
                count = images.shape[1]  # batch normalisation needs two images
                made, given = (whole[:count] for whole in forger.images(max(2, count)))
            fakes, asked = self._for_all(made.flatten(1)), self._for_all(given)
            real, fake = self.scores(images, labels), self.scores(fakes, asked)
            if loss == "binary":
                total = functional.softplus(-real).mean(1) + functional.softplus(fake).mean(1)
            else:
                total = fake.mean(1) - real.mean(1) + 1e-3 * real.square().mean(1)
                total = total + 10 * self._penalty(images, fakes, labels)
            descend(self._optimizer, total.sum())

    def _penalty(self, images: Tensor, fakes: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient penalty (teachers,) of Gulrajani et al. 2017 between real and generated images."""
        share = torch.rand(1, images.shape[1], 1, generator=self._draws).to(self._device)
        between = (share * images + (1 - share) * fakes).detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.scores(between, labels).sum(), between, create_graph=True)
        return ((slope.square().sum(2) + 1e-12).sqrt() - 1).square().mean(1)

    def directions(self, images: Tensor, labels: Tensor, loss: Loss = "binary") -> Tensor:
        """Return the direction, (teachers, n, pixels), in which changing `images` fools each net."""
        seen = self._for_all(images.detach().flatten(1)).clone().requires_grad_()
        scores = self.scores(seen, self._for_all(labels))
        fooled = scores if loss == "wasserstein" else -functional.softplus(-scores)
        return torch.autograd.grad(fooled.sum(), seen)[0]

    def votes(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return bool (teachers, n): whether each net takes each of `images` for real."""
        with torch.no_grad():
            return self.scores(self._for_all(images.flatten(1)), self._for_all(labels)) > 0

    def _for_all(self, values: Tensor) -> Tensor:
        return values.to(self._device).expand(len(self), *values.shape)


def critics_of(config: GuidedConfig, private: PrivateData, context: Context, groups: int = 1) -> list[Critics]:
    """Return discriminators on `config.teachers` parts, in at most `groups` groups that train separately."""
    groups = min(groups, config.teachers)
    parts = partition(len(private), config.teachers, "critics")
    draws = context.streams.torch("critics")
    return [Critics(private, parts[group::groups], config, draws, context.device) for group in range(groups)]


class Guided(Generative):
    """A generator that follows noisy answers of discriminators on disjoint parts."""

    loss: ClassVar[Loss] = "binary"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        given = super().presets(facts)
        quick = {"latent": 10, "generator_lr": 2e-3}
        # Few latent inputs and enough steps, so that images depend on their labels.
        tiny = {
            "teachers": min(10, max(2, facts.private_records // 4)), "critic_units": 2, "critic_batch": 8,
            "warm_steps": 1, "critic_steps": 1, "generator_units": 64, "generator_maps": 8, "latent": 2,
            "generator_lr": 5e-3,
        }  # fmt: skip
        return {"quick": {**given["quick"], **quick}, "tiny": {**given["tiny"], **tiny}}

    def generator_steps(self) -> int:
        """Return the number of the generator's steps, each guided once."""
        return int(self.config.steps)

    @abc.abstractmethod
    def guide(self, critics: Sequence[Critics], ledger: Ledger, context: Context) -> Guide:
        """Return the function that queries `critics` through `ledger`."""

    def fit_generator(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Source:
        """Train discriminators and generator in turn, one group of `critics` per turn."""
        facts, steps = private.facts, self.generator_steps()
        forger = Forger(self.config, facts, context)
        critics = critics_of(self.config, private, context, getattr(self.config, "groups", 1))
        with context.progress.stage("discriminators", len(critics)) as stage:
            for group in critics:
                group.learn(forger, self.config.warm_steps, self.loss)
                stage.advance()
        guide = self.guide(critics, ledger, context)
        with context.progress.stage("generator", steps) as stage:
            for step in range(steps):
                if step:
                    critics[step % len(critics)].learn(forger, self.config.critic_steps, self.loss)
                images, labels = forger.images(self.config.batch)
                forger.follow(images, -guide(images.detach(), labels))
                stage.advance()
        return balanced(forger.net, facts.classes, context.device)
