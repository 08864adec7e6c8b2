"""How DP-SGD bounds one example's contribution to a batch's sum: one class per way of clipping.

Each states its `sensitivity`, the largest L2 norm that one example adds to the sum. Noise of
``noise_multiplier * sensitivity`` on every entry of the sum makes a step one sampled Gaussian release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Parameter

from bench.core import margins
from bench.core.errors import BenchError
from bench.privacy.dpsgd.example_gradients import ExampleGradients
from bench.privacy.dpsgd.gradient_forms import (
    Gradients,
    Outer,
    filled,
    keep_largest,
    norms,
    picked,
    weighted_sum,
    without,
)

FILLED = 64
"""Examples in every pass if clipping decides by a comparison; the last pass is padded. Rounding depends on the pass
size, so an absent record could otherwise change which entries of others are kept, or who counts as unclipped."""


@dataclass
class Clipping:
    """One way of clipping, which bounds whole gradients to `norm`; each training works on a copy.

    The copy holds the state that changes between steps.
    """

    norm: float

    @property
    def sensitivity(self) -> float:
        """Return the largest L2 norm that one example adds to :meth:`summed`."""
        return self.norm

    @property
    def pass_size(self) -> int | None:
        """Return the number of examples in every pass, None if it may vary."""
        return None

    def begin(self, names: Sequence[str], parameters: Sequence[Parameter], multiplier: float, batch: int) -> None:
        """Prepare to train `parameters`, called `names`, with this noise multiplier and expected batch size."""

    def before_step(
        self,
        gradients: ExampleGradients,
        loss: Callable[[Tensor, Tensor], Tensor],
        parameters: Sequence[Parameter],
        step: int,
        most: int,
    ) -> None:
        """Prepare `step` from public data, in passes of at most `most` examples."""

    def shapes(self, parameters: Sequence[Parameter]) -> list[torch.Size]:
        """Return the shapes of :meth:`summed`."""
        return [parameter.shape for parameter in parameters]

    def kept(self, samples: Sequence[Gradients]) -> Sequence[Gradients]:
        """Return the part of the gradients to clip; each example's depends only on that example."""
        return samples

    def together(self, count: int) -> Sequence[Sequence[int]]:
        """Return the indices of `count` parameters in groups that are clipped jointly, with equal bounds."""
        return [range(count)]

    def clipped(self, samples: Sequence[Gradients]) -> tuple[Sequence[Gradients], list[Tensor]]:
        """Return the kept part of one pass's gradients, and the clipping factors (n,) of each.

        `samples` has the gradients of each parameter. An example with a non-finite gradient gets zeros. All gradients
        of an example times their factors have a joint norm of at most `norm`.
        """
        samples = self.kept(samples)
        groups = self.together(len(samples))
        lengths = torch.stack([norms(sample) for sample in samples], 1)
        found = [lengths[:, list(places)].norm(dim=1) * margins.FLOAT32_SUMS for places in groups]
        lost = (~torch.stack(found, 1).isfinite().all(1)).nonzero()[:, 0]
        if len(lost):
            # Non-finite gradients cannot be clipped: the record would change the weights without bound.
            samples = [without(sample, lost) for sample in samples]
            found = [length.index_fill(0, lost, 0.0) for length in found]
        factors = [lengths[:, 0]] * len(samples)
        for places, length in zip(groups, found, strict=True):
            for place in places:
                factors[place] = (self.norm / math.sqrt(len(groups)) / (length + 1e-6)).clamp(max=1.0)
        return samples, factors

    def summed(self, samples: Sequence[Gradients]) -> list[Tensor]:
        """Return the sum of the examples' clipped gradients for each parameter."""
        return [weighted_sum(sample, factor) for sample, factor in zip(*self.clipped(samples), strict=True)]

    def released(self, noisy: list[Tensor]) -> list[Tensor]:
        """Return the gradient of each parameter from a batch's noisy :meth:`summed`."""
        return noisy

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state that a resumed training needs; empty if no step changes it."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore :meth:`state_dict`."""


@dataclass
class Flat(Clipping):
    """Clips the whole gradient to `norm`: Abadi et al., CCS 2016, algorithm 1. Sensitivity `norm`."""


@dataclass
class PerLayer(Clipping):
    """Clips each of m layers' gradients to ``norm / sqrt(m)``: McMahan et al., arXiv:1812.06210. Sensitivity `norm`."""

    _layers: Sequence[Sequence[int]] = field(default=(), init=False, repr=False, compare=False)

    def begin(self, names: Sequence[str], parameters: Sequence[Parameter], multiplier: float, batch: int) -> None:
        """Find the layers; shared weights belong to the first layer, whose name they have."""
        layers: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            layers.setdefault(name.rpartition(".")[0], []).append(place)
        self._layers = list(layers.values())

    def together(self, count: int) -> Sequence[Sequence[int]]:
        return self._layers


@dataclass
class TopK(Clipping):
    """Keeps a `share` in (0, 1] of each gradient's entries, the largest, and clips them to `norm`. Sensitivity `norm`.

    All entries get noise, as which ones a record keeps is private. Wang et al., CCS 2021 (arXiv:2103.11109).
    """

    share: float
    _entries: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise BenchError(f"the share of kept entries must lie in (0, 1], not {self.share}.")

    @property
    def pass_size(self) -> int | None:
        return FILLED if self.share < 1 else None

    def begin(self, names: Sequence[str], parameters: Sequence[Parameter], multiplier: float, batch: int) -> None:
        self._entries = sum(parameter.numel() for parameter in parameters)

    def kept(self, samples: Sequence[Gradients]) -> Sequence[Gradients]:
        return keep_largest(samples, math.ceil(self.share * self._entries)) if self.share < 1 else samples


@dataclass
class Adaptive(Clipping):
    """Clips the whole gradient to a norm that tracks the `quantile` of norms: Andrew et al. 2021 (arXiv:1905.03871).

    `norm` is the initial norm. A step also releases the batch's number of unclipped examples with noise of deviation
    `count_noise`, a twentieth of the batch in the paper. With their share, the next step's norm is this one's times
    ``exp(-learning_rate * (share - quantile))``.

    Sensitivity: an example adds 1/2 or -1/2 to the count, and `norm` to the gradients. For a noise multiplier z of the
    whole step, gradients use ``zd = (z**-2 - (2 * count_noise)**-2)**-0.5`` (theorem 1). Then both, in deviations of
    their noise, jointly move by ``1 / z``: one release of sensitivity ``norm * zd / z``, if the count is multiplied by
    ``norm * zd / count_noise``. It is charged like the others' steps with the same z.

    Raises :class:`BenchError` unless `quantile` is in [0, 1] and z below ``2 * count_noise``.
    """

    quantile: float
    learning_rate: float
    count_noise: float
    _first: float = field(init=False, repr=False, compare=False)
    _multipliers: tuple[float, float] = field(default=(1.0, 1.0), init=False, repr=False, compare=False)
    """The noise multipliers of the step and of its gradients."""
    _batch: int = field(default=1, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise BenchError(f"a quantile must lie in [0, 1], not {self.quantile}.")
        self._first = self.norm

    def begin(self, names: Sequence[str], parameters: Sequence[Parameter], multiplier: float, batch: int) -> None:
        """Split the noise between gradients and count."""
        if not multiplier < 2 * self.count_noise < math.inf:
            raise BenchError(
                f"the noise multiplier {multiplier:g} must be below twice the count's noise, {self.count_noise:g}: the "
                "count alone would cost more than a step. Raise count_noise."
            )
        self._multipliers = multiplier, (multiplier**-2 - (2 * self.count_noise) ** -2) ** -0.5
        self._batch = batch

    @property
    def pass_size(self) -> int:
        return FILLED

    @property
    def sensitivity(self) -> float:
        """Return the joint L2 norm of an example's gradient and count, in the units of gradients."""
        whole, of_gradients = self._multipliers
        return self.norm * of_gradients / whole

    def shapes(self, parameters: Sequence[Parameter]) -> list[torch.Size]:
        return [*super().shapes(parameters), torch.Size([1])]

    def summed(self, samples: Sequence[Gradients]) -> list[Tensor]:
        """Return the sums of clipped gradients and, at the end, the count times its unit: (1,)."""
        present = len(samples[0].left if isinstance(samples[0], Outer) else samples[0])
        # On a GPU, how a norm rounds may depend on the number of examples too.
        kept, factors = self.clipped([filled(sample, FILLED) for sample in samples])
        kept = [picked(sample, slice(present)) for sample in kept]
        factors = [factor[:present] for factor in factors]
        count = (factors[0] == 1).to(factors[0]).sub(0.5).sum(0, keepdim=True)
        gradients = [weighted_sum(sample, factor) for sample, factor in zip(kept, factors, strict=True)]
        return [*gradients, count * self.count_unit]

    def released(self, noisy: list[Tensor]) -> list[Tensor]:
        """Return the gradients, and set the next step's norm from the count, within a total factor of e^10."""
        *gradients, count = noisy
        share = 0.5 + float(count) / self.count_unit / self._batch
        change = math.log(self.norm / self._first) - self.learning_rate * (share - self.quantile)
        self.norm = self._first * math.exp(min(max(change, -10.0), 10.0))
        return gradients

    def state_dict(self) -> dict[str, Tensor]:
        return {"norm": torch.tensor(self.norm, dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.norm = float(state["norm"])

    @property
    def count_unit(self) -> float:
        """The length of one record's vote on the norm, in units of the gradients."""
        return self.norm * self._multipliers[1] / (self.count_noise * margins.FLOAT32)
