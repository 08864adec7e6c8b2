"""DP-SGD: Abadi et al., CCS 2016, algorithm 1, on Poisson batches or others with an accountant of their own."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.progress import SILENT, Stage
from bench.core.seeds import seeded_with
from bench.core.torch_modes import check_real, torch_alone
from bench.core.transforms import as_float
from bench.core.types import Sampling
from bench.privacy.dpsgd.anchor_subspace import Subspace
from bench.privacy.dpsgd.clipping import Adaptive, Clipping, Flat, PerLayer, TopK
from bench.privacy.dpsgd.example_checks import PROBED, buffers_of, check_examples, is_kept
from bench.privacy.dpsgd.example_gradients import ExampleGradients
from bench.privacy.dpsgd.gradient_forms import Gradients, Outer, picked
from bench.privacy.dpsgd.sampling import Rows, batches
from bench.privacy.events.batch_events import Training, training_event
from bench.storage.checkpoint import Checkpoint, Loop, Part

STRATEGIES: tuple[type[Clipping], ...] = (Flat, PerLayer, TopK, Subspace, Adaptive)
"""The ways of clipping with known sensitivity; a method's own class could misstate its sensitivity."""
MAX_PHYSICAL_BATCH = 1024
"""Maximum number of examples per pass; a larger Poisson batch takes several passes."""
MAX_NUMBERS = 2**28
"""Maximum size of one pass's gradients if all are formed, parameters times examples; 1 GiB in float32."""


@dataclass(frozen=True, slots=True)
class DPSGDRun:
    """How to run DP-SGD; `optimizer` takes the model's parameters, `loss` gives the mean over (logits, labels).

    It must be a mean of each example's own loss: see :func:`train`. A batch holds a share ``expected_batch_size /
    records`` of the records, drawn as `sampling` says; `records` is their public number. `expected_batch_size` divides
    the noisy sum; actual sizes of batches and data set are private.
    """

    optimizer: Callable[[Any], torch.optim.Optimizer]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    noise_multiplier: float
    clipping: Clipping
    expected_batch_size: int
    steps: int
    records: int
    sampling: Sampling = Sampling.POISSON
    stage: Stage | None = None
    checkpoint: Checkpoint | None = None
    """A stopped training resumes from it; the caller clears it."""

    def event(self, steps: int) -> Training:
        """Return the event of the first `steps` steps."""
        return training_event(self.sampling, self.expected_batch_size / self.records, self.noise_multiplier, steps)

    def batches(self, present: int, randomness: np.random.Generator) -> Iterator[Rows]:
        """Yield the rows, among `present` records, of each step's batch."""
        return batches(self.sampling, self.records, self.expected_batch_size, present, randomness)


@dataclass(frozen=True, slots=True)
class Batch:
    """The input of one step: `rows` of all `images` and `labels`, and the seed of dropout's masks."""

    images: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor
    masks: int


class NoisySteps:
    """Steps of the method's `optimizer`, which sees only noisy sums of clipped gradients."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, clipping: Clipping, run: DPSGDRun, randomness: np.random.Generator
    ) -> None:
        self.optimizer, self.clipping, self.randomness = optimizer, clipping, randomness
        self.noise_multiplier, self.expected_batch_size = run.noise_multiplier, run.expected_batch_size
        groups = optimizer.param_groups
        self.parameters = [one for group in groups for one in group["params"] if one.requires_grad]
        # Not attributes of parameters: the method's net and loss run between two passes and could read them.
        self.sums: list[torch.Tensor] = []
        self.taken = torch.zeros((), dtype=torch.int64)
        """The number of steps, including those before a resumption."""

    @property
    def pass_size(self) -> int | None:
        """Return the number of examples in every pass, None if it may vary."""
        return self.clipping.pass_size

    def check(self, gradients_of: Callable[[torch.Tensor], Sequence[Gradients]], images: torch.Tensor) -> None:
        """Raise :class:`BenchError` if gradients break what these steps assume.

        ``gradients_of(examples)`` makes one pass; only the shape and type of `images` are read.
        """

    def add(self, samples: Sequence[Gradients]) -> None:
        """Add one pass's clipped gradients of each parameter to the batch's sum."""
        summed = self.clipping.summed(samples)
        self.sums = [one + more for one, more in zip(self.sums, summed, strict=True)] if self.sums else summed

    def draw(self) -> Iterator[NDArray[np.float32]]:
        """Yield the standard normal noise of one step, one array per part of the sum."""
        # Draw with NumPy: torch's CPU generator keeps 32 bits of a seed, few enough to try them all.
        for shape in self.clipping.shapes(self.parameters):
            yield np.asarray(self.randomness.standard_normal(shape, dtype=np.float32))

    def step(self) -> None:
        """Take a step with the batch's noisy sum divided by its expected size."""
        spread = self.noise_multiplier * self.clipping.sensitivity
        self.take([
            (total + spread * torch.from_numpy(drawn).to(total)).view(drawn.shape)
            for total, drawn in zip(self.sums, self.draw(), strict=True)
        ])  # fmt: skip

    def take(self, noisy: list[torch.Tensor]) -> None:
        """Take a step with this noisy sum, and start the next batch."""
        self.sums = []
        for parameter, gradient in zip(self.parameters, self.clipping.released(noisy), strict=True):
            parameter.grad = gradient
            parameter.grad /= self.expected_batch_size
        self.optimizer.step()
        self.taken += 1


def train(
    model: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    run: DPSGDRun,
    *,
    randomness: np.random.Generator,
    make_steps: Callable[..., NoisySteps] = NoisySteps,
    draw_batches: Callable[[DPSGDRun, int, np.random.Generator], Iterator[Rows]] = DPSGDRun.batches,
    batch_of: Callable[[int, Batch], Batch] = lambda step, batch: batch,
) -> Training:
    """Train `model` in place on `images` (n, ...) and `labels` (n,); return the event of the steps taken.

    Images are uint8, which become floats in [0, 1], or floats of any range and precision, such as float16 features,
    which become float32 one pass at a time. Batches, noise and dropout's masks follow from `randomness`. A stopped
    training resumes only if `randomness` starts in the same state, and repeats the same steps: the event is that of one
    uninterrupted run. No checkpoint holds that state: a resumed training redraws its earlier batches and noise.
    Auditors pass `make_steps` to use a subclass, and `draw_batches`; checks pass `batch_of`, which may replace a step's
    batch.

    Raises :class:`BenchError` if model or loss couple the examples of a batch, so that clipping does not bound a
    record's influence. Batch normalisation is refused at once. Tests before the first and a random step refuse buffers
    that a pass changes, gradients that differ from autograd's for single examples (dropout off), and gradients that
    change with the other examples of a full pass (dropout on). The tests use random examples, so no error depends on a
    record's values. A non-finite gradient counts as zeros, and a label outside the net's outputs as 0. Buffers are
    restored after each step, because a pass may change them on some data only.
    """
    mixing = sorted({type(m).__name__ for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)})
    if mixing:
        raise BenchError(
            f"the student has {', '.join(mixing)}, which mixes the examples of a batch: per-example gradients do not "
            "exist. Choose a net without batch normalisation (tanh_cnn_mnist, or one with GroupNorm or LayerNorm)."
        )
    rows = draw_batches(run, len(images), randomness)
    # Dropout's masks must be secret too: when a record leaves, those after it move up in a pass and get other masks.
    masks = np.random.default_rng(randomness.bit_generator.seed_seq.spawn(1)[0])  # type: ignore[attr-defined]
    clipping = dataclasses.replace(run.clipping)
    steps = make_steps(run.optimizer(model.parameters()), clipping, run, randomness)
    names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if set(steps.parameters) != set(names):
        raise BenchError(
            "the optimiser must hold all trainable parameters. Freeze the others with requires_grad=False."
        )
    check_real(*steps.parameters)
    clipping.begin(
        [names[parameter] for parameter in steps.parameters], steps.parameters, run.noise_multiplier,
        run.expected_batch_size,
    )  # fmt: skip
    buffers = buffers_of(model)
    gradients = ExampleGradients(model)
    model.train()
    try:
        held: dict[str, Part] = {"model": model, "optimizer": steps.optimizer, "counted": steps.taken}
        if clipping.state_dict():
            held["clipping"] = clipping
        inputs = [images, labels, randomness.bit_generator.state]
        loop = Loop(run.checkpoint, held, inputs, next(model.parameters()).device)
        stage = run.stage or SILENT
        first = loop.start(stage)
        # Not drawn from `randomness`, and unpredictable for the method's own code.
        later = first + secrets.randbelow(max(1, run.steps - first))
        for step in range(run.steps):
            batch = Batch(images, labels, torch.from_numpy(next(rows)), int.from_bytes(masks.bytes(16)))
            if step < first:
                for _ in steps.draw():
                    pass
                continue
            clipping.before_step(gradients, run.loss, steps.parameters, step, _most(steps))
            if step in (first, later):
                # The number of examples of a full pass over a batch of the expected size.
                full = steps.pass_size or min(_most(steps), max(PROBED, run.expected_batch_size))
                check_examples(gradients, images, labels, run.loss, run.clipping.norm, full)
                steps.check(
                    lambda inputs: _passed(gradients, steps, run, inputs, labels.new_zeros(len(inputs))), images
                )
            batch = batch_of(step, batch)
            with seeded_with(batch.masks, steps.parameters[0].device, secret=True):
                _step(gradients, steps, batch, run)
            for layer, name, value in buffers:
                if not is_kept(getattr(layer, name), value):
                    setattr(layer, name, value.clone())
            stage.advance()
            loop.done(step + 1, run.steps)
    finally:
        gradients.remove()
        for parameter in model.parameters():  # also after an error, which a method may catch
            parameter.grad = None
            vars(parameter).pop("grad_sample", None)
    return run.event(int(steps.taken))


def _most(steps: NoisySteps) -> int:
    """Return the maximum number of examples per pass."""
    numbers: int = sum(parameter.numel() for parameter in steps.parameters)
    return min(MAX_PHYSICAL_BATCH, max(PROBED, MAX_NUMBERS // numbers))


def _step(gradients: ExampleGradients, steps: NoisySteps, batch: Batch, run: DPSGDRun) -> None:
    # An empty batch still takes a noisy step: skipping it would reveal that it was empty.
    size = steps.pass_size
    for piece in torch.split(batch.rows, size or _most(steps)) if len(batch.rows) else (batch.rows,):
        for parameter in steps.parameters:
            parameter.grad = None
        samples: list[Gradients]
        if len(piece):
            inputs, targets = batch.images[piece], batch.labels[piece]
            if size:
                inputs, targets = (
                    torch.cat([part, part.new_zeros(size - len(part), *part.shape[1:])]) for part in (inputs, targets)
                )
            samples = _passed(gradients, steps, run, inputs, targets)
            if size:
                samples = [picked(sample, slice(len(piece))) for sample in samples]
        else:
            samples = [parameter.new_zeros((0, *parameter.shape)) for parameter in steps.parameters]
        with torch_alone():
            steps.add(samples)
    with torch_alone():
        steps.step()


def _passed(
    gradients: ExampleGradients, steps: NoisySteps, run: DPSGDRun, inputs: torch.Tensor, targets: torch.Tensor
) -> list[Gradients]:
    """Return each parameter's gradients for the examples of one pass."""
    device = steps.parameters[0].device
    outputs = gradients.model(as_float(inputs.to(device)))
    gradients.backward(run.loss(outputs, known_labels(targets.to(device), outputs)), len(inputs))
    samples = [parameter.grad_sample for parameter in steps.parameters]
    for parameter in steps.parameters:
        parameter.grad_sample = None
    for sample in samples:
        check_real(*((sample.left, sample.right) if isinstance(sample, Outer) else (sample,)))
    return samples


def known_labels(labels: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Return `labels` (n,); with several `outputs` (n, classes), labels without one become 0, without error."""
    if outputs.dim() < 2 or outputs.shape[1] < 2:
        return labels
    return labels.where((labels >= 0) & (labels < outputs.shape[1]), 0)
