"""Layers trained through two low-rank factors, and the optimiser that rebuilds their weight updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Plain = nn.Linear | nn.Conv2d


class LowRank(nn.Module):
    """`layer` with weight W (outputs, inputs), computed as ``(W - L R) x + L R x``: same outputs, gradients of L and R.

    The carriers are `left`, L (outputs, rank) with orthonormal columns, and `right`, R (rank, inputs) with orthonormal
    rows, frozen if `left_only`. The bias is trained directly. Weight and bias remain `layer`'s.
    """

    def __init__(self, layer: Plain, rank: int, *, left_only: bool) -> None:
        super().__init__()
        self.weight = layer.weight.requires_grad_(False)
        self.start = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
        self.left: Plain
        self.right: Plain
        if isinstance(layer, nn.Conv2d):
            padding: Any = layer.padding
            self.right = nn.Conv2d(layer.in_channels, rank, layer.kernel_size, layer.stride, padding, bias=False)  # type: ignore[arg-type]
            self.left = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
        else:
            self.right = nn.Linear(layer.in_features, rank, bias=False)
            self.left = nn.Linear(rank, layer.out_features, bias=False)
        self.to(layer.weight.device)
        self.left.bias = layer.bias
        self.right.weight.requires_grad_(not left_only)

    def forward(self, inputs: Tensor) -> Tensor:
        product = self.left.weight.flatten(1) @ self.right.weight.flatten(1)
        rest = self.weight - product.view(-1, *self.right.weight.shape[1:]).detach()
        if isinstance(self.right, nn.Conv2d):
            plain = functional.conv2d(inputs, rest, None, self.right.stride, self.right.padding)
        else:
            plain = functional.linear(inputs, rest)
        carried: Tensor = self.left(self.right(inputs))
        return plain + carried

    @torch.no_grad()
    def decompose(self, generator: torch.Generator, *, history: bool) -> None:
        """Set the carriers by one power iteration from a random start.

        With `history` it runs on the normalised weights minus the normalised initial ones; otherwise on the weights.
        """
        target = self.weight.flatten(1)
        if history and not torch.equal(self.weight, self.start):
            target = target / target.norm() - self.start.flatten(1) / self.start.norm()
        rank = len(self.right.weight)
        start = torch.randn(target.shape[1], rank, generator=generator).to(target)
        left = torch.linalg.qr(target @ start).Q
        right = torch.linalg.qr(target.T @ left).Q.T
        self.left.weight.copy_(left.reshape(self.left.weight.shape))
        self.right.weight.copy_(right.reshape(self.right.weight.shape))

    @torch.no_grad()
    def rebuilt(self) -> Tensor:
        """Return the weight's gradient, in its shape, from the carriers' gradients: ``dL R + L dR - L L' dL R``.

        This is the weight's own gradient projected onto the carriers' columns and rows.
        """
        left, right = self.left.weight.flatten(1), self.right.weight.flatten(1)
        assert self.left.weight.grad is not None
        found = self.left.weight.grad.flatten(1) @ right
        if self.right.weight.grad is not None:
            found = found + left @ (self.right.weight.grad.flatten(1) - left.T @ found)
        return found.view_as(self.weight)


def insert(net: nn.Module, rank: int, kept: nn.Module, *, left_only: bool) -> dict[str, tuple[Plain, LowRank]]:
    """Replace layers of `net` whose rank can exceed `rank`, except `kept`, by :class:`LowRank`; return both by name."""
    found = {
        name: (layer, LowRank(layer, rank, left_only=left_only))
        for name, layer in net.named_modules()
        if layer is not kept and isinstance(layer, nn.Linear | nn.Conv2d) and _is_plain(layer)
        if rank < min(layer.weight.flatten(1).shape)
    }
    for name, (_, inserted) in found.items():
        net.set_submodule(name, inserted)
    return found


def remove(net: nn.Module, found: dict[str, tuple[Plain, LowRank]]) -> None:
    """Restore the layers that :func:`insert` replaced, with their trained weights."""
    for name, (layer, _) in found.items():
        layer.weight.requires_grad_(True)
        net.set_submodule(name, layer)


class RebuildingSGD(torch.optim.Optimizer):
    """SGD with momentum on the rebuilt gradients of low-rank layers and on all other gradients.

    After each step it decomposes the layers again from a random start determined by `seed` and the step, using their
    history from step `warmup` on.
    """

    def __init__(
        self, parameters: Iterable[Tensor], layers: Sequence[LowRank], *, seed: int, warmup: float, **settings: Any
    ) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        super().__init__(trained, {})
        self._layers, self._seed, self._warmup, self._steps = layers, seed, warmup, 0
        carriers = {id(carrier.weight) for layer in layers for carrier in (layer.left, layer.right)}
        others = [parameter for parameter in trained if id(parameter) not in carriers]
        self._sgd = torch.optim.SGD([*(layer.weight for layer in layers), *others], **settings)
        self._decompose()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step; `closure` is ignored."""
        for layer in self._layers:
            layer.weight.grad = layer.rebuilt()
        self._sgd.step()
        for layer in self._layers:
            layer.weight.grad = None
        self._steps += 1
        self._decompose()

    def _decompose(self) -> None:
        generator = torch.Generator().manual_seed((self._seed + self._steps) % 2**63)
        for layer in self._layers:
            layer.decompose(generator, history=self._steps > self._warmup)

    def state_dict(self) -> dict[str, Any]:
        """Return the momentum and the number of steps."""
        return {"sgd": self._sgd.state_dict(), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`."""
        self._sgd.load_state_dict(state["sgd"])
        self._steps = state["steps"]


def _is_plain(layer: Plain) -> bool:
    if isinstance(layer, nn.Linear):
        return True
    same = (layer.groups, layer.dilation, layer.padding_mode) == (1, (1, 1), "zeros")
    return same and not isinstance(layer.padding, str)
