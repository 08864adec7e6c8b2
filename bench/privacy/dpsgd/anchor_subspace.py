"""Clips two parts of each gradient separately, for GEP: inside a subspace of public gradients, and orthogonal to it.

Yu et al., ICLR 2021 (arXiv:2102.12677), algorithm 1. The subspace is spanned by one power iteration on gradients of
public examples, for each group of consecutive parameters. The part in it is clipped to one bound, the rest to another.

The authors release the sum of the first parts (coordinates in the subspace) and that of the rests, both with noise, on
one batch. The parts are orthogonal, so here both are one vector, each in units of its bound, with the noise of one
Gaussian release; as the rest is orthogonal to the subspace, its noise there is dropped, as post-processing may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.core.errors import BenchError
from bench.core.transforms import as_float
from bench.privacy.dpsgd.clipping import Clipping
from bench.privacy.dpsgd.example_gradients import ExampleGradients
from bench.privacy.dpsgd.gradient_forms import Gradients, picked

_LARGEST = 100.0
"""Largest ratio of the bounds, and of a gradient to the larger bound. Beyond it, rounding errors would be clipped like
a residual, and rounding depends on the batch: a record would change the parts of others."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The subspace of one step: an orthonormal basis (parameters, directions) per group, and the parts' bounds."""

    bases: Sequence[Tensor]
    bounds: tuple[float, float]

    def __post_init__(self) -> None:
        low, high = sorted(self.bounds)
        if not 0 < high <= _LARGEST * low < math.inf:
            raise BenchError(f"the bounds of two parts must be within a factor of {_LARGEST:g}, not {low} and {high}.")

    def inside(self, rows: Tensor) -> Tensor:
        """Return `rows` (n, parameters) projected onto the subspace."""
        found, first = torch.empty_like(rows), 0
        for basis in self.bases:
            place = slice(first, first + len(basis))
            found[:, place] = rows[:, place] @ basis @ basis.T
            first += len(basis)
        return found

    def clipped(self, samples: Sequence[Gradients], norm: float) -> list[Tensor]:
        """Return gradients (n, *shape) with both parts clipped to their bounds, in units of these, times a constant.

        The constant gives a gradient that both bounds clip the norm `norm`.
        """
        formed = [picked(sample, slice(None)) for sample in samples]
        sizes = [math.prod(one.shape[1:]) for one in formed]
        rows = _rows(formed)
        rows *= (_LARGEST * max(self.bounds) / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)
        inside = self.inside(rows)
        rest = rows.sub_(inside)  # in place, here and below, because the rows are large
        first, second = (
            norm / math.sqrt(2) / part.norm(dim=1, keepdim=True).clamp(min=bound)
            for part, bound in zip((inside, rest), self.bounds, strict=True)
        )
        joined = rest.mul_(second).add_(inside.mul_(first))
        return [piece.reshape(one.shape) for piece, one in zip(torch.split(joined, sizes, dim=1), formed, strict=True)]

    def restored(self, sums: Sequence[Tensor], norm: float) -> list[Tensor]:
        """Return sums of :meth:`clipped`, noisy or not, in the units of gradients."""
        row = torch.cat([one.reshape(1, -1) for one in sums], 1)
        inside = self.inside(row)
        first, second = (bound * math.sqrt(2) / norm for bound in self.bounds)
        found = torch.split((row * second + inside * (first - second))[0], [one.numel() for one in sums])
        return [piece.view_as(one) for piece, one in zip(found, sums, strict=True)]


@dataclass
class Subspace(Clipping):
    """Clips a gradient's part in a subspace and the residual to `bounds`; at each step public gradients span a new one.

    They are taken on public `images` (m, ...) and `labels` (m,), which may be random. `directions` are divided among
    `groups` of consecutive parameters. `seed` starts the power iterations. Sensitivity: both parts, each divided by its
    bound, have a joint norm of at most sqrt(2), which a constant scales to the first bound. So the noise on a part is
    ``sqrt(2) * noise_multiplier`` times its bound.
    """

    norm: float = field(init=False, repr=False)
    images: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    directions: int
    groups: int
    bounds: tuple[float, float]
    seed: int
    parts: Parts = field(init=False, repr=False, compare=False)
    """The parts of the current step."""

    def __post_init__(self) -> None:
        self.norm = self.bounds[0]

    def kept(self, samples: Sequence[Gradients]) -> Sequence[Gradients]:
        """Return the sums of both clipped parts; clipped again if rounding takes a norm beyond the bound."""
        return self.parts.clipped(samples, self.norm)

    def released(self, noisy: list[Tensor]) -> list[Tensor]:
        return self.parts.restored(noisy, self.norm)

    def before_step(
        self,
        gradients: ExampleGradients,
        loss: Callable[[Tensor, Tensor], Tensor],
        parameters: Sequence[torch.nn.Parameter],
        step: int,
        most: int,
    ) -> None:
        """Find the subspace from public gradients at the current weights."""
        device = parameters[0].device
        generator = torch.Generator().manual_seed((self.seed + step) % 2**63)
        groups = torch.tensor_split(torch.empty(sum(parameter.numel() for parameter in parameters)), self.groups)
        starts = [
            torch.randn(len(group), min(-((number - self.directions) // self.groups), len(group)), generator=generator)
            for number, group in enumerate(groups)
        ]
        starts = [start.to(parameters[0]) for start in starts]
        spans = [torch.zeros_like(start) for start in starts]
        for images, labels in zip(torch.split(self.images, most), torch.split(self.labels, most), strict=True):
            gradients.backward(loss(gradients.model(as_float(images.to(device))), labels.to(device)), len(images))
            rows = _rows([picked(parameter.grad_sample, slice(None)) for parameter in parameters])  # type: ignore[attr-defined]
            for parameter in parameters:
                parameter.grad_sample = None  # type: ignore[attr-defined]
            for span, start, group in zip(spans, starts, torch.tensor_split(rows, self.groups, dim=1), strict=True):
                span += group.T @ (group @ start)
        self.parts = Parts([torch.linalg.qr(span).Q for span in spans], self.bounds)


def _rows(formed: Sequence[Tensor]) -> Tensor:
    """Return gradients (n, *shape) of all parameters as (n, parameters)."""
    return torch.cat([one.reshape(len(one), math.prod(one.shape[1:])) for one in formed], 1)
