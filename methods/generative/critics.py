"""Private discriminators on disjoint parts of the private records, trained together. One record changes one."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from bench.interface import Context, PrivateData, partition
from bench.methods.generative.gan_parts import Forger
from bench.training.divergence import descend

Loss = Literal["binary", "wasserstein"]


class CriticConfig:
    """The settings that :class:`Critics` reads; configs that have them derive from this."""

    teachers: int
    critic_batch: int
    critic_units: int
    critic_lr: float


class Critics:
    """Nets with one hidden layer and one score per class, each trained on its own part with Adam.

    Weights are stacked, (teachers, ...): no operation mixes them. Which records of a part and which generated images a
    step uses is public.
    """

    def __init__(
        self, private: PrivateData, parts: list[Any], config: CriticConfig, draws: torch.Generator, device: torch.device
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
                count = images.shape[1]
                made, given = (
                    whole[:count] for whole in forger.images(max(2, count))
                )  # batch normalisation needs two images
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


def critics_of(config: CriticConfig, private: PrivateData, context: Context, groups: int = 1) -> list[Critics]:
    """Return discriminators on `config.teachers` parts, in at most `groups` groups that train separately."""
    groups = min(groups, config.teachers)
    parts = partition(len(private), config.teachers, "critics")
    draws = context.streams.torch("critics")
    return [Critics(private, parts[group::groups], config, draws, context.device) for group in range(groups)]
