"""Early stopping by a public rule: stop when a net's labels of public images no longer change.

The rule reads only public images and the net, so a teacher remains a function of its own part and one record still
changes one teacher's votes; stopping by accuracy on held-out private records would break this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.core.errors import BenchError


@dataclass(frozen=True, slots=True)
class Settle:
    """Stop once at most `share` of the labels changed at each of `looks` consecutive looks, one per `every` steps."""

    looks: int = 3
    every: int = 100
    share: float = 0.002


class Settling:
    """Tracks the labels of the same public images by one or more nets, and which nets have settled."""

    def __init__(self, rule: Settle, nets: int = 1) -> None:
        self.rule = rule
        self._before: Tensor | None = None
        self._calm = torch.zeros(nets, dtype=torch.int64)

    def due(self, step: int) -> bool:
        """Return whether a look follows `step`, counted from 0."""
        return (step + 1) % self.rule.every == 0

    def look(self, labels: Tensor) -> Tensor:
        """Record `labels` (nets, images); return which nets have settled, bool (nets,), each by its own row."""
        if self._before is not None:
            changed = (labels != self._before).double().mean(1)
            self._calm = torch.where(changed <= self.rule.share, self._calm + 1, torch.zeros_like(self._calm))
        self._before = labels
        return self._calm >= self.rule.looks

    def state_dict(self) -> dict[str, Tensor]:
        """Return the labels of the last look and the calm looks per net."""
        return {"calm": self._calm} | ({} if self._before is None else {"before": self._before})

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state of :meth:`state_dict`."""
        self._calm, self._before = state["calm"], state.get("before")


def settling_for(rule: Settle | None, watched: Tensor | None, nets: int = 1) -> Settling | None:
    """Return a tracker of `nets` nets, None without a rule; raise :class:`BenchError` for a rule without images."""
    if rule is None:
        return None
    if watched is None or len(watched) == 0:
        raise BenchError("a rule for early stopping needs public images to watch, and none were given.")
    return Settling(rule, nets)


@contextlib.contextmanager
def holding(model: nn.Module, weights: Sequence[Tensor]) -> Iterator[None]:
    """Put `weights`, if any, into `model` for the block, then restore its own."""
    if not weights:
        yield
        return
    parameters: list[Tensor] = list(model.parameters())
    own = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        torch._foreach_copy_(parameters, list(weights))
        yield
        torch._foreach_copy_(parameters, own)
