"""Clipping to a quantile: how the norm follows it, what one record moves, the joint charge of gradients and count."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.core.errors import BenchError
from bench.core.types import Adjacency
from bench.privacy.accounting.accountants import proven
from bench.privacy.dpsgd import clipping as clipping_module
from bench.privacy.dpsgd.clipping import FILLED, Adaptive
from bench.privacy.dpsgd.dp_sgd import DPSGDRun, NoisySteps, train
from bench.privacy.dpsgd.gradient_forms import weighted_sum
from bench.privacy.events import events
from bench.privacy.mechanisms.ledger import Ledger
from helpers.draws import DELTA, best
from helpers.lockstep import Work, lockstep

RATE, MULTIPLIER, COUNT_NOISE = 0.5, 0.8, 0.6


def begun(clipping: Adaptive, multiplier: float, batch: int = 1) -> Adaptive:
    clipping.begin(["weight"], [nn.Parameter(torch.zeros(1))], multiplier, batch)
    return clipping


@pytest.mark.parametrize("quantile", [0.2, 0.9])
def test_the_norm_follows_the_quantile(quantile: float) -> None:
    weight, norms = nn.Parameter(torch.zeros(1)), torch.linspace(0, 10, 1001)[:, None]
    clipping = begun(Adaptive(0.1, quantile, 0.5, 20.0), 1.0, len(norms))
    run = DPSGDRun(torch.optim.SGD, cross_entropy, 1.0, clipping, len(norms), 1, len(norms))
    steps = NoisySteps(torch.optim.SGD([weight], lr=1.0), clipping, run, np.random.default_rng(0))
    for _ in range(150):
        steps.add([norms])
        steps.step()
    assert clipping.norm == pytest.approx(10 * quantile, rel=0.15)


@pytest.mark.slow
def test_with_no_learning_rate_it_is_flat_clipping_with_the_gradients_share_of_the_noise() -> None:
    clipping = begun(Adaptive(2.0, 0.5, 0.0, COUNT_NOISE), MULTIPLIER)
    draws = drawn(clipping, False, 5_000, MULTIPLIER, 0, rate=1.0)
    wanted = [2.0 * (MULTIPLIER**-2 - (2 * COUNT_NOISE) ** -2) ** -0.5, COUNT_NOISE * clipping.count_unit]
    assert draws.std(0) == pytest.approx(wanted, rel=0.05)
    gradient, count = clipping.summed([torch.tensor([[0.5], [8.0], [9.0]])])
    assert float(gradient) == pytest.approx(4.5, rel=1e-4)
    assert float(count) / clipping.count_unit == pytest.approx(-0.5)


@pytest.mark.parametrize("present", [0, 1, 5, FILLED])
def test_norms_are_taken_of_full_passes_alone(present: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a device rounds a norm may depend on the number of rows; the count compares norms with the clipping norm."""
    seen: list[int] = []
    norms = clipping_module.norms
    monkeypatch.setattr(clipping_module, "norms", lambda rows: (seen.append(len(rows)), norms(rows))[1])
    rows = torch.randn(FILLED, 7, generator=torch.Generator().manual_seed(0))[:present]
    clipping = begun(Adaptive(2.0, 0.5, 0.0, COUNT_NOISE), MULTIPLIER)
    total, count = clipping.summed([rows])
    assert seen == [FILLED]
    _, (factors,) = clipping.clipped([rows])
    assert torch.equal(total, weighted_sum(rows, factors))
    assert float(count) / clipping.count_unit == pytest.approx(float((factors == 1).sum()) - present / 2, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(size=st.floats(-6, 38), norm=st.floats(-3, 3), share=st.floats(0.01, 0.999), seed=st.integers(0, 10**6))
def test_a_record_moves_gradients_and_count_by_the_sensitivity_at_most(
    size: float, norm: float, share: float, seed: int
) -> None:
    """If the count's noise is near half the multiplier, the count takes nearly all of the sensitivity."""
    clipping = begun(Adaptive(10.0**norm, 0.5, 0.2, 1.0 / (2 * share)), 1.0)
    record = torch.randn(1, 7, generator=torch.Generator().manual_seed(seed)) * 10.0**size
    moved = torch.cat(clipping.summed([record])).double()
    assert float(moved.norm()) <= clipping.sensitivity
    if norm + 3 < size < 18:  # above this, norms overflow and the gradient counts as zero
        assert float(moved.norm()) == pytest.approx(clipping.sensitivity, rel=1e-3)


def drawn(
    clipping: Adaptive, present: bool, draws: int, multiplier: float, seed: int, rate: float = RATE
) -> np.ndarray:
    """Return the noisy gradient and count (draws, 2) of steps on one weight, with one record above the norm or none."""
    seen: list[list[float]] = []

    class Watched(Adaptive):
        def released(self, noisy: list[Tensor]) -> list[Tensor]:
            seen.append([float(one) for one in noisy])
            return super().released(noisy)

    weight, record = nn.Parameter(torch.zeros(1)), torch.tensor([[70.0]])
    watched = begun(Watched(*dataclasses.astuple(clipping)[:4]), MULTIPLIER)
    run = DPSGDRun(torch.optim.SGD, cross_entropy, multiplier, watched, 1, 1, 1)
    steps = NoisySteps(torch.optim.SGD([weight], lr=1.0), watched, run, np.random.default_rng(seed))
    for sampled in np.random.default_rng([seed, 1]).random(draws) < rate:
        steps.add([record[: int(sampled and present)]])
        steps.step()
    return np.array(seen)


def bound(draws: int, multiplier_used: float) -> tuple[float, float]:
    """Bound epsilon along the record's direction, in which it moves the noisy sum by 1."""
    clipping = begun(Adaptive(2.0, 0.5, 0.0, COUNT_NOISE), MULTIPLIER)
    moved = np.array([float(one) for one in clipping.summed([torch.tensor([[70.0]])])])
    stated = proven([events.DPSGD(RATE, MULTIPLIER, 1)], DELTA).epsilon
    first, second = (
        drawn(clipping, present, draws, multiplier_used, 1 + present) @ moved / (moved @ moved)
        for present in (True, False)
    )
    edge = 0.5 + MULTIPLIER**2 * math.log((math.exp(stated) - 1 + RATE) / RATE)
    return best([(first > cut, second > cut) for cut in (edge, 1.0)], DELTA), stated


@pytest.mark.slow
def test_the_joint_charge_holds_and_half_the_noise_does_not() -> None:
    found, stated = bound(12_000, MULTIPLIER)
    assert 0.5 * stated < found < stated
    found, stated = bound(4_000, MULTIPLIER / 2)
    assert found > stated


def problem(clipping: Adaptive, present: bool = True) -> tuple[nn.Module, Tensor, Tensor, DPSGDRun]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 2))
    images = torch.zeros(20, 1, 2, 2)
    images[0] = 1.0
    labels = torch.zeros(20, dtype=torch.long)
    labels[0] = 1
    run = DPSGDRun(lambda p: torch.optim.SGD(p, lr=0.01), cross_entropy, 1.0, clipping, 20, 3, 20)
    return model, images[not present :], labels[not present :], run


def test_in_lockstep_the_record_moves_gradients_and_count_by_one_multiplier() -> None:
    def work(present: bool) -> Work:
        def trains(ledger: Ledger) -> None:
            ledger.dp_sgd(*problem(Adaptive(1e-4, 0.5, 0.2, 0.7), present))

        return trains

    runs = [lockstep(work(True), work(False), seed=seed, adjacency=Adjacency.ADD_REMOVE)[0] for seed in range(20)]
    for run in runs:
        assert run.training is not None
        assert run.training.distances == pytest.approx([1.0] * 3, rel=0.02)
    losses = np.array([run.loss for run in runs])
    assert losses.mean() == pytest.approx(1.5, abs=5 * math.sqrt(3 / 20)), "three Gaussian releases at distance 1"


def test_a_resumed_training_goes_on_with_the_norm_that_it_had() -> None:
    clipping = begun(Adaptive(1.0, 0.5, 0.2, 1.0), 1.0)
    clipping.released([torch.zeros(1), torch.tensor([3.0])])
    again = begun(Adaptive(1.0, 0.5, 0.2, 1.0), 1.0)
    again.load_state_dict(clipping.state_dict())
    assert again.norm == clipping.norm != 1.0


def test_a_training_leaves_the_settings_as_they_are() -> None:
    clipping = Adaptive(1e-4, 0.5, 0.2, 0.7)
    train(*problem(clipping), randomness=np.random.default_rng(0))
    assert clipping == Adaptive(1e-4, 0.5, 0.2, 0.7)


@pytest.mark.parametrize(("quantile", "count_noise", "words"), [(1.1, 1.0, "quantile"), (0.5, 0.5, "below twice")])
def test_settings_that_cannot_be_meant_are_refused(quantile: float, count_noise: float, words: str) -> None:
    with pytest.raises(BenchError, match=words):
        train(*problem(Adaptive(1.0, quantile, 0.2, count_noise)), randomness=np.random.default_rng(0))
