"""Tests that DP-SGD's gradients are those of single examples, on random examples before it reads private ones."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bench.core.errors import BenchError
from bench.core.seeds import seeded_with
from bench.core.transforms import as_float
from bench.privacy.dpsgd.example_gradients import ExampleGradients, generator_states

Loss = Callable[[Tensor, Tensor], Tensor]

PROBED = 16
"""Random examples whose gradients are computed both in a batch and alone; an eighth may differ by rounding."""
TOLERANCE = {"cpu": 1e-3, "cuda": 1e-2}  # convolutions on a GPU round to TF32
"""Largest distance between the two gradients relative to the larger, ignoring 1e-4 of the clipping norm."""
REDRAWN = 2
"""Passes, each with random numbers of its own, whose other examples are replaced: some nets mix only some batches."""


def check_examples(
    gradients: ExampleGradients, images: Tensor, labels: Tensor, loss: Loss, norm: float, pass_size: int
) -> None:
    """Raise :class:`BenchError` unless each example's gradient equals autograd's for it alone, whatever the others.

    `loss` maps (outputs, labels) to a mean, `norm` is the clipping norm, and a full pass has `pass_size` examples. The
    examples are random, of the shape and type of `images` and `labels`, whose values are not read: no private
    record decides whether a student is released. Gradients alone are compared with dropout off, those beside other
    examples with it on.
    """
    model, draws = gradients.model, torch.Generator().manual_seed(secrets.randbits(63))
    device = next(model.parameters()).device
    inputs = as_float(random_images(images, PROBED, draws).to(device))
    buffers, before = buffers_of(model), generator_states(device)

    def random() -> bool:
        return not all(map(torch.equal, before, generator_states(device)))

    def together_of(targets: Tensor) -> Tensor:
        _forget(model)
        gradients.backward(loss(model(inputs), targets), PROBED)
        found = gradients.formed(slice(None))
        _forget(model)
        return found

    with torch.random.fork_rng([device] if device.type == "cuda" else []), contextlib.ExitStack() as restoring:
        with torch.no_grad():
            outputs = model(inputs)
        # Use each label twice, since a loss may couple examples of the same class.
        some = torch.randint(outputs.shape[1] if outputs.dim() > 1 else 2, (-(-PROBED // 2),), generator=draws)
        targets = some.repeat(2)[:PROBED].to(device, labels.dtype)
        together = together_of(targets)
        if random():
            restoring.enter_context(_without_dropout(model))
            before = generator_states(device)
            together = together_of(targets)
        rows = [gradients.alone(loss(model(inputs[[row]]), targets[[row]])) for row in range(PROBED)]
        if random():
            raise BenchError(
                "the loss, or a layer with weights, draws random numbers, so gradients cannot be compared. Use "
                "layers for dropout (torch.nn.Dropout), or none."
            )
    alone = torch.stack(rows)
    coupled = int(_apart(together, alone, norm).sum()) > PROBED // 8
    for _ in range(REDRAWN):
        coupled = coupled or _changes_with_the_others(gradients, images, labels, loss, norm, pass_size, outputs, draws)
    if not all(is_kept(getattr(layer, name), value) for layer, name, value in buffers):
        raise BenchError(
            "a pass changed the student's buffers, which would release statistics of private batches "
            "without noise. Choose a net without running statistics, or with GroupNorm or LayerNorm."
        )
    if coupled:
        raise BenchError(
            "the student or its loss couples the examples of a batch, or hooks change a layer's output: "
            "an example's gradient differs between its batch and alone, or with the other examples, so clipping does "
            "not bound the effect of a record. Use a loss that is the mean over examples, and a net that mixes no "
            "examples (no batch statistics or mixup) and has no such hooks."
        )


def _changes_with_the_others(
    gradients: ExampleGradients, images: Tensor, labels: Tensor, loss: Loss, norm: float, size: int, outputs: Tensor,
    draws: torch.Generator,
) -> bool:  # fmt: skip
    """Return whether gradients of a pass's examples change when all others are replaced and the random draws repeat."""
    device, classes = outputs.device, outputs.shape[1] if outputs.dim() > 1 else 2
    kept = torch.randperm(size, generator=draws)[: PROBED // 2]
    (inputs, targets), others = (
        (random_images(images, size, draws), torch.randint(classes, (size,), generator=draws)) for _ in range(2)
    )
    for given, replacing in zip((inputs, targets), others, strict=True):
        replacing[kept] = given[kept]
    seed, found = secrets.randbits(63), list[Tensor]()
    for some, its_targets in ((inputs, targets), others):
        with seeded_with(seed, device):
            scores = gradients.model(as_float(some.to(device)))
            gradients.backward(loss(scores, its_targets.to(device, labels.dtype)), size)
        found.append(gradients.formed(kept.tolist()))
        _forget(gradients.model)
    first, second = found
    return bool(_apart(first, second, norm).any())


def _apart(one: Tensor, other: Tensor, norm: float) -> Tensor:
    """Return which rows of two sets of gradients (n, numbers) differ by more than rounding."""
    largest: Tensor = torch.maximum(one.norm(dim=1), other.norm(dim=1))
    apart: Tensor = (one - other).norm(dim=1) > TOLERANCE[one.device.type] * largest + 1e-4 * norm
    apart |= one.isfinite().all(1) != other.isfinite().all(1)
    return apart


def _forget(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad_sample = parameter.grad = None  # type: ignore[attr-defined]


def random_images(images: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """Return `count` random examples of the shape and type of `images`, whose values are not read."""
    shape = count, *images.shape[1:]
    floats = images.is_floating_point()
    drawn = torch.rand(shape, generator=draws) if floats else torch.randint(256, shape, generator=draws)
    return drawn.to(images.dtype)


@contextlib.contextmanager
def _without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Put layers without weights in evaluation mode; the others may mix examples only in training mode."""
    off = [one for one in model.modules() if one.training and not list(one.parameters(recurse=False))]
    for layer in off:
        layer.training = False
    try:
        yield
    finally:
        for layer in off:
            layer.training = True


Buffer = tuple[torch.nn.Module, str, Tensor]


def buffers_of(model: torch.nn.Module) -> list[Buffer]:
    """Return each buffer's module, name and a copy of it."""
    return [(m, name, value.clone()) for m in model.modules() for name, value in m.named_buffers(recurse=False)]


def is_kept(value: Tensor, kept: Tensor) -> bool:
    """Return whether a buffer has its former value."""
    return value.shape == kept.shape and bool(((value == kept) | (kept != kept)).all())  # NaN equals NaN here
