"""DP-SGD by Opacus on Poisson batches, as its analysis assumes: Abadi et al., CCS 2016, algorithm 1."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer

from bench.core.errors import BenchError
from bench.privacy import events
from bench.training.checkpoint import Checkpoint, Loop
from bench.training.transforms import as_float

if TYPE_CHECKING:
    from bench.core.progress import Stage

MAX_PHYSICAL_BATCH = 1024
"""Examples whose gradients are in memory at once; a larger Poisson batch takes several passes."""


@dataclass(frozen=True, slots=True)
class DPSGDRun:
    """How to run DP-SGD; `optimizer` takes the model's parameters, `loss` gives the mean over (logits, labels).

    `expected_batch_size`, the public mean of the Poisson batch, divides the noisy sum; the realised size is private.
    """

    optimizer: Callable[[Any], torch.optim.Optimizer]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    noise_multiplier: float
    max_grad_norm: float
    expected_batch_size: int
    steps: int
    stage: Stage | None = None
    checkpoint: Checkpoint | None = None
    """A stopped training resumes from it; its maker clears it."""


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


class _LedgerOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus is untyped
    """Opacus's optimiser; in data-independent mode it drops the gradients and keeps the noise."""

    data_independent = False
    randomness: np.random.Generator

    def clip_and_accumulate(self) -> None:
        for parameter in self.params:
            # A gradient that is not finite cannot be clipped: its record would change the weights without a bound.
            torch.nan_to_num_(parameter.grad_sample, nan=0.0, posinf=0.0, neginf=0.0)
        super().clip_and_accumulate()
        if self.data_independent:
            for parameter in self.params:
                parameter.summed_grad = torch.zeros_like(parameter)

    def add_noise(self) -> None:
        # Drawn by NumPy: torch's generator on a CPU keeps 32 bits of a seed, which could be tried one by one.
        for parameter in self.params:
            drawn = self.randomness.standard_normal(parameter.shape, dtype=np.float32)
            noise = torch.from_numpy(np.asarray(drawn)).to(parameter.device, parameter.dtype)
            spread = self.noise_multiplier * self.max_grad_norm
            parameter.grad = (parameter.summed_grad + spread * noise).view_as(parameter)


def train(
    model: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    run: DPSGDRun,
    *,
    randomness: np.random.Generator,
    data_independent: bool,
) -> events.DPSGD:
    """Train `model` in place on `images` (n, ...) and `labels` (n,); return the event of the steps that Opacus counted.

    Images are uint8 or floats in [0, 1]. Batches and noise come from `randomness`. A stopped training resumes only
    where `randomness` starts in the same state, and repeats the same steps: the event is that of one uninterrupted run.
    Raises :class:`BenchError` where the model mixes the examples of a batch (batch normalisation).
    """
    records = len(images)
    mixing = sorted({type(m).__name__ for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)})
    if mixing:
        raise BenchError(
            f"the student has {', '.join(mixing)}, which mixes the examples of a batch: per-example gradients do not "
            "exist. Choose a net without batch normalisation (tanh_cnn_mnist, or one with GroupNorm or LayerNorm)."
        )
    rate = run.expected_batch_size / records
    module = GradSampleModule(model, loss_reduction="mean")
    optimizer = _LedgerOptimizer(
        run.optimizer(model.parameters()),
        noise_multiplier=run.noise_multiplier,
        max_grad_norm=run.max_grad_norm,
        expected_batch_size=run.expected_batch_size,
        loss_reduction="mean",
    )
    optimizer.data_independent, optimizer.randomness = data_independent, randomness
    accountant = RDPAccountant()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=rate))
    module.train()
    try:
        # Opacus's hooks make torch warn that images need no gradient, once per training.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        held = {
            "model": model, "optimizer": optimizer.original_optimizer, "randomness": randomness,
            "counted": _Counted(accountant),
        }  # fmt: skip
        loop = Loop(run.checkpoint, held, [images, labels], next(model.parameters()).device)
        for step in range(loop.start(run.stage), run.steps):
            chosen = torch.from_numpy(np.flatnonzero(randomness.random(records) < rate))
            _step(module, optimizer, images, labels, chosen, run)
            if run.stage is not None:
                run.stage.advance()
            loop.done(step + 1, run.steps)
    finally:
        # An attacked student must be the plain module: the wrapper's hooks break a second backward pass.
        module.remove_hooks()
    for parameter in model.parameters():
        parameter.grad_sample = parameter.summed_grad = parameter.grad = None  # type: ignore[attr-defined]
    steps = sum(count for _, _, count in accountant.history)
    return events.DPSGD(rate, run.noise_multiplier, steps)


def _step(
    module: GradSampleModule,
    optimizer: _LedgerOptimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    chosen: torch.Tensor,
    run: DPSGDRun,
) -> None:
    optimizer.zero_grad()
    device = next(module.parameters()).device
    # An empty batch still takes a noisy step: skipping it would reveal that it was empty.
    pieces = torch.split(chosen, MAX_PHYSICAL_BATCH) if len(chosen) else (chosen,)
    for number, piece in enumerate(pieces):
        if len(piece):
            torch.autograd.backward(run.loss(module(as_float(images[piece].to(device))), labels[piece].to(device)))
        else:
            for parameter in optimizer.params:
                parameter.grad_sample = torch.zeros((0, *parameter.shape), device=device, dtype=parameter.dtype)
        last = number == len(pieces) - 1
        optimizer.signal_skip_step(do_skip=not last)
        optimizer.step()
        if not last:
            optimizer.zero_grad()
