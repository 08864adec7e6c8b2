"""DP-SGD in lockstep: the losses of its steps are those of the sampled Gaussian mechanism."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.errors import BenchError
from bench.core.types import Adjacency
from bench.evaluation.audit.lockstep import Transcript
from bench.privacy.dpsgd.clipping import Clipping, Flat, PerLayer, TopK
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.privacy.events.sampled_losses import sampled_gaussian_pld
from bench.privacy.mechanisms.ledger import Ledger
from helpers.lockstep import Work, lockstep

RECORDS = 40


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.zeros((count, 1, 2, 2), dtype=torch.uint8)
    found[0] = 255
    labels = torch.zeros(count, dtype=torch.int64)
    labels[0] = 1
    return found, labels


def trains(present: bool, batch: int, steps: int, noise: float, count: int = 4, *, centred: bool = False) -> Work:
    """DP-SGD on `count` records, of which the first may be absent, from a start at which its gradient is clipped."""

    def work(ledger: Ledger) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
        run = DPSGDRun(
            lambda parameters: torch.optim.SGD(parameters, lr=0.01), torch.nn.functional.cross_entropy, noise,
            Flat(0.1), batch, steps, RECORDS,
        )  # fmt: skip
        x, y = images(count)
        given = x[not present :]
        ledger.dp_sgd(model, given / 255 - (given / 255).mean(0) if centred else given, y[not present :], run)
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        return weights, [event.as_dict() for event in ledger.events]

    return work


def dp_sgd(present: bool, batch: int, steps: int, noise: float, tilt: float, seed: int = 0) -> Transcript:
    works = trains(present, batch, steps, noise), trains(not present, batch, steps, noise)
    found, one, other = lockstep(*works, tilt, seed, adjacency=Adjacency.ADD_REMOVE)
    assert found.difference == ""
    (weights, events), (others, charged) = one, other
    assert all(torch.equal(weights[name], others[name]) for name in weights), "both models are trained"
    assert events == charged
    return found


@pytest.mark.parametrize("clipping", [PerLayer(1e-4), TopK(1e-4, 0.3)])
def test_a_record_that_is_clipped_otherwise_moves_the_sum_as_far(clipping: Clipping) -> None:
    def work(present: bool) -> Work:
        def train(ledger: Ledger) -> None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
            x, y = images(RECORDS)
            loss = torch.nn.functional.cross_entropy
            run = DPSGDRun(lambda p: torch.optim.SGD(p, lr=0.01), loss, 2.0, clipping, RECORDS, 3, RECORDS)
            ledger.dp_sgd(model, x[not present :], y[not present :], run)

        return train

    found, _, _ = lockstep(work(True), work(False), adjacency=Adjacency.ADD_REMOVE)
    assert found.training is not None
    assert found.training.distances == pytest.approx([0.5] * 3, rel=0.02)


def test_dp_sgd_on_whole_batches_is_the_gaussian_mechanism() -> None:
    steps, noise = 4, 2.0
    found = dp_sgd(True, RECORDS, steps, noise, tilt=1.0)
    assert found.training is not None
    assert found.training.rate == 1
    assert found.training.distances == pytest.approx([1 / noise] * steps, rel=1e-4), "clipped to the norm"
    mu2 = steps / noise**2
    assert found.size == pytest.approx(mu2, abs=0.02)
    losses = np.array([dp_sgd(True, RECORDS, steps, noise, 0.0, seed).loss for seed in range(40)])
    assert losses.mean() == pytest.approx(mu2 / 2, abs=5 * math.sqrt(mu2 / 40))
    assert losses.std() == pytest.approx(math.sqrt(mu2), rel=5 / math.sqrt(80))


@pytest.mark.slow
@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("tilt", [0.0, 2.0])
def test_the_losses_of_dp_sgd_estimate_the_delta_of_its_pld(present: bool, tilt: float) -> None:
    batch, steps, noise, epsilon = 10, 4, 1.0, 0.3
    pld = sampled_gaussian_pld(noise, batch / RECORDS, 1e-4).self_compose(steps)
    pmf = pld._pmf_remove if present or pld._symmetric else pld._pmf_add
    runs = [dp_sgd(present, batch, steps, noise, tilt, seed) for seed in range(80)]
    loss, log_weight = np.array([(run.loss, run.log_weight) for run in runs]).T
    shown = np.exp(log_weight) * np.maximum(-np.expm1(epsilon - loss), 0)
    error = shown.std() / math.sqrt(len(runs))
    wanted = pmf.get_delta_for_epsilon(epsilon)
    assert wanted > 0.01
    assert shown.mean() == pytest.approx(wanted, abs=5 * error + 0.01 * wanted)


@pytest.mark.parametrize("other", [trains(True, 10, 2, 1.0), trains(False, 10, 2, 1.0, count=3)])
def test_dp_sgd_on_sets_that_differ_otherwise_is_refused(other: Work) -> None:
    with pytest.raises(BenchError, match="differ in a first record, present or absent"):
        lockstep(trains(True, 10, 2, 1.0), other, adjacency=Adjacency.ADD_REMOVE)


def test_records_that_move_with_another_one_are_named_as_a_difference() -> None:
    """Centred by a mean without noise, as P3GM's code does."""
    works = (trains(present, 10, 2, 1.0, centred=True) for present in (True, False))
    found, _, _ = lockstep(*works, adjacency=Adjacency.ADD_REMOVE)
    assert "records that change where another record" in found.difference
