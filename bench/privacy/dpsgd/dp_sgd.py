"""DP-SGD on Poisson batches, as its analysis assumes: Abadi et al., CCS 2016, algorithm 1."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer

from bench.core import margins
from bench.core.errors import BenchError
from bench.core.transforms import as_float
from bench.privacy.dpsgd.anchor_subspace import AnchorSubspace, Parts
from bench.privacy.dpsgd.example_gradients import (
    ExampleGradients,
    Gradients,
    generator_states,
    keep_largest,
    norms,
    picked,
    weighted_sum,
    without,
)
from bench.privacy.events import events
from bench.storage.checkpoint import Checkpoint, Loop

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.core.progress import Stage

MAX_PHYSICAL_BATCH = 1024
"""Most examples of one pass; a larger Poisson batch takes several."""
MAX_NUMBERS = 2**28
"""Most numbers in the gradients of one pass, if all are formed: parameters times examples; 1 GiB in float32."""
FILLED = 64
"""Examples of every pass where gradients keep their largest entries, the last pass filled up: a pass of another size
rounds otherwise, and one absent record would change which entries of the others are kept."""
PROBED = 16
"""Random examples whose gradients are computed in a batch and alone; an eighth of them may differ by rounding."""
TOLERANCE = {"cpu": 1e-3, "cuda": 1e-2}  # convolutions on a GPU round to TF32
"""Largest distance between the two gradients, relative to the larger one, above 1e-4 of the clipping norm."""


@dataclass(frozen=True, slots=True)
class DPSGDRun:
    """How to run DP-SGD; `optimizer` takes the model's parameters, `loss` gives the mean over (logits, labels).

    The mean must be one of each example's own loss: see :func:`train`. Each record enters a batch with probability
    ``expected_batch_size / records``, where `records` is the public number of records. `expected_batch_size` divides
    the noisy sum; the realised sizes of batches and data set are private.
    """

    optimizer: Callable[[Any], torch.optim.Optimizer]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    noise_multiplier: float
    max_grad_norm: float
    expected_batch_size: int
    steps: int
    records: int
    stage: Stage | None = None
    checkpoint: Checkpoint | None = None
    """A stopped training resumes from it; its maker clears it."""
    by_layer: bool = False
    """Whether the gradient of each of m layers is clipped by itself, to ``max_grad_norm / sqrt(m)``."""
    kept_entries: float = 1.0
    """The share of the entries of each example's gradient that stay before it is clipped: the largest ones."""
    anchors: AnchorSubspace | None = None
    """Public examples in and beside whose gradients' span a gradient is clipped apart, to bounds of their own."""


class _Counted:
    """The steps that Opacus's accountant has counted, over all resumptions of a training."""

    def __init__(self, accountant: RDPAccountant) -> None:
        self._accountant = accountant

    def state_dict(self) -> dict[str, torch.Tensor]:
        history = torch.tensor([list(map(float, entry)) for entry in self._accountant.history], dtype=torch.float64)
        return {"history": history}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        rows = state["history"].tolist()
        self._accountant.history = [(noise, rate, int(steps)) for noise, rate, steps in rows]


class LedgerOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus is untyped
    """Opacus's optimiser; the method's own, inside it, sees noisy gradients alone."""

    randomness: np.random.Generator
    layers: Sequence[Sequence[int]] = ()
    """Places of the parameters that are clipped together; none: all are."""
    kept_entries: float = 1.0
    """The share of the entries of an example's gradient that are not set to zero; see :func:`keep_largest`."""
    parts: Parts | None = None
    """The subspace in and beside which gradients are clipped apart, if they are."""
    _sums: Sequence[torch.Tensor | None] = ()
    """The clipped sums between two passes; the method's net and loss run then, and see the parameters."""

    @property
    def grad_samples(self) -> list[Any]:
        """The gradients of one pass, a :data:`~bench.privacy.dpsgd.example_gradients.Gradients` for each parameter."""
        return [parameter.grad_sample for parameter in self.params]

    @property
    def accumulated_iterations(self) -> int:
        """Always 1: the sum of a batch, however many passes it takes, is divided once."""
        return 1

    def clipping(self, samples: Sequence[Gradients]) -> tuple[Sequence[Gradients], list[torch.Tensor]]:
        """Return what is kept of `samples`, and the factors (n,) that clip each.

        An example whose gradient is not finite has zeros. All gradients of an example times their factors have a norm
        of at most `max_grad_norm` together.
        """
        if self.kept_entries < 1:
            # Before the norms: an example is clipped by what is left of it. The entries depend on it alone.
            entries = sum(parameter.numel() for parameter in self.params)
            samples = keep_largest(samples, max(1, math.ceil(self.kept_entries * entries)))
        if self.parts is not None:
            # Where rounding takes their norm beyond the bound, it is clipped below.
            samples = self.parts.clipped(samples, self.max_grad_norm)
        together = self.layers or [range(len(samples))]
        lengths = torch.stack([norms(sample) for sample in samples], 1)
        found = [lengths[:, list(places)].norm(dim=1) * margins.FLOAT32 for places in together]
        lost = (~torch.stack(found, 1).isfinite().all(1)).nonzero()[:, 0]
        if len(lost):
            # It cannot be clipped: its record would change the weights without a bound.
            samples = [without(sample, lost) for sample in samples]
            found = [length.index_fill(0, lost, 0.0) for length in found]
        factors = [lengths[:, 0]] * len(samples)
        for places, length in zip(together, found, strict=True):
            for place in places:
                factors[place] = (self.max_grad_norm / math.sqrt(len(together)) / (length + 1e-6)).clamp(max=1.0)
        return samples, factors

    def clip_and_accumulate(self) -> None:
        """Add the pass's clipped gradients to the sum; see :meth:`clipping`."""
        for parameter, sample, factors in zip(self.params, *self.clipping(self.grad_samples), strict=True):
            clipped = weighted_sum(sample, factors)
            parameter.summed_grad = clipped if parameter.summed_grad is None else parameter.summed_grad + clipped

    def draw(self) -> Iterator[NDArray[np.float32]]:
        """Yield the standard normal noise of one step, a draw for each parameter."""
        # Drawn by NumPy: torch's generator on a CPU keeps 32 bits of a seed, which could be tried one by one.
        for parameter in self.params:
            yield np.asarray(self.randomness.standard_normal(parameter.shape, dtype=np.float32))

    def add_noise(self) -> None:
        """Make the noisy sum the gradient."""
        spread = self.noise_multiplier * self.max_grad_norm
        for parameter, drawn in zip(self.params, self.draw(), strict=True):
            noise = torch.from_numpy(drawn).to(parameter.device, parameter.dtype)
            parameter.grad = (parameter.summed_grad + spread * noise).view_as(parameter)
        if self.parts is not None:
            noisy = [parameter.grad for parameter in self.params]
            for parameter, restored in zip(self.params, self.parts.restored(noisy, self.max_grad_norm), strict=True):
                parameter.grad = restored

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Return whether the batch is complete; hide its sums until then."""
        for parameter, held in zip(self.params, self._sums or [None] * len(self.params), strict=True):
            parameter.summed_grad = held
        ready: bool = super().pre_step(closure)
        self._sums = () if ready else [parameter.summed_grad for parameter in self.params]
        for parameter in self.params:
            parameter.grad_sample = parameter.summed_grad = None
        return ready


def train(
    model: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    run: DPSGDRun,
    *,
    randomness: np.random.Generator,
    make_optimizer: Callable[..., LedgerOptimizer] = LedgerOptimizer,
) -> events.DPSGD:
    """Train `model` in place on `images` (n, ...) and `labels` (n,); return the event of the steps that Opacus counted.

    Images are uint8, which become floats in [0, 1], or floats of any range and precision, such as features in float16,
    which become float32 one pass at a time. Batches and noise come from `randomness`. A stopped training resumes only
    where `randomness` starts in the same state, and repeats the same steps: the event is that of one uninterrupted run.
    No checkpoint holds that state: a resumed training draws its earlier batches and noise again. An auditor's
    `make_optimizer` gives a subclass.

    Raises :class:`BenchError` where model or loss couple the examples of a batch, so that clipping does not bound what
    a record changes: batch normalisation or, before the first step and a random one, buffers that a pass changes, and
    gradients that differ from autograd's of the examples alone. Both are found on random examples, with dropout off:
    no error depends on a record's values. A gradient that is not finite counts as zeros, a label that is none of the
    net's outputs as 0, and buffers get their values back after each step, as a pass may change them on some data alone.
    """
    mixing = sorted({type(m).__name__ for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)})
    if mixing:
        raise BenchError(
            f"the student has {', '.join(mixing)}, which mixes the examples of a batch: per-example gradients do not "
            "exist. Choose a net without batch normalisation (tanh_cnn_mnist, or one with GroupNorm or LayerNorm)."
        )
    rate = run.expected_batch_size / run.records
    optimizer = make_optimizer(
        run.optimizer(model.parameters()),
        noise_multiplier=run.noise_multiplier,
        max_grad_norm=run.max_grad_norm,
        expected_batch_size=run.expected_batch_size,
        loss_reduction="mean",
    )
    optimizer.randomness = randomness
    if {id(p) for p in optimizer.params} != {id(p) for p in model.parameters() if p.requires_grad}:
        raise BenchError("the optimiser must take all trainable parameters. Freeze the others by requires_grad=False.")
    if run.by_layer:
        optimizer.layers = _layers(model, optimizer.params)
    optimizer.kept_entries = run.kept_entries
    buffers = _buffers(model)
    gradients = ExampleGradients(model)
    accountant = RDPAccountant()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=rate))
    model.train()
    try:
        held = {"model": model, "optimizer": optimizer.original_optimizer, "counted": _Counted(accountant)}
        inputs = [images, labels, randomness.bit_generator.state]
        loop = Loop(run.checkpoint, held, inputs, next(model.parameters()).device)
        first = loop.start(run.stage)
        # Not from `randomness`, and not known beforehand to the method's own code.
        later = first + secrets.randbelow(max(1, run.steps - first))
        for step in range(run.steps):
            chosen = torch.from_numpy(np.flatnonzero(randomness.random(len(images)) < rate))
            if step < first:
                for _ in optimizer.draw():
                    pass
                continue
            if run.anchors is not None:
                optimizer.parts = run.anchors.parts(gradients, run.loss, optimizer.params, step, _most(optimizer))
            if step in (first, later):
                _check_examples(gradients, images, labels, run)
            _step(gradients, optimizer, images, labels, chosen, run)
            for layer, name, value in buffers:
                if not _is(getattr(layer, name), value):
                    setattr(layer, name, value.clone())
            if run.stage is not None:
                run.stage.advance()
            loop.done(step + 1, run.steps)
    finally:
        gradients.remove()
    for parameter in model.parameters():
        parameter.grad_sample = parameter.summed_grad = parameter.grad = None  # type: ignore[attr-defined]
    steps = sum(count for _, _, count in accountant.history)
    return events.DPSGD(rate, run.noise_multiplier, steps)


def _layers(model: torch.nn.Module, parameters: Sequence[torch.nn.Parameter]) -> list[list[int]]:
    """Return the places in `parameters` of each layer's own; weights that layers share are the first one's."""
    places = {parameter: place for place, parameter in enumerate(parameters)}
    layers: dict[str, list[int]] = {}
    for name, parameter in model.named_parameters():
        if parameter in places:
            layers.setdefault(name.rpartition(".")[0], []).append(places[parameter])
    return list(layers.values())


def _most(optimizer: LedgerOptimizer) -> int:
    """Return the most examples of one pass."""
    numbers: int = sum(parameter.numel() for parameter in optimizer.params)
    return min(MAX_PHYSICAL_BATCH, max(PROBED, MAX_NUMBERS // numbers))


def _step(
    gradients: ExampleGradients,
    optimizer: LedgerOptimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    chosen: torch.Tensor,
    run: DPSGDRun,
) -> None:
    device = optimizer.params[0].device
    # An empty batch still takes a noisy step: skipping it would reveal that it was empty.
    filled = run.kept_entries < 1
    pieces = torch.split(chosen, FILLED if filled else _most(optimizer)) if len(chosen) else (chosen,)
    for number, piece in enumerate(pieces):
        for parameter in optimizer.params:
            parameter.grad = None
        if len(piece):
            inputs, targets = images[piece], labels[piece]
            if filled:
                inputs, targets = (
                    torch.cat([part, part.new_zeros(FILLED - len(part), *part.shape[1:])]) for part in (inputs, targets)
                )
            outputs = gradients.model(as_float(inputs.to(device)))
            gradients.backward(run.loss(outputs, known_labels(targets.to(device), outputs)), len(inputs))
            for parameter in optimizer.params if filled else ():
                parameter.grad_sample = picked(parameter.grad_sample, slice(len(piece)))
        else:
            for parameter in optimizer.params:
                parameter.grad_sample = torch.zeros((0, *parameter.shape), device=device, dtype=parameter.dtype)
        optimizer.signal_skip_step(do_skip=number < len(pieces) - 1)
        optimizer.step()


def _check_examples(gradients: ExampleGradients, images: torch.Tensor, labels: torch.Tensor, run: DPSGDRun) -> None:
    """Raise :class:`BenchError` unless examples have the gradient in a batch that autograd gives each of them alone.

    The examples are random, of the shape and type of `images` and `labels`, whose values are not read: no private
    record decides whether there is a student. A net that draws random numbers is passed again with dropout off.
    """
    model, draws = gradients.model, torch.Generator().manual_seed(secrets.randbits(63))
    device, shape = next(model.parameters()).device, (PROBED, *images.shape[1:])
    floats = images.is_floating_point()
    drawn = torch.rand(shape, generator=draws) if floats else torch.randint(256, shape, generator=draws)
    inputs = as_float(drawn.to(device, images.dtype))
    buffers, before = _buffers(model), generator_states(device)

    def forget() -> None:
        for parameter in model.parameters():
            parameter.grad_sample = parameter.grad = None  # type: ignore[attr-defined]

    def random() -> bool:
        return not all(map(torch.equal, before, generator_states(device)))

    def together_of(targets: torch.Tensor) -> torch.Tensor:
        forget()
        gradients.backward(run.loss(model(inputs), targets), PROBED)
        found = gradients.formed(slice(None))
        forget()
        return found

    with torch.random.fork_rng([device] if device.type == "cuda" else []), contextlib.ExitStack() as restoring:
        with torch.no_grad():
            outputs = model(inputs)
        # Each label twice: a loss may couple the examples of a class.
        some = torch.randint(outputs.shape[1] if outputs.dim() > 1 else 2, (-(-PROBED // 2),), generator=draws)
        targets = some.repeat(2)[:PROBED].to(device, labels.dtype)
        together = together_of(targets)
        if random():
            for layer in model.modules():
                # A layer with weights may mix examples in training mode only: it stays in that mode.
                if layer.training and not list(layer.parameters(recurse=False)):
                    layer.training = False
                    restoring.callback(setattr, layer, "training", True)
            before = generator_states(device)
            together = together_of(targets)
        rows = [gradients.alone(run.loss(model(inputs[[row]]), targets[[row]])) for row in range(PROBED)]
        if random():
            raise BenchError(
                "the loss, or a layer with weights, draws random numbers, so that gradients cannot be compared. Use "
                "layers for dropout (torch.nn.Dropout), or none."
            )
    if not all(_is(getattr(layer, name), value) for layer, name, value in buffers):
        raise BenchError(
            "the student's buffers have changed in a pass: statistics of private batches would be released without "
            "noise. Choose a net without running statistics, or with GroupNorm or LayerNorm."
        )
    alone = torch.stack(rows)
    largest = torch.maximum(together.norm(dim=1), alone.norm(dim=1))
    apart = (together - alone).norm(dim=1) > TOLERANCE[device.type] * largest + 1e-4 * run.max_grad_norm
    apart |= together.isfinite().all(1) != alone.isfinite().all(1)
    if int(apart.sum()) > PROBED // 8:
        raise BenchError(
            "the student or its loss couples the examples of a batch, or hooks change what a layer gives: alone, an "
            "example has another gradient than in its batch, and clipping does not bound what a record changes. Give "
            "the mean of each example's own loss, and a net without statistics of the batch and such hooks."
        )


Buffer = tuple[torch.nn.Module, str, torch.Tensor]


def _buffers(model: torch.nn.Module) -> list[Buffer]:
    """Return the module, the name and a copy of each buffer."""
    return [(m, name, value.clone()) for m in model.modules() for name, value in m.named_buffers(recurse=False)]


def _is(value: torch.Tensor, kept: torch.Tensor) -> bool:
    return value.shape == kept.shape and bool(((value == kept) | (kept != kept)).all())  # NaN is NaN


def known_labels(labels: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Return `labels` (n,); of several `outputs` (n, classes), one that has none counts as 0 and raises no error."""
    if outputs.dim() < 2 or outputs.shape[1] < 2:
        return labels
    return labels.where((labels >= 0) & (labels < outputs.shape[1]), 0)
