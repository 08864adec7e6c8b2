"""Which functions and classes a method's code replaces."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch._dynamo  # torch imports it with the first optimiser, and it replaces functions of torch

from bench.evaluation.check.replaced import Originals


class Own(torch.optim.SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()


def test_an_optimiser_of_a_library_still_steps() -> None:
    """Opacus's never calls torch's constructor, whose hooks a wrapped step would need."""
    from opacus.optimizers import DPOptimizer

    Originals()
    weight = torch.nn.Parameter(torch.zeros(2))
    wrapped = DPOptimizer(
        torch.optim.SGD([weight], lr=1.0), noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=1
    )
    weight.grad_sample = torch.ones(1, 2)  # type: ignore[attr-defined]
    wrapped.step()
    assert weight.detach().norm().item() == pytest.approx(1.0, rel=1e-3)


def test_an_optimiser_of_this_package_may_be_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch wraps `step` in the class of the first optimiser of a kind."""
    module = types.ModuleType("bench.optimisers")
    kind = type("Fresh", (Own,), {"step": lambda self: None, "__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(module, "Fresh", kind, raising=False)
    originals = Originals()
    kind([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    assert originals.replaced() == ""
    monkeypatch.setattr(kind, "step", lambda self: None)
    assert originals.replaced() == "bench.optimisers.Fresh.step"
