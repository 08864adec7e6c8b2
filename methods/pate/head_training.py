"""Many two-layer heads on the same frozen features, trained together: TrPATE's teachers (section IV.A.2).

A head is ``relu(x W + b) V + c``. Heads of an ensemble share public initial weights and a public order of batches. Each
uses only its own records, and nothing is summed over heads, so one record changes one head. SGD moves W only within the
span of the head's records: W = W0 + X' A with one row of A per record. So a teacher with 200 records of 2,048 features
is trained on its 200 x 200 Gram matrix, not its 2,048 x 256 weights, which takes a tenth of the arithmetic and gives
the same weights up to rounding. Heads with more records than features train W itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.core.progress import SILENT, Stage
from bench.methods.shared.settings_checks import HeadSettings
from bench.models.frozen_backbone import DenseHead
from bench.training.ensemble import check_disjoint
from bench.training.processes import one_thread

VERSION = 1  # part of cache keys; increment when the same settings would give different heads
TOGETHER = 2_000  # records of heads trained together: their Gram matrices fit a core's cache
TOGETHER_GPU = 50_000  # the same on a GPU
ROWS = 2_000  # public records per batch of predictions


@dataclass(frozen=True, slots=True)
class Heads:
    """Trained heads, stacked along the first axis of `moved`, `last` and `last_bias`.

    The hidden layer is the shared `start` (features, hidden) plus `moved` (k, features + 1, hidden), the bias last;
    where `own` (k, records, features) is given, `moved` (k, records, hidden) is by record. `last` is (k, hidden,
    classes), `last_bias` (k, 1, classes).
    """

    start: Tensor
    own: Tensor | None
    moved: Tensor
    last: Tensor
    last_bias: Tensor

    def __len__(self) -> int:
        return len(self.moved)

    @property
    def first(self) -> Tensor:
        """The first layer's weights of all heads."""
        if self.own is None:
            return self.moved[:, :-1] + self.start
        return torch.baddbmm(self.start.expand(len(self), -1, -1), self.own.transpose(1, 2), self.moved)

    @property
    def first_bias(self) -> Tensor:
        """The first layer's biases of all heads."""
        return self.moved[:, -1:] if self.own is None else self.moved.sum(1, keepdim=True)

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits (k, n, classes) of every head for `features` (n, features)."""
        count, (width, hidden) = len(self), self.start.shape
        if self.own is not None and self.own.shape[1] * (width + hidden) < width * hidden:
            # Heads move in the span of their records: multiplying by records takes fewer operations than by weights.
            alike = (features @ self.own.reshape(-1, width).T).add_(1.0).view(len(features), count, -1)
            wide = torch.baddbmm((features @ self.start).expand(count, -1, -1), alike.transpose(0, 1), self.moved)
        else:
            wide = torch.baddbmm(self.first_bias, features.expand(count, *features.shape), self.first)
        return torch.baddbmm(self.last_bias, wide.relu_(), self.last)

    def write(self, number: int, head: nn.Module) -> None:
        """Write head `number` into a :class:`bench.models.frozen_backbone.DenseHead` of the same widths."""
        assert isinstance(head, DenseHead)
        assert head.first is not None
        with torch.no_grad():
            head.first.weight.copy_(self.first[number].T)
            head.first.bias.copy_(self.first_bias[number, 0])
            head.last.weight.copy_(self.last[number].T)
            head.last.bias.copy_(self.last_bias[number, 0])


Result = TypeVar("Result", Heads, Tensor)


def _start(features: int, hidden: int, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return both layers' weights at torch's default scale; He's, 2.5 times larger, is too large for few records."""
    first = torch.randn(features, hidden, generator=generator) * math.sqrt(1.0 / (3 * features))
    return first, torch.randn(hidden, classes, generator=generator) * math.sqrt(1.0 / (3 * hidden))


class HeadTraining:
    """The training of one head on each of `parts` (positions) of `features`, float32 (n, d), and `labels`, int64 (n,).

    On a CPU its results do not depend on `threads`; a `stage` advances once per head. Raises :class:`BenchError` for
    parts that overlap or are empty.
    """

    def __init__(
        self, features: Tensor, labels: Tensor, parts: Sequence[NDArray[np.int64]], classes: int,
        settings: HeadSettings, generator: torch.Generator, device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        check_disjoint(parts, len(features))
        self.features, self.labels, self.classes = features, labels, classes
        self.settings, self.device = settings, torch.device(device)
        self.start = _start(features.shape[1], settings.hidden, classes, generator)
        self.longest = max(len(part) for part in parts)
        size = settings.batch_size
        # Batches depend only on the longest part, so heads of every size take the same steps.
        self.slices = [slice(first, min(first + size, self.longest)) for first in range(0, self.longest, size)]
        count = len(self.slices)
        self.order = [int(n) for _ in range(settings.epochs) for n in torch.randperm(count, generator=generator)]
        together = max(1, (TOGETHER if self.device.type == "cpu" else TOGETHER_GPU) // self.longest)
        self.groups = [parts[first : first + together] for first in range(0, len(parts), together)]

    def heads(self, threads: int = 1, stage: Stage = SILENT) -> Iterator[Heads]:
        """Yield the heads in order, in groups."""
        return self._each(self._train, threads, stage)

    def labels_of(self, public: Tensor, threads: int = 1, stage: Stage = SILENT) -> NDArray[np.int64]:
        """Return every head's labels of the `public` features: (parts, m), int64."""
        asked = [rows.to(self.device) for rows in torch.split(public, ROWS)]

        def labels_of(group: Sequence[NDArray[np.int64]]) -> Tensor:
            heads = self._train(group)
            return torch.cat([heads.logits(rows).argmax(2).cpu() for rows in asked], dim=1)

        return torch.cat(list(self._each(labels_of, threads, stage))).numpy()

    def _each(
        self, work: Callable[[Sequence[NDArray[np.int64]]], Result], threads: int, stage: Stage
    ) -> Iterator[Result]:
        for found in _in_order(work, self.groups, threads if self.device.type == "cpu" else 1):
            yield found
            stage.advance(len(found))

    @torch.no_grad()
    def _train(self, group: Sequence[NDArray[np.int64]]) -> Heads:
        """Train heads on their own records, in their span or directly (see the module)."""
        places = np.zeros((len(group), self.longest), dtype=np.int64)
        there = torch.zeros(len(group), self.longest, device=self.device)
        for number, part in enumerate(group):
            places[number, : len(part)] = part
            there[number, : len(part)] = 1.0
        chosen = torch.from_numpy(places)
        # Pad short parts with another head's record, then zero it: `masked_fill` also clears non-finite values.
        own = self.features[chosen].to(self.device).masked_fill_(there[:, :, None] == 0, 0.0)
        labels = self.labels[chosen].to(self.device)
        count, records, width = own.shape
        span = records < width
        first, last = (weights.to(own) for weights in self.start)
        if span:
            # The 1 is the bias: an extra feature that is constant over records.
            inputs = torch.bmm(own, own.transpose(1, 2)).add_(1.0)
            moved = torch.zeros(count, records, self.settings.hidden, device=own.device)
        else:
            inputs = torch.cat([own, torch.ones(count, records, 1, device=own.device)], 2)
            moved = torch.zeros(count, width + 1, self.settings.hidden, device=own.device)
        begun = own @ first
        second, bias = last.expand(count, -1, -1).clone(), torch.zeros(count, 1, self.classes, device=own.device)
        truth = torch.nn.functional.one_hot(labels, self.classes).to(own)
        share = [there[:, s] / there[:, s].sum(1, keepdim=True).clamp_min(1.0) for s in self.slices]
        batches = [
            (inputs[:, s].contiguous(), begun[:, s].contiguous(), truth[:, s].contiguous(), w[:, :, None], s)
            for s, w in zip(self.slices, share, strict=True)
        ]
        for step, number in enumerate(self.order):
            rows, base, wanted, weight, where = batches[number]
            rate = self.settings.lr * 0.5 * (1.0 + math.cos(math.pi * step / len(self.order)))
            before = torch.baddbmm(base, rows, moved)
            hidden = before.relu()
            error = torch.baddbmm(bias, hidden, second).softmax(2).sub_(wanted).mul_(weight)
            back = torch.bmm(error, second.transpose(1, 2)).mul_(before > 0)
            if span:
                moved[:, where].sub_(back, alpha=rate)
            else:
                moved.baddbmm_(rows.transpose(1, 2), back, alpha=-rate)
            second.baddbmm_(hidden.transpose(1, 2), error, alpha=-rate)
            bias.sub_(error.sum(1, keepdim=True), alpha=rate)
        return Heads(first, own if span else None, moved, second, bias)


def _in_order(
    work: Callable[[Sequence[NDArray[np.int64]]], Result], groups: Sequence[Sequence[NDArray[np.int64]]], threads: int
) -> Iterator[Result]:
    """Yield ``work(group)`` for each of `groups`, in order, with `threads` groups in progress."""
    if threads < 2 or len(groups) < 2:
        with one_thread():
            yield from map(work, groups)
        return
    # Matrix products release the GIL; each thread uses one core.
    with one_thread(), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting: deque[Future[Result]] = deque()
        for group in groups:
            waiting.append(pool.submit(work, group))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
