"""DP-Sinkhorn: its transport, its gradients, and what the number of images in the authors' code tells."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Budget, Facts
from bench.methods.generative.dp_sinkhorn import DPSinkhorn, DPSinkhornConfig, costs, transport
from bench.privacy.accounting.accountants import proven
from bench.privacy.mechanisms.executors import Call, Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair, public_set

MNIST = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))
X = torch.rand(6, 5, generator=torch.Generator().manual_seed(0))
Y = torch.rand(6, 5, generator=torch.Generator().manual_seed(1))


def test_costs_are_squares_plus_absolute_differences() -> None:
    difference = X[:, None] - Y
    wanted = difference.square().sum(2) + 3 * difference.abs().sum(2)
    assert torch.allclose(costs(X, Y, 3.0), wanted, atol=1e-5)


def test_with_little_regularisation_transport_is_the_best_assignment() -> None:
    cost = costs(X, Y, 1.0)
    rows, columns = optimize.linear_sum_assignment(cost.numpy())
    assert float(transport(cost, 1e-3, 200)) == pytest.approx(float(cost[rows, columns].mean()), rel=1e-3)


def test_the_gradient_is_that_of_the_regularised_distance() -> None:
    x, regularisation = X.double().requires_grad_(), 0.3
    (found,) = torch.autograd.grad(transport(costs(x, Y.double(), 0.0), regularisation, 300), x)

    def dual(moved: torch.Tensor) -> float:
        """Its value by the dual potentials."""
        cost, g = costs(moved, Y.double(), 0.0).detach(), torch.zeros(6, dtype=torch.float64)
        for _ in range(300):
            f = -regularisation * (torch.logsumexp((g - cost) / regularisation, 1) - math.log(6))
            g = -regularisation * (torch.logsumexp((f[:, None] - cost) / regularisation, 0) - math.log(6))
        return float(f.mean() + g.mean())

    for row, entry in ((0, 0), (3, 2), (5, 4)):
        step = torch.zeros_like(x)
        step[row, entry] = 1e-4
        wanted = (dual(x + step) - dual(x - step)) / 2e-4
        assert float(found[row, entry]) == pytest.approx(wanted, rel=5e-3, abs=1e-6)


def noiseless() -> tuple[Ledger, list[np.ndarray], list[np.ndarray]]:
    """Return a ledger that keeps what its functions give on an empty sample and on a whole one, before clipping."""
    empty: list[np.ndarray] = []
    whole: list[np.ndarray] = []

    class Watching(Noisy):
        def begin(self, call: Call) -> Call:
            function, images, labels = (call.private[name] for name in ("function", "images", "labels"))
            empty.append(function(images[:0], labels[:0]))
            whole.append(function(images, labels))
            return call

    executor = Watching(SeededNoise(np.random.default_rng(0)))
    return Ledger(DPSinkhorn.unit, DPSinkhorn.adjacency, executor), empty, whole


def test_the_noisy_matrix_has_as_many_rows_whatever_the_sample() -> None:
    config = DPSinkhornConfig(
        **{**DPSinkhorn.presets(SMALL)["tiny"], "steps": 2, "batch_size": 10, "sinkhorn_steps": 10}
    )
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    ledger, empty, whole = noiseless()
    DPSinkhorn(config, private_pair()[0].facts).fit_generator(private_pair()[0], public_set(), ledger, context)
    assert [given.shape for given in (*empty, *whole)] == [(10 * 784,)] * 4
    assert not np.any(empty)
    assert all(np.linalg.norm(given) > 0 for given in whole)
    assert sum(event.count for event in ledger.events) == 2  # type: ignore[attr-defined]


def with_size(config: DPSinkhornConfig, facts: Facts, order: float, size_too: bool) -> float:
    """Return epsilon at delta 1e-5 by one Renyi order, of the noisy matrices alone or with the sizes of the samples.

    Where it is known, the record is in a sample of size k with probability k / n.
    """
    z = np.arange(-12, 14, 0.01)
    mass = np.exp(-(z**2) / 2) * 0.01 / math.sqrt(2 * math.pi)
    ratio = np.expm1(z / config.noise_multiplier - 1 / (2 * config.noise_multiplier**2))

    def excess(rate: float) -> float:
        return float((np.expm1(order * np.log1p(rate * ratio)) * mass).sum())

    n, rate = facts.private_records, config.batch_size / facts.private_records
    if size_too:
        sizes = np.arange(200)
        log_mass = stats.binom.logpmf(sizes, n, rate)
        gain = (order - 1) * (log_mass - stats.binom.logpmf(sizes, n - 1, rate))
        shown = np.exp(gain) * np.array([excess(size / n) for size in sizes])
        moment = float((np.exp(log_mass) * (np.expm1(gain) + shown)).sum())
    else:
        moment = excess(rate)
    renyi = config.steps * math.log1p(moment) / (order - 1)
    return renyi + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)


def test_as_many_images_as_the_sample_has_records_cost_more_than_is_claimed() -> None:
    claim = DPSinkhorn(DPSinkhornConfig(), MNIST).claimed(1e-5).epsilon
    assert claim == pytest.approx(10.01, abs=0.01)
    orders = np.arange(3.0, 4.0, 0.1)
    alone, both = (
        min(with_size(DPSinkhornConfig(), MNIST, order, size_too) for order in orders) for size_too in (False, True)
    )
    assert alone == pytest.approx(claim, abs=0.01)
    assert both == pytest.approx(10.22, abs=0.01)
    stopped = DPSinkhornConfig(steps=3_446_204)  # where the authors' code stops
    assert min(with_size(stopped, MNIST, order, True) for order in orders) == pytest.approx(9.36, abs=0.01)


def test_the_claim_holds() -> None:
    assert proven(DPSinkhorn(DPSinkhornConfig(), MNIST).charges(), 1e-5).epsilon < 10.0


def test_wrong_settings_get_a_clear_error() -> None:
    for name, value, says in (
        ("fresh", 0.0, "positive and at most 1"),
        ("regularisation", -1.0, "positive"),
        ("steps", 0, "at least 1"),
        ("generator_average", 1.0, "below 1"),
    ):
        with pytest.raises(BenchError, match=says):
            configured("dp-sinkhorn", {name: value})
    with pytest.raises(BenchError, match="between 1 and the 240 private records"):
        DPSinkhorn(DPSinkhornConfig(batch_size=300), SMALL).calibrate(Budget(1.0, 1e-5))
