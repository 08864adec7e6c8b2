"""Code of a method cannot replace the operations with which a mechanism clips and adds noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.privacy.events.events import Gaussian
from bench.privacy.mechanisms.ledger import Ledger
from helpers.ledgers import seeded_ledger


class NoNoise(TorchFunctionMode):
    """Turns each product with a number into zeros, as ``spread * noise`` is one."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        scaled = getattr(function, "__name__", "") in ("mul", "__mul__", "__rmul__")
        return torch.zeros_like(found) if scaled and any(isinstance(one, float) for one in args) else found


class NoDispatch(TorchDispatchMode):
    """A dispatch mode of a method."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Norm(float):
    """A clipping norm that vanishes in products."""

    def __rmul__(self, other: float) -> float:
        return 0.0


class Keen(torch.Tensor):
    """A subclass as the gradients of a net."""


class Net(torch.nn.Module):
    """A linear net whose activations are of a class, or which enters `mode` in its forward pass and stays in it."""

    mode: TorchFunctionMode | TorchDispatchMode | None = None
    kind: type[torch.Tensor] = torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2, bias=False)
        torch.nn.init.zeros_(self.layer.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.layer(images.flatten(1).as_subclass(self.kind)).as_subclass(torch.Tensor)
        if self.mode is not None:
            self.mode.__enter__()
            self.mode = None
        return found


def a_ledger(adjacency: Adjacency = Adjacency.REPLACE) -> Ledger:
    return seeded_ledger(PrivacyUnit.RECORD, adjacency, np.random.default_rng(0))


def trained(change: Callable[[Net], None] = lambda net: None, norm: float = 1.0) -> np.ndarray:
    """Return the weights of a net after three steps of DP-SGD, with noise of the same seed each time."""
    net = Net()
    change(net)
    images, labels = torch.rand(8, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    run = DPSGDRun(lambda given: torch.optim.SGD(given, lr=1.0), cross_entropy, 5.0, Flat(norm), 4, 3, 8)
    a_ledger(Adjacency.ADD_REMOVE).dp_sgd(net, images, labels, run)
    return net.layer.weight.detach().numpy()


@pytest.mark.parametrize("mode", [NoNoise, NoDispatch])
def test_a_mechanism_refuses_to_run_inside_a_mode(mode: type[Any]) -> None:
    ledger = a_ledger()
    with mode(), pytest.raises(BenchError, match=f"runs inside {mode.__name__}, a mode that can replace"):
        ledger.gaussian(np.zeros(3), sensitivity=1.0, noise_multiplier=1.0)
    assert not ledger.events
    with torch.device("cpu"):
        assert len(ledger.gaussian(np.zeros(3), sensitivity=1.0, noise_multiplier=1.0)) == 3


def test_a_mode_that_a_net_enters_does_not_change_the_noise() -> None:
    mode = NoNoise()
    inside = trained(lambda net: setattr(net, "mode", mode))
    mode.__exit__(None, None, None)
    assert np.array_equal(inside, trained())


def test_a_dispatch_mode_that_a_net_enters_is_refused() -> None:
    mode = NoDispatch()
    try:
        with pytest.raises(BenchError, match="runs inside NoDispatch"):
            trained(lambda net: setattr(net, "mode", mode))
    finally:
        mode.__exit__(None, None, None)


def test_a_norm_that_vanishes_in_products_is_read_as_a_number() -> None:
    assert np.array_equal(trained(norm=Norm(1.0)), trained())


def test_gradients_are_plain_real_tensors() -> None:
    with pytest.raises(BenchError, match="plain, dense tensors, not Keen"):
        trained(lambda net: setattr(net, "kind", Keen))


@pytest.mark.parametrize("kind", [torch.complex64, torch.bfloat16, torch.float16])
def test_gradients_have_the_precision_that_the_sensitivity_assumes(kind: torch.dtype) -> None:
    """One record of 2,048 moves a sum of bfloat16 gradients by thrice the clipping norm."""

    def convert(net: Net) -> None:
        net.to(dtype=kind)

    with pytest.raises(BenchError, match=f"float32 or float64, not {kind}"):
        trained(convert)


def test_a_declared_maximum_is_read_as_numbers() -> None:
    class Equal(float):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = float.__hash__

    ledger = a_ledger()
    ledger.at_most([Gaussian(Equal(8.0))])
    with pytest.raises(BenchError, match="1 release: this exceeds the declared maximum"):
        ledger.gaussian(np.zeros(3), sensitivity=1.0, noise_multiplier=1.0)
