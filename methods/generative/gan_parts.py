"""The generator's side of a class-conditional GAN: post-processing of the discriminator."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bench.core.seeds import seeded
from bench.interface import Context, Facts
from bench.models.generators import ConditionalGenerator
from bench.storage.checkpoint import Stateful


class ForgerConfig:
    """The settings that :class:`Forger` reads; configs that have them derive from this."""

    latent: int
    generator_units: int
    generator_maps: int
    generator_lr: float
    generator_average: float = 0.0
    """The decay of the moving average of the generator's weights; 0 uses the last ones."""
    adam_beta1: float = 0.5
    """Adam's decay rate of the mean gradient; that of its square is 0.999."""


def new_generator(config: ForgerConfig, facts: Facts, context: Context) -> ConditionalGenerator:
    """Return an untrained generator on the CPU."""
    sizes = config.latent, config.generator_units, config.generator_maps
    with seeded(context.streams.torch("generator/start")):
        return ConditionalGenerator(*facts.shape, facts.classes, *sizes)


class Forger:
    """A generator, its optimiser (Adam) and its random numbers; labels are drawn evenly."""

    def __init__(self, config: ForgerConfig, facts: Facts, context: Context) -> None:
        self.net = new_generator(config, facts, context)
        self.device, self._classes = context.device, facts.classes
        self.net.to(self.device).train()
        self.optimizer = torch.optim.Adam(self.net.parameters(), config.generator_lr, (config.adam_beta1, 0.999))
        self.draws = context.streams.torch("generator/draws")
        self.turns = 0  # steps of the opponent so far
        self.steps = 0  # steps of the generator so far
        self._average = config.generator_average
        self.mean = copy.deepcopy(self.net)  # mean weights over the steps, or the latest ones

    def images(self, count: int) -> tuple[Tensor, Tensor]:
        """Return images (count, channels, height, width) in [0, 1], with autograd graph, and their labels."""
        labels = torch.randint(self._classes, (count,), generator=self.draws)
        return self.again(labels), labels.to(self.device)

    def again(self, labels: Tensor) -> Tensor:
        """Return new images of classes `labels`, with autograd graph."""
        made: Tensor = self.net(self.net.codes(labels.cpu(), self.draws, self.device))
        return made

    def follow(self, images: Tensor, gradient: Tensor) -> None:
        """Take a step that moves `images` of the generator against `gradient`, of their shape."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(images, gradient)
        self.optimizer.step()
        self.steps += 1
        share = max(1 - self._average, 1 / self.steps)  # the plain mean at first, excluding the random start
        for mean, last in zip(self.mean.state_dict().values(), self.net.state_dict().values(), strict=True):
            if mean.is_floating_point():
                mean.lerp_(last, share)

    def state_dict(self) -> dict[str, Any]:
        """Return the state; see :class:`bench.storage.checkpoint.Stateful`."""
        return {
            "net": self.net.state_dict(), "mean": self.mean.state_dict(), "optimizer": self.optimizer.state_dict(),
            "draws": self.draws.get_state(), "turns": self.turns, "steps": self.steps,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`."""
        self.net.load_state_dict(state["net"])
        self.mean.load_state_dict(state["mean"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.draws.set_state(state["draws"])
        self.turns, self.steps = int(state["turns"]), int(state["steps"])


class AdamAgainst(torch.optim.Adam):
    """Adam for a discriminator trained by DP-SGD; its checkpoints include the opponent.

    `before` runs on the noisy gradient of each step, `after` on the new weights.
    """

    def __init__(
        self, parameters: Iterator[nn.Parameter], lr: float, beta1: float, forger: Forger, before: Callable[[], None],
        after: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, (beta1, 0.999))
        carry(self, "forger", forger)
        self.register_step_pre_hook(lambda *_: before())
        self.register_step_post_hook(lambda *_: after())


def carry(optimizer: torch.optim.Optimizer, name: str, part: Stateful) -> None:
    """Include the state of `part`, under `name`, in the state and so in the checkpoints of `optimizer`."""
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, name: part.state_dict()})
    optimizer.register_load_state_dict_pre_hook(lambda _, state: part.load_state_dict(state[name]))
