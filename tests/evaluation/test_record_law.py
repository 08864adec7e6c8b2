"""DP-SGD on other batches than Poisson's, as auditors see it: likelihood ratios of one record, and what they refute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.types import Adjacency, Sampling
from bench.evaluation.audit.record_law import FirstInFront, RecordLaw
from bench.privacy.accounting.accountants import proven
from bench.privacy.auditing.loss_bound import refuted_by_losses
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.privacy.events.batch_events import training_event
from bench.privacy.mechanisms.ledger import Ledger
from helpers.lockstep import Work, lockstep

PLACES, SIZE, NOISE = 8, 2, 1.0
MOVES = np.array([1.0, *(0.3 * np.arange(PLACES - 1) - 1)])
"""What the record, and each other, adds to a sum."""


def run(sampling: Sampling, steps: int, noise: float = NOISE, records: int = PLACES) -> DPSGDRun:
    return DPSGDRun(
        lambda parameters: torch.optim.SGD(parameters, lr=0.01), torch.nn.functional.cross_entropy, noise, Flat(1.0),
        SIZE, steps, records, sampling,
    )  # fmt: skip


def sums(sampling: Sampling, steps: int, generator: np.random.Generator, *, holds: bool) -> float:
    """Draw the noisy sums of `steps` steps, with the record or an empty place, and return their log likelihood ratio.

    The sums are those of the batches as they were drawn, before the observer's part is taken apart.
    """
    given, draws = run(sampling, steps), FirstInFront()
    law = RecordLaw(given, draws)
    rows = draws(given, PLACES, generator)
    for _ in range(steps):
        front = next(rows)[: 1 + draws.displaced]
        other = MOVES[front[1]] if draws.displaced else 0.0
        mine = MOVES[0] if holds else 0.0
        seen = (mine if draws.inside else other) + NOISE * generator.standard_normal()
        law.add(np.array([seen * MOVES[0] - MOVES[0] ** 2 / 2]), seen * other - other**2 / 2)
    return float(law.log[0])


@pytest.mark.few(4)
@pytest.mark.parametrize("sampling", list(Sampling))
@pytest.mark.parametrize("steps", [4, 6])
def test_likelihood_ratios_have_mean_one_without_the_record(sampling: Sampling, steps: int) -> None:
    generator = np.random.default_rng(0)
    without = np.exp([sums(sampling, steps, generator, holds=False) for _ in range(1500)])
    within = np.exp([-sums(sampling, steps, generator, holds=True) for _ in range(1500)])
    for ratios in (without, within):
        assert abs(ratios.mean() - 1) < 5 * ratios.std() / math.sqrt(len(ratios))
        assert ratios.std() > 0.1


@pytest.mark.parametrize("sampling", list(Sampling))
def test_first_records_come_in_front_and_all_others_are_drawn_as_ever(sampling: Sampling) -> None:
    draws, counts, inside = FirstInFront(3), np.zeros(PLACES + 2), 0
    rows = draws(run(sampling, 1), PLACES + 2, np.random.default_rng(0))
    for _ in range(8000):
        found = next(rows)
        assert found[:3].tolist() == [0, 1, 2]
        assert len(set(found.tolist())) == len(found)
        skipped = [3] if draws.displaced and draws.inside else []  # the displaced one is not in the sum then
        counts[np.delete(found, skipped)] += 1
        inside += draws.inside
    assert abs(inside / 8000 - SIZE / PLACES) < 0.03
    assert abs(counts[3:] / 8000 - SIZE / PLACES).max() < 0.03


def trains(sampling: Sampling, present: bool, noise: float, steps: int, records: int = PLACES) -> Work:
    def work(ledger: Ledger) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
        x, y = torch.zeros((records, 1, 2, 2), dtype=torch.uint8), torch.zeros(records, dtype=torch.int64)
        x[0], y[0] = 255, 1
        ledger.dp_sgd(model, x[not present :], y[not present :], run(sampling, steps, noise, records))
        return {name: value.clone() for name, value in model.state_dict().items()}, []

    return work


@pytest.mark.parametrize("sampling", [Sampling.FIXED, Sampling.RANDOM_ALLOCATION, Sampling.SHUFFLED])
@pytest.mark.parametrize("present", [True, False])
def test_runs_in_lockstep_take_the_same_noisy_steps(sampling: Sampling, present: bool) -> None:
    works = (trains(sampling, side, 0.5, 8) for side in (present, not present))
    found, (one, _), (other, _) = lockstep(*works, 0.0, 0, adjacency=Adjacency.ADD_REMOVE)
    assert found.difference == ""
    assert math.isfinite(found.loss)
    assert found.loss != 0
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_an_audit_refutes_that_shuffled_records_cost_what_poisson_batches_cost() -> None:
    noise, delta, records = 0.7, 1e-3, 40
    steps = records // SIZE
    first, second = (trains(Sampling.SHUFFLED, side, noise, steps, records) for side in (True, False))
    runs = [lockstep(first, second, 2.0, seed, adjacency=Adjacency.ADD_REMOVE)[0] for seed in range(30)]
    audited = refuted_by_losses([one.loss for one in runs], [one.log_weight for one in runs], delta)
    shuffled, poisson = (
        proven([training_event(sampling, 1 / steps, noise, steps)], delta).epsilon
        for sampling in (Sampling.SHUFFLED, Sampling.POISSON)
    )
    assert poisson < audited < shuffled
