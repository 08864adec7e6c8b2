"""Images learned from a net's noisy gradients, and the net trained on them: post-processing of the gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.seeds import seeded
from bench.interface import Facts
from bench.methods.generative.gan_parts import carry


class ImageConfig:
    """The settings that :class:`LearnedImages` reads; configs that have them derive from this."""

    per_class: int
    image_lr: float
    image_average: float
    net_lr: float
    inner_epochs: int
    batches: int
    outer_steps: int

    @property
    def run_steps(self) -> int:
        """The private batches per random start."""
        return self.outer_steps * self.batches


class LearnedImages:
    """The images and their update after each DP-SGD step, which leaves its noisy gradient in `net`."""

    def __init__(self, net: nn.Module, facts: Facts, config: ImageConfig, draws: torch.Generator) -> None:
        self._net, self._config, self.draws = net, config, draws
        self._plain = copy.deepcopy(net)  # a copy without DP-SGD's hooks
        device = next(net.parameters()).device
        self.labels = torch.arange(config.per_class * facts.classes) % facts.classes
        start = torch.randn(len(self.labels), *facts.shape, generator=draws)
        self.images = start.clamp(-1, 1).to(device).requires_grad_()  # in [-1, 1], the range of the released bytes
        self.mean = self.images.detach().clone()  # mean over the steps, or the last images
        self._optimizer = torch.optim.SGD([self.images], config.image_lr, momentum=0.5)
        self._targets, self.turns = self.labels.to(device), 0

    def after_step(self) -> None:
        """Pull the images' gradient towards the noisy one; every `batches` steps train on them; restart after a run."""
        config = self._config
        wanted = [parameter.grad for parameter in self._net.parameters()]
        self._plain.load_state_dict(self._net.state_dict())
        found = torch.autograd.grad(self._loss(slice(None)), list(self._plain.parameters()), create_graph=True)
        (self.images.grad,) = torch.autograd.grad(distance(found, wanted), self.images)
        self._optimizer.step()
        with torch.no_grad():
            self.images.clamp_(-1, 1)
        self.turns += 1
        share = max(1 - self._config.image_average, 1 / self.turns)  # the plain mean at first, excluding the start
        self.mean.lerp_(self.images.detach(), share)
        if self.turns % config.run_steps == 0:
            self._start()
        elif self.turns % config.batches == 0:
            self._learn()
        if self.turns % config.batches == 0:
            self._net.load_state_dict(self._plain.state_dict())

    def _loss(self, rows: Any) -> Tensor:
        return functional.cross_entropy(self._plain.forward((self.images[rows] + 1) / 2), self._targets[rows])

    def _start(self) -> None:
        with seeded(self.draws):
            for layer in self._plain.modules():
                if isinstance(layer, (nn.Conv2d, nn.GroupNorm, nn.Linear)):
                    layer.reset_parameters()

    def _learn(self) -> None:
        weights = list(self._plain.parameters())
        for _ in range(self._config.inner_epochs):
            order = torch.randperm(len(self.labels), generator=self.draws)
            for rows in torch.split(order, 256):
                for parameter, gradient in zip(weights, torch.autograd.grad(self._loss(rows), weights), strict=True):
                    parameter.data -= self._config.net_lr * gradient

    def state_dict(self) -> dict[str, Any]:
        """Return the state; see :class:`bench.storage.checkpoint.Stateful`."""
        return {
            "images": self.images.detach(), "mean": self.mean, "optimizer": self._optimizer.state_dict(),
            "turns": self.turns, "draws": self.draws.get_state(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`."""
        self.images.data.copy_(state["images"])
        self.mean.copy_(state["mean"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.draws.set_state(state["draws"])
        self.turns = int(state["turns"])


def distance(found: Sequence[Tensor], wanted: Sequence[Tensor | None]) -> Tensor:
    """Return one minus the cosine between `found` and `wanted`, summed over rows of all matrices and kernels."""
    total: Any = 0.0
    for mine, other in zip(found, wanted, strict=True):
        assert other is not None
        if mine.dim() > 1:
            ours, theirs = mine.flatten(1), other.flatten(1)
            lengths = ours.norm(dim=1) * theirs.norm(dim=1) + 1e-6
            total = total + (1 - (ours * theirs).sum(1) / lengths).sum()
    result: Tensor = total
    return result


class Standstill(torch.optim.SGD):
    """SGD at rate 0: the net stays, `images` are updated after each noisy gradient and are checkpointed with it."""

    def __init__(self, parameters: Iterator[nn.Parameter], images: LearnedImages) -> None:
        super().__init__(parameters, lr=0.0)
        carry(self, "images", images)
        self.register_step_post_hook(lambda *_: images.after_step())
