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

from bench.core.errors import BenchError
from bench.privacy import events, margins
from bench.privacy.anchor_subspace import AnchorSubspace, Parts
from bench.privacy.example_gradients import (
    ExampleGradients,
    Gradients,
    keep_largest,
    norms,
    picked,
    weighted_sum,
    without,
)
from bench.training.checkpoint import Checkpoint, Loop
from bench.training.transforms import as_float

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.core.progress import Stage

MAX_PHYSICAL_BATCH = 1024
"""Most examples of one pass; a larger Poisson batch takes several."""
MAX_NUMBERS = 2**28
"""Most numbers in the gradients of one pass, if all are formed: parameters times examples; 1 GiB in float32."""
PROBED = 16
"""Examples of a probed batch whose gradients are computed alone too; an eighth of them may differ by rounding."""
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
        """The gradients of one pass, a :data:`~bench.privacy.example_gradients.Gradients` for each parameter."""
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
    a record changes: batch normalisation, statistics kept in buffers, or, in the first batch and in one of a random
    step, gradients that differ from those of the examples alone. Dropout is off in this comparison.
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
    buffers = [buffer.clone() for buffer in model.buffers()]
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
        later, unprobed = first + secrets.randbelow(max(1, run.steps - first)), True
        for step in range(run.steps):
            chosen = torch.from_numpy(np.flatnonzero(randomness.random(len(images)) < rate))
            if step < first:
                for _ in optimizer.draw():
                    pass
                continue
            if run.anchors is not None:
                optimizer.parts = run.anchors.parts(gradients, run.loss, optimizer.params, step, _most(optimizer))
            probed = len(chosen) > 1 and (unprobed or step == later)
            _step(gradients, optimizer, images, labels, chosen, run, probed=probed)
            unprobed = unprobed and not probed
            if run.stage is not None:
                run.stage.advance()
            loop.done(step + 1, run.steps)
    finally:
        gradients.remove()
    for parameter in model.parameters():
        parameter.grad_sample = parameter.summed_grad = parameter.grad = None  # type: ignore[attr-defined]
    if not all(map(torch.equal, buffers, model.buffers())):
        raise BenchError(
            "the student's buffers have changed in training: statistics of private batches would be released without "
            "noise. Choose a net without running statistics, or with GroupNorm or LayerNorm."
        )
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
    *,
    probed: bool = False,
) -> None:
    device = optimizer.params[0].device
    # An empty batch still takes a noisy step: skipping it would reveal that it was empty.
    pieces = torch.split(chosen, _most(optimizer)) if len(chosen) else (chosen,)
    for number, piece in enumerate(pieces):
        for parameter in optimizer.params:
            parameter.grad = None
        if len(piece):
            before = _generator_states(device)
            inputs, targets = as_float(images[piece].to(device)), labels[piece].to(device)
            gradients.backward(run.loss(gradients.model(inputs), targets), len(piece))
            if probed and number == 0:
                _check_examples(gradients, optimizer.params, inputs, targets, run, before)
        else:
            for parameter in optimizer.params:
                parameter.grad_sample = torch.zeros((0, *parameter.shape), device=device, dtype=parameter.dtype)
        optimizer.signal_skip_step(do_skip=number < len(pieces) - 1)
        optimizer.step()


def _check_examples(
    gradients: ExampleGradients,
    parameters: Sequence[torch.nn.Parameter],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    run: DPSGDRun,
    before: Sequence[torch.Tensor],
) -> None:
    """Raise :class:`BenchError` unless examples have the gradient alone that they have in the batch just passed.

    `before` are the states of torch's generators before the pass. A net that draws from them is passed again with
    dropout off.
    """
    device = inputs.device
    rows = secrets.SystemRandom().sample(range(len(inputs)), min(PROBED, len(inputs)))
    kept = [(parameter.grad_sample, parameter.grad) for parameter in parameters]  # type: ignore[attr-defined]

    def passed(pick: list[int]) -> None:
        for parameter in parameters:
            parameter.grad_sample = parameter.grad = None  # type: ignore[attr-defined]
        gradients.backward(run.loss(gradients.model(inputs[pick]), targets[pick]), len(pick))

    def gradients_of(pick: list[int]) -> torch.Tensor:
        samples = [parameter.grad_sample for parameter in parameters]  # type: ignore[attr-defined]
        return torch.cat([picked(sample, pick).reshape(len(pick), -1) for sample in samples], 1).nan_to_num(0, 0, 0)

    def alone_of(row: int) -> torch.Tensor:
        passed([row])
        return gradients_of([0])

    def drawn() -> bool:
        return not all(map(torch.equal, before, _generator_states(device)))

    together, random = gradients_of(rows), drawn()
    with torch.random.fork_rng([device] if device.type == "cuda" else []), contextlib.ExitStack() as restoring:
        _set_generator_states(before, device)
        if random:
            for layer in gradients.model.modules():
                # A layer with weights may mix examples in training mode only: it stays in that mode.
                if layer.training and not list(layer.parameters(recurse=False)):
                    layer.training = False
                    restoring.callback(setattr, layer, "training", True)
            passed(list(range(len(inputs))))
            together = gradients_of(rows)
        alone = torch.cat([alone_of(row) for row in rows])
        if drawn():
            raise BenchError(
                "the loss, or a layer with weights, draws random numbers, so that gradients cannot be compared. Use "
                "layers for dropout (torch.nn.Dropout), or none."
            )
    for parameter, (samples, gradient) in zip(parameters, kept, strict=True):
        parameter.grad_sample, parameter.grad = samples, gradient  # type: ignore[attr-defined]
    largest = torch.maximum(together.norm(dim=1), alone.norm(dim=1))
    apart = (together - alone).norm(dim=1) > TOLERANCE[device.type] * largest + 1e-4 * run.max_grad_norm
    if int(apart.sum()) > len(rows) // 8:
        raise BenchError(
            "the student or its loss couples the examples of a batch: alone, an example has another gradient than in "
            "its batch, and clipping does not bound what a record changes. Give the mean of each example's own loss, "
            "and a net without statistics of the batch."
        )


def _generator_states(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_generator_states(states: Sequence[torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
