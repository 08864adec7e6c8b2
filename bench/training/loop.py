"""Supervised training and prediction; on a CPU, seed and number of threads determine the model byte for byte."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, Self

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from bench.core.errors import BenchError
from bench.core.progress import SILENT, Stage
from bench.core.seeds import seeded, seeded_with
from bench.core.transforms import as_float, mixed, shifted
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.by_record import in_equal_batches
from bench.training.early_stopping import Settle, holding, settling_for

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""Maps float images (n, channels, height, width) and a generator to images of the same shape."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Training settings, with exactly one of `steps` and `epochs`; `lr` is the optimiser's, unscaled.

    `schedule`: ``constant``, ``cosine`` or ``linear`` to zero, or ``staircase``: times `decay_factor` every
    `decay_steps`. `order`: ``shuffle`` draws a permutation per epoch; ``sequential`` keeps the records' order and moves
    a short last batch back to full size, as the published PATE code does. `weight_decay` applies to all parameters,
    `dense_decay` (half the squared L2 norm) to all dense layers but the last. With `ema`, training returns the weight
    average of that decay, warmed up as in TensorFlow: min(ema, (1 + step) / (10 + step)). `shift` is the largest random
    translation in pixels. `mixup` is the alpha of :func:`bench.core.transforms.mixed`, for soft labels; 0: none.
    `settle` stops early, by public images only.
    """

    steps: int | None = None
    epochs: float | None = None
    batch_size: int = 128
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    dense_decay: float = 0.0
    schedule: Literal["constant", "cosine", "linear", "staircase"] = "cosine"
    decay_steps: int = 0
    decay_factor: float = 0.1
    order: Literal["shuffle", "sequential"] = "shuffle"
    ema: float | None = None
    label_smoothing: float = 0.0
    shift: int = 0
    settle: Settle | None = None
    mixup: float = 0.0

    def __repr__(self) -> str:
        """Name every setting, but `settle` and `mixup` only if set, since keys of older artefacts contain this text."""
        later = [name for name in ("settle", "mixup") if not getattr(self, name)]
        named = [entry.name for entry in fields(self) if entry.name not in later]
        return f"FitSettings({', '.join(f'{name}={getattr(self, name)!r}' for name in named)})"

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise BenchError("training needs exactly one of steps and epochs.")
        length = self.steps if self.steps is not None else self.epochs
        if length is None or not length > 0:
            raise BenchError(f"training needs a positive number of steps or epochs, not {length}.")
        if self.batch_size < 1:
            raise BenchError(f"batch_size must be at least 1, not {self.batch_size}.")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise BenchError(f"lr must be positive and finite, not {self.lr}.")
        if self.schedule == "staircase" and self.decay_steps < 1:
            raise BenchError("schedule 'staircase' needs decay_steps of at least 1.")

    def total_steps(self, records: int) -> int:
        """Return the number of steps for training on `records` records."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * math.ceil(records / self.batch_size)))

    def rate(self, step: int, total: int) -> float:
        """Return the learning rate of `step` (from 0) of `total`."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1.0 + math.cos(math.pi * step / total))
        if self.schedule == "linear":
            return self.lr * (1.0 - step / total)
        if self.schedule == "staircase":
            return self.lr * self.decay_factor ** (step // self.decay_steps)
        return self.lr


class Share:
    """Part `rank` (from 0) of every batch, for one of the `processes` that train copies of one net."""

    def __init__(self, rank: int, processes: int) -> None:
        self.rank, self.processes = rank, processes
        self._weight = 1.0

    def mine(self, rows: Tensor) -> Tensor:
        """Return this process's rows of a batch; with fewer rows than processes, some get a row of weight 0."""
        own = rows.tensor_split(self.processes)[self.rank]
        self._weight = len(own) / len(rows)
        return own if len(own) else rows[:1]

    def weighed(self, loss: Tensor) -> Tensor:
        """Return the mean `loss` of the rows, weighted by their share of the batch."""
        return loss * self._weight

    def add_up(self, model: nn.Module) -> None:
        """Replace the gradients of `model` by their sums over the processes, in one exchange."""
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        every = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(every)
        for gradient, total in zip(gradients, torch.split(every, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))

    def reseed(self) -> None:
        """Make the random layers draw different numbers in each process."""
        torch.manual_seed(torch.initial_seed() + self.rank)

    def average_statistics(self, model: nn.Module) -> None:
        """Replace the running statistics of `model` by their means over the processes."""
        for buffer in model.buffers():
            if buffer.is_floating_point():
                distributed.all_reduce(buffer)
                buffer.div_(self.processes)


def fit(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: FitSettings,
    generator: torch.Generator,
    *,
    device: torch.device | str = "cpu",
    augment: Augment | None = None,
    bf16: bool = False,
    must_converge: bool = True,
    stage: Stage = SILENT,
    checkpoint: Checkpoint | None = None,
    watched: Tensor | None = None,
    share: Share | None = None,
    stop: Callable[[int], bool] | None = None,
    loss_of: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> nn.Module:
    """Train `model` in place and return it, in evaluation mode, on `device`.

    `images` (n, channels, height, width) is uint8 or float in [0, 1]; `labels` is int64 (n,) or soft, float (n,
    classes) with rows that sum to 1. `augment` follows the shift. `stage` advances at every step. Training resumes from
    `checkpoint`, which the caller clears. `watched` are the public images for `settle`. With `share`, which cannot be
    combined with a checkpoint, this process trains on its part of each batch (:mod:`bench.training.data_parallel`).
    Training ends before a step if ``stop(steps done)``, which must draw nothing at random, is true. ``loss_of(logits,
    labels)`` replaces the mean cross-entropy; it gets the labels of a batch unchanged. If batch normalisation cannot
    train on one image, a last batch of one is dropped, and a single record trains the other layers. `bf16`: see
    :mod:`bench.core.precision`. Raises :class:`BenchError` for an empty set, labels of another length or, if
    `must_converge`, a loss that is not finite.
    """
    device = torch.device(device)
    count = int(images.shape[0])
    if count == 0 or labels.shape[0] != count:
        raise BenchError(f"training needs as many labels as images, at least one; there are {count} images.")
    total = settings.total_steps(count)
    layout = _layout(model, images)
    _place(model, device, layout).train()
    images, labels = images.to(device), labels.to(device)
    optimizer = make_optimizer(model, settings)
    decayed = dense_weights(model) if settings.dense_decay else []
    average = [p.detach().clone() for p in model.parameters()] if settings.ema is not None else []
    settling = settling_for(settings.settle, watched)
    least = 1
    # An error would let the number of records, which is private for a client, decide whether there is a model.
    if 1 in (count, count % settings.batch_size) and not _trains_on_one(model, images[:1], device):
        least = min(count, 2)
        for norm in _batch_norms(model) if count == 1 else ():
            norm.eval()
    batches = Batches(count, settings.batch_size, None if settings.order == "sequential" else generator, least=least)
    held: dict[str, Part] = {
        "model": model, "optimizer": optimizer, "average": average, "order": generator, "batches": batches,
    }  # fmt: skip
    if settling is not None:
        held["settling"] = settling
    loop = Loop(checkpoint, held, [images, labels, watched], device)
    loss = torch.zeros(())
    with seeded(generator, device):
        if share is not None:
            share.reseed()
        for step in range(loop.start(stage), total):
            if stop is not None and stop(step):
                break
            index = next(batches).to(device)
            batch = images[index]
            if settings.shift:
                batch = shifted(batch, settings.shift, generator)
            batch = as_float(batch)
            if augment is not None:
                batch = augment(batch, generator)
            if share is not None:
                batch, index = share.mine(batch), share.mine(index)
            targets = labels[index]
            if settings.mixup:
                batch, targets = mixed(batch, targets, settings.mixup)
            batch = batch.contiguous(memory_format=layout)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                logits = model(batch)
            if loss_of is not None:
                loss = loss_of(logits.float(), targets)
            else:
                loss = functional.cross_entropy(logits.float(), targets, label_smoothing=settings.label_smoothing)
            for weight in decayed:
                loss = loss + 0.5 * settings.dense_decay * weight.square().sum()
            for group in optimizer.param_groups:
                group["lr"] = settings.rate(step, total)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(share.weighed(loss) if share is not None else loss)
            if share is not None:
                share.add_up(model)
            optimizer.step()
            if average and settings.ema is not None:
                decay = min(settings.ema, (1.0 + step) / (10.0 + step))
                torch._foreach_lerp_(average, list(model.parameters()), 1.0 - decay)
            stage.advance()
            if settling is not None and watched is not None and settling.due(step):
                with holding(model, average):
                    now = predict(model, watched, device=device, bf16=bf16).argmax(1)
                if bool(settling.look(now[None])):
                    break
            loop.done(step + 1, total)
    if must_converge and not math.isfinite(float(loss.detach())):
        raise BenchError("training diverged: the loss is not finite. Lower the learning rate (lr).")
    with torch.no_grad():
        for parameter, mean in zip(model.parameters(), average, strict=bool(average)):
            parameter.copy_(mean)
    return model.eval()


class Batches:
    """Endless batches of the numbers 0..count-1; the state is the rest of the permutation.

    Each pass draws a permutation from `generator`. A short last batch is dropped if below `least`, and filled from the
    next pass if `joined`. Without a generator, numbers come in order and a short last batch moves back to full size.
    """

    def __init__(
        self, count: int, size: int, generator: torch.Generator | None, *, least: int = 1, joined: bool = False
    ) -> None:
        self._count, self._size, self._generator = count, size if joined else min(size, count), generator
        self._least, self._joined = least, joined
        self._left = torch.empty(0, dtype=torch.long, device="cpu" if generator is None else generator.device)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Tensor:
        """Return the next batch, int64 (at most `size`,)."""
        while len(self._left) < (self._size if self._joined else self._least):
            new = self._permutation()
            self._left = torch.cat([self._left, new]) if self._joined else new
        batch, self._left = self._left[: self._size], self._left[self._size :]
        if self._generator is None and len(batch) < self._size:
            return torch.arange(self._count - self._size, self._count)
        return batch

    def state_dict(self) -> dict[str, Tensor]:
        """Return the rest of the permutation."""
        return {"left": self._left}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state of :meth:`state_dict`."""
        self._left = state["left"].to(self._left.device)

    def _permutation(self) -> Tensor:
        if self._generator is None:
            return torch.arange(self._count)
        return torch.randperm(self._count, generator=self._generator, device=self._generator.device)


@torch.no_grad()
def predict(
    model: nn.Module, images: Tensor, batch_size: int = 500, device: torch.device | str = "cpu",
    bf16: bool = False, by_record: bool = False,
) -> Tensor:  # fmt: skip
    """Return the logits (n, classes) of `model` in evaluation mode, float32 on the CPU; restore its mode.

    A batch has `batch_size` images, but at most 64 MiB of pixels, because activations take many times that. With
    `by_record`, an image's logits are bit-identical whatever the number of images (:mod:`bench.training.by_record`).
    """
    device = torch.device(device)
    layout = _layout(model, images)
    batch_size = max(1, min(batch_size, 2**24 // max(1, math.prod(images.shape[1:]))))
    training = model.training
    _place(model, device, layout).eval()

    def logits(some: Tensor) -> Tensor:
        batch = as_float(some.to(device)).contiguous(memory_format=layout)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            found: Tensor = model(batch)
        return found.float().cpu()

    batches = (images[start : start + batch_size] for start in range(0, len(images), batch_size))
    found = list(in_equal_batches(logits, images, batch_size) if by_record else map(logits, batches))
    model.train(training)
    return torch.cat(found) if found else torch.empty(0, int(getattr(model, "num_classes", 0)))


def accuracy(
    model: nn.Module, images: Tensor, labels: Tensor, batch_size: int = 500, device: torch.device | str = "cpu"
) -> float:
    """Return the accuracy in [0, 1] for `labels`, int64 (n,); raise :class:`BenchError` without records."""
    if len(labels) == 0:
        raise BenchError("accuracy needs at least one record.")
    return float((predict(model, images, batch_size, device).argmax(1) == labels.cpu()).double().mean())


def make_optimizer(model: nn.Module, settings: FitSettings) -> torch.optim.Optimizer:
    """Return the optimiser of `settings`, fused, which is fastest for small nets."""
    if settings.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), settings.lr, weight_decay=settings.weight_decay, fused=True)
    return torch.optim.SGD(
        model.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay,
        nesterov=settings.nesterov, fused=True,
    )  # fmt: skip


def dense_weights(model: nn.Module) -> list[Tensor]:
    """Return the weights that the published PATE code decays: all linear layers' but the last one's."""
    return [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)][:-1]


def _batch_norms(model: nn.Module) -> list[nn.Module]:
    return [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def _trains_on_one(model: nn.Module, image: Tensor, device: torch.device) -> bool:
    """Return whether `model` can train on a batch of the shape of `image`: batch normalisation of a 1x1 map cannot."""
    if not _batch_norms(model):
        return True
    with torch.no_grad(), seeded_with(0, device):
        try:
            copy.deepcopy(model).train()(as_float(torch.zeros_like(image)))
        except ValueError:
            return False
    return True


def _place(model: nn.Module, device: torch.device, layout: torch.memory_format) -> nn.Module:
    return model.to(device=device).to(memory_format=layout)  # type: ignore[call-overload,no-any-return]


def _layout(model: nn.Module, images: Tensor) -> torch.memory_format:
    """Return channels last for convolutional nets of images: 1.3 times faster on a CPU, more on a GPU."""
    convolutional = any(isinstance(layer, nn.Conv2d) for layer in model.modules())
    return torch.channels_last if convolutional and len(images.shape) == 4 else torch.contiguous_format
