"""DP-SGD against a loop over single examples, on images and on features, in one pass or several; settings refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.dpsgd import dp_sgd, example_checks
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun, train
from helpers.ledgers import seeded_ledger

RECORDS, STEPS, BATCH, NOISE, CLIP = 40, 4, 12, 0.7, 0.3


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3))


def convolutional() -> nn.Module:
    layers = [nn.GroupNorm(3, 3), nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(4, 3)]
    return nn.Sequential(*layers)


def started(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def run_of(optimizer: Callable[..., torch.optim.Optimizer] | None = None, steps: int = STEPS) -> DPSGDRun:
    optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9))
    return DPSGDRun(optimizer, cross_entropy, NOISE, Flat(CLIP), BATCH, steps, RECORDS)


def one_by_one(model: nn.Module, inputs: Tensor, labels: Tensor, randomness: np.random.Generator) -> list[Tensor]:
    """Abadi et al.'s algorithm 1 as printed, with the draws in the ledger's order."""
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
    for _ in range(STEPS):
        chosen = np.flatnonzero(randomness.random(len(inputs)) < BATCH / RECORDS)
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        for row in chosen:
            loss = cross_entropy(model(inputs[[row]]), labels[[row]])
            gradients = torch.autograd.grad(loss, parameters)
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
            if norm.isfinite():
                for total, gradient in zip(sums, gradients, strict=True):
                    total += gradient * min(1.0, CLIP / float(norm))
        for parameter, total in zip(parameters, sums, strict=True):
            noise = torch.from_numpy(randomness.standard_normal(parameter.shape, dtype=np.float32))
            parameter.grad = (total + NOISE * CLIP * noise) / BATCH
        optimizer.step()
    return parameters


@pytest.mark.parametrize("numbers", [2**28, 1])
@pytest.mark.parametrize("make", [dense, convolutional])
def test_training_is_that_of_a_loop_over_single_examples(
    make: Callable[[], nn.Module], numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dp_sgd, "MAX_NUMBERS", numbers)
    for module in (dp_sgd, example_checks):
        monkeypatch.setattr(module, "PROBED", 3)
    # Features need not lie in [0, 1]; a non-finite gradient of any record counts as zero.
    inputs = 30 * torch.randn(RECORDS, 3, 2, 2, generator=torch.Generator().manual_seed(1)).half()
    inputs[::7, 0, 0, 0] = float("nan")
    labels, model, passes = torch.arange(RECORDS) % 3, started(make), []

    def look(layer: nn.Module, given: tuple[Tensor]) -> None:
        passes.append((len(given[0]), given[0].dtype))

    hook = model.register_forward_pre_hook(look)
    train(model, inputs, labels, run_of(), randomness=np.random.default_rng(5))
    hook.remove()
    wanted = one_by_one(started(make), inputs.float(), labels, np.random.default_rng(5))
    for found, parameter in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(found, parameter, rtol=1e-4, atol=1e-5)
    assert {dtype for _, dtype in passes} == {torch.float32}
    assert max(count for count, _ in passes) <= (3 if numbers == 1 else RECORDS)


def test_a_training_without_a_step_is_refused() -> None:
    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, np.random.default_rng(0))
    with pytest.raises(BenchError, match="number of runs of DP-SGD"):
        book.dp_sgd(dense(), torch.rand(RECORDS, 3, 2, 2), torch.arange(RECORDS) % 3, run_of(steps=0))
