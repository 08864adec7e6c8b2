"""Many small nets as one program: teachers of an ensemble train and predict side by side on one device.

Weights are stacked, (teachers, ...). Each teacher has the initial weights, batches and shifts of
:func:`bench.training.teacher.train_teacher`: in float32 it ends with the loop's weights up to rounding.

A teacher does not depend on the others' records. Shapes and kernels follow from public facts: the net, the number of
teachers, the sizes of their parts, the free memory. No operation mixes teachers, so non-finite weights affect no other
teacher; backward starts from the sum of losses, which gives each the gradient 1. A settled teacher stays in the
program, ignored: a smaller one could round differently. (Some GPU kernels sum a net's own terms in no fixed order.)
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bench.core.errors import BenchError
from bench.core.precision import arithmetic
from bench.core.seeds import Streams, seeded
from bench.core.transforms import as_float, moved
from bench.models.build import build
from bench.training.divergence import descend
from bench.training.early_stopping import settling_for
from bench.training.loop import Batches, FitSettings, dense_weights, make_optimizer
from bench.training.processes import one_thread
from bench.training.stacked_convolution import convolve
from bench.training.teacher import Arrays, Labels, TeacherTask

VERSION = 2  # Increment when the same task would give different weights; part of the artefacts' names.
ROWS = 500  # Images per batch of predictions.
USED = 0.6  # Share of the free memory to plan for; the estimate omits buffers of convolutions.

Shape = tuple[int, int, int]
Named = dict[str, Tensor]


def why_not(task: TeacherTask, shape: Shape) -> str:
    """Return why `task` cannot run as one program, empty if it can, after trying two nets on black images."""
    with torch.random.fork_rng([]):
        net = _build(task, shape).train()
        if len(list(net.named_parameters(remove_duplicate=False))) != len(list(net.parameters())):
            return "layers of the net share weights"
        images = torch.zeros(3, *shape)
        before = {name: buffer.clone() for name, buffer in net.named_buffers()}
        state = torch.get_rng_state()
        try:
            tried = copy.deepcopy(net)
            tried(images)
        except ValueError as error:
            return f"the net cannot be tried: {error}"
        if not torch.equal(torch.get_rng_state(), state):
            return "the net draws random numbers while it is trained"
        if any(not torch.equal(buffer, before[name]) for name, buffer in tried.named_buffers()):
            return "the net keeps statistics of its batches"
        stacked = {name: torch.stack([p.detach(), p.detach()]).requires_grad_() for name, p in _trained(net)}
        try:
            logits = outputs_of(net, stacked, {}, images.expand(2, *images.shape), bf16=False)
            torch.autograd.backward(logits.sum())
        except (RuntimeError, ValueError, TypeError) as error:
            return f"torch cannot batch the net: {str(error).splitlines()[0]}"
    return ""


def train_together(
    task: TeacherTask,
    images: Tensor,
    labels: Tensor,
    parts: Sequence[Labels],
    streams: Sequence[Streams],
    *,
    at_once: int | None = None,
    watched: Tensor | None = None,
    tell: Callable[[float], None] | None = None,
) -> Arrays:
    """Train one teacher per part, each from its own `streams`; return their weights, (teachers, ...) by name.

    Teachers with parts of equal size share a program, at most `at_once` of them (None: as memory allows). `watched` are
    the public images for `settle`. ``tell(trained)`` gets the number of teachers so far, with fractions for those in
    training. Raises :class:`BenchError` for a net that :func:`why_not` rejects.
    """
    shape = _shape(images)
    reason = why_not(task, shape)
    if reason:
        raise BenchError(f"the teachers cannot be trained as one program: {reason}.")
    sizes = np.array([len(part) for part in parts])
    most = at_once if at_once is not None else fitting(task, shape, int(sizes.max()))
    found: list[Arrays] = [{} for _ in parts]

    def told(share: float) -> None:
        if tell is not None:
            tell(sum(map(bool, found)) + share * len(group))

    for size in np.unique(sizes):
        for group in evenly(np.flatnonzero(sizes == size).tolist(), most):
            own = [parts[i] for i in group], [streams[i] for i in group]
            made = _spared(task, images, labels, *own, watched, told)
            for place, number in enumerate(group):
                found[number] = {name: array[place] for name, array in made.items()}
    return {name: np.stack([state[name] for state in found]) for name in found[0]}


def logits_together(task: TeacherTask, states: Arrays, images: Tensor) -> Tensor:
    """Return the logits (teachers, n, classes) of `images` from `states`, (teachers, ...) by name."""
    shape, device = _shape(images), torch.device(task.device)
    with torch.random.fork_rng([]):  # its weights are overwritten
        net = _build(task, shape).to(device).eval()
    known = dict(net.named_parameters()).keys() | dict(net.named_buffers()).keys()
    count = len(next(iter(states.values())))
    most = fitting(task, shape, 1, rows=ROWS)
    found = torch.empty(count, len(images), task.classes)
    with torch.no_grad(), arithmetic(task.precision, device):
        for group in evenly(list(range(count)), most):
            rows = slice(group[0], group[-1] + 1)
            held = {name: torch.from_numpy(array[rows]) for name, array in states.items() if name in known}
            stacked = {name: value.to(device) for name, value in held.items()}
            for start in range(0, len(images), ROWS):
                batch = as_float(images[start : start + ROWS].to(device))
                logits = outputs_of(net, stacked, {}, batch, bf16=task.precision == "bf16", same=True)
                found[rows, start : start + ROWS] = logits.float().cpu()
    return found


def evenly(numbers: list[int], most: int) -> list[list[int]]:
    """Cut `numbers` into the fewest runs of at most `most` each, of nearly equal length."""
    runs = math.ceil(len(numbers) / max(1, most))
    ends = [round(i * len(numbers) / runs) for i in range(runs + 1)]
    return [numbers[first:last] for first, last in pairwise(ends)]


def fitting(task: TeacherTask, shape: Shape, part: int, *, rows: int = 0) -> int:
    """Return how many teachers fit the free memory to train on `part` records or predict `rows` images; an estimate."""
    with torch.random.fork_rng([]):
        net = _build(task, shape)
        weights = sum(p.numel() * p.element_size() for p in net.parameters())
        image = _kept(net, shape, 3) - _kept(net, shape, 2)
    batch = rows or min(task.settings.batch_size, part)
    # In training: weights, gradients, average, two moments and a copy; activations and their gradients.
    each = weights * (1 if rows else 6) + 2 * image * batch + (0 if rows else part * math.prod(shape))
    return max(1, int(USED * free_memory(task.device) / each))


def free_memory(device: torch.device | str) -> int:
    """Return the free memory of `device` in bytes, including what torch keeps in reserve."""
    device = torch.device(device)
    if device.type == "cuda":
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + int(reserve)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _kept(net: nn.Module, shape: Shape, count: int) -> int:
    """Return the bytes that a forward pass of `count` images keeps for the backward pass, weights included."""
    kept: list[Tensor] = []  # kept alive, so that no two share an address

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(torch.zeros(count, *shape))
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}.values())


def _spared(
    task: TeacherTask, images: Tensor, labels: Tensor, parts: list[Labels], streams: list[Streams],
    watched: Tensor | None, told: Callable[[float], None],
) -> Arrays:  # fmt: skip
    try:
        return train_group(task, images, labels, parts, streams, watched, told)
    except torch.OutOfMemoryError:
        if len(parts) == 1:
            raise
    torch.cuda.empty_cache()
    half = len(parts) // 2
    halves = [
        _spared(task, images, labels, parts[rows], streams[rows], watched, lambda _: None)
        for rows in (slice(half), slice(half, None))
    ]
    return {name: np.concatenate([made[name] for made in halves]) for name in halves[0]}


@dataclass(slots=True)
class _Stack:
    """Nets of one kind: a template, the stacked trained weights, the stacked buffers in which the nets differ."""

    net: nn.Module
    weights: Named
    others: Named


def train_group(
    task: TeacherTask, images: Tensor, labels: Tensor, parts: list[Labels], streams: list[Streams],
    watched: Tensor | None, told: Callable[[float], None],
) -> Arrays:  # fmt: skip
    """Train one teacher per part in `parts` (equally long lists of rows) together; see :func:`train_together`.

    `told` gets the share of the training that is done.
    """
    settings, device, bf16 = task.settings, torch.device(task.device), task.precision == "bf16"
    count, size = len(parts), len(parts[0])
    stack = _start(task, _shape(images), streams, device)
    names, weights = list(stack.weights), list(stack.weights.values())
    optimizer = make_optimizer(nn.ParameterList(weights), settings)
    decay = {id(weight) for weight in dense_weights(stack.net)} if settings.dense_decay else set()
    decayed = [stack.weights[name] for name, weight in _trained(stack.net) if id(weight) in decay]
    average = [weight.detach().clone() for weight in weights] if settings.ema is not None else []
    own = torch.empty(count, size, *images.shape[1:], dtype=images.dtype, device=device)
    for place, part in enumerate(parts):  # one part at a time, so that the host holds no more than one
        own[place] = images[torch.from_numpy(part)].to(device)
    targets = labels[torch.from_numpy(np.concatenate(parts))].to(device).view(count, size)
    number = torch.arange(count, device=device)[:, None]
    total = settings.total_steps(size)
    settling = settling_for(settings.settle, watched, count)
    settled, done = [weight.detach() for weight in weights], torch.zeros(count, dtype=torch.bool)

    def loss_of(now: Named, batch: Tensor, wanted: Tensor) -> Tensor:
        logits = outputs_of(stack.net, now, stack.others, batch, bf16=bf16).float()
        losses = functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), label_smoothing=settings.label_smoothing, reduction="none"
        )
        loss = losses.view(count, -1).mean(1).sum()
        for weight in decayed:
            loss = loss + 0.5 * settings.dense_decay * weight.square().sum()
        return loss

    with arithmetic(task.precision, device):
        for step, (index, moves) in enumerate(_plan(size, total, settings, streams)):
            index = index.to(device, non_blocking=True)
            batch = as_float(own[number, index])
            if moves is not None:
                batch = moved(batch.flatten(0, 1), moves.to(device, non_blocking=True)).view_as(batch)
            loss = loss_of(dict(zip(names, weights, strict=True)), batch, targets[number, index])
            for group in optimizer.param_groups:
                group["lr"] = settings.rate(step, total)
            descend(optimizer, loss)
            if average and settings.ema is not None:
                torch._foreach_lerp_(average, weights, 1.0 - min(settings.ema, (1.0 + step) / (10.0 + step)))
            told((step + 1) / total)
            if settling is not None and watched is not None and settling.due(step):
                now = [value.detach() for value in average or weights]
                seen = _labels(stack, dict(zip(names, now, strict=True)), watched, device, bf16)
                new = settling.look(seen) & ~done
                if bool(new.any()):
                    # Keep settled teachers' weights. They stay in the stack: see the module.
                    settled = [_chosen(new, value, old) for value, old in zip(now, settled, strict=True)]
                    done |= new
                if bool(done.all()):
                    break
    final = [value.detach() for value in average or weights]
    if bool(done.any()):
        final = [_chosen(done, old, now) for now, old in zip(final, settled, strict=True)]
    return _arrays(stack, dict(zip(names, final, strict=True)), count)


def _chosen(mask: Tensor, then: Tensor, otherwise: Tensor) -> Tensor:
    """Return `then` for the teachers in `mask` (teachers,) and `otherwise` for the others."""
    return torch.where(mask.to(then.device).view(-1, *[1] * (then.dim() - 1)), then, otherwise)


def _plan(
    size: int, total: int, settings: FitSettings, streams: list[Streams]
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield what `fit` draws: each step's records (teachers, batch) and moves (2, teachers * batch, 1), if any."""
    generators = [stream.torch("order") for stream in streams]
    for generator in generators:
        torch.randint(0, 2**62, (), generator=generator)  # the seed that `seeded` draws in `fit`, unused here
    shuffled = settings.order != "sequential"
    sources = [Batches(size, settings.batch_size, generator if shuffled else None) for generator in generators]
    epoch, most = math.ceil(size / min(settings.batch_size, size)), settings.shift
    for first in range(0, total, epoch):
        steps = min(epoch, total - first)
        rows: list[list[Tensor]] = []
        moves: list[list[Tensor]] = []
        for source, generator in zip(sources, generators, strict=True):
            rows.append([next(source) for _ in range(steps)])
            if most:
                lengths = [2 * len(batch) for batch in rows[-1]]
                drawn = torch.randint(-most, most + 1, (sum(lengths),), generator=generator)
                moves.append([one.view(2, -1, 1) for one in torch.split(drawn, lengths)])
        for step in range(steps):
            index = torch.stack([own[step] for own in rows])
            yield index, torch.cat([own[step] for own in moves], dim=1) if most else None


def _build(task: TeacherTask, shape: Shape) -> nn.Module:
    return build(task.model, task.classes, shape[0], shape[1:], **task.options)


def _trained(net: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, weight) for name, weight in net.named_parameters() if weight.requires_grad]


def _start(task: TeacherTask, shape: Shape, streams: list[Streams], device: torch.device) -> _Stack:
    nets = []
    with one_thread():
        for stream in streams:
            with seeded(stream.torch("weights")):
                nets.append(_build(task, shape).train())
    template = nets[0]
    trained = {name for name, _ in _trained(template)}
    every = [{**dict(net.named_parameters()), **dict(net.named_buffers())} for net in nets]
    weights: Named = {}
    others: Named = {}
    for name, first in every[0].items():
        values = [named[name].detach() for named in every]
        if name in trained:
            weights[name] = nn.Parameter(torch.stack(values).to(device))
        elif not all(torch.equal(value, first) for value in values):
            others[name] = torch.stack(values).to(device)
    return _Stack(template.to(device), weights, others)


class _StackedLayers(TorchFunctionMode):
    """Runs large convolutions apart, and rounds the inputs of layers to bfloat16 where wanted.

    Autocast misses CPU convolutions under vmap.
    """

    LAYERS = (functional.conv1d, functional.conv2d, functional.conv3d, functional.linear)

    def __init__(self, short: bool) -> None:
        super().__init__()
        self.short = short

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.short and func in self.LAYERS:
            args, kwargs = tuple(map(_short, args)), {name: _short(value) for name, value in kwargs.items()}
        return (convolve if func is functional.conv2d else func)(*args, **kwargs)


def _short(value: Any) -> Any:
    return value.bfloat16() if isinstance(value, Tensor) and value.is_floating_point() else value


def outputs_of(
    net: nn.Module, stacked: Named, others: Named, images: Tensor, *, bf16: bool, same: bool = False
) -> Tensor:
    """Return the logits (teachers, n, classes) of images (teachers, n, ...), or (n, ...) if all take the `same`."""

    def one(own: Named, batch: Tensor) -> Any:
        return functional_call(net, own, (batch,))

    with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16), _StackedLayers(bf16):
        logits: Tensor = vmap(one, in_dims=(0, None if same else 0))({**stacked, **others}, images)
    return logits


@torch.no_grad()
def _labels(stack: _Stack, weights: Named, images: Tensor, device: torch.device, bf16: bool) -> Tensor:
    """Return the labels (teachers, n) of `images`, on the CPU."""
    stack.net.eval()
    found = [
        outputs_of(stack.net, weights, stack.others, as_float(batch.to(device)), bf16=bf16, same=True).argmax(2).cpu()
        for batch in torch.split(images, ROWS)
    ]
    stack.net.train()
    return torch.cat(found, 1)


def _arrays(stack: _Stack, weights: Named, count: int) -> Arrays:
    every = {name: value.expand(count, *value.shape) for name, value in stack.net.state_dict().items()}
    every |= {name: value for name, value in (stack.others | weights).items() if name in every}
    return {name: value.detach().cpu().contiguous().numpy() for name, value in every.items()}


def _shape(images: Tensor) -> Shape:
    return int(images.shape[1]), int(images.shape[2]), int(images.shape[3])
