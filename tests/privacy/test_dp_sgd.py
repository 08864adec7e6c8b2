"""DP-SGD: its steps audited on adjacent sets, its sampling, its charge, its refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy import events
from bench.privacy.accountants import proven
from bench.privacy.ledger import Ledger, seeded_ledger
from helpers.draws import DELTA, DRAWS, best


def dp_sgd_steps(with_record: bool, draws: int, multiplier: float, seed: int) -> np.ndarray:
    """Draw `draws` steps of the ledger's DP-SGD optimiser on one weight; the record's gradient is above the clip."""
    import torch
    from opacus import GradSampleModule

    from bench.privacy.dp_sgd import _LedgerOptimizer

    model = GradSampleModule(torch.nn.Linear(1, 1, bias=False), loss_reduction="sum")
    weight = next(model.parameters())
    optimizer = _LedgerOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), noise_multiplier=multiplier, max_grad_norm=2.0,
        expected_batch_size=1, loss_reduction="sum",
    )  # fmt: skip
    optimizer.randomness = np.random.default_rng(seed)
    chosen = np.random.default_rng([seed, 1]).random(draws) < RATE
    steps = np.empty(draws)
    big, none = torch.full((1, 1, 1), -50.0), torch.zeros((0, 1, 1))
    for number in range(draws):
        with torch.no_grad():
            weight.zero_()
        optimizer.zero_grad()
        weight.grad_sample = (big if with_record and chosen[number] else none).clone()
        optimizer.step()
        steps[number] = weight.item()
    return steps / 2.0


RATE = 0.5


def dp_sgd_bound(draws: int, multiplier_used: float) -> tuple[float, float]:
    """Poisson sampling at RATE: a step is a mixture of N(0, s^2) and N(1, s^2) with the record, else N(0, s^2)."""
    from scipy import optimize, stats

    multiplier = 0.8
    stated = proven([events.DPSGD(RATE, multiplier, 1)], DELTA).epsilon

    def hockey_stick(epsilon: float) -> tuple[float, float]:
        # The ratio is 1 - q + q exp((x - 1/2) / s^2); where it is e^eps lies the edge of the best set.
        cut = 0.5 + multiplier**2 * math.log((math.exp(epsilon) - 1 + RATE) / RATE)
        with_record = (1 - RATE) * stats.norm.sf(cut / multiplier) + RATE * stats.norm.sf((cut - 1) / multiplier)
        return with_record - math.exp(epsilon) * stats.norm.sf(cut / multiplier), cut

    exact = optimize.brentq(lambda epsilon: hockey_stick(epsilon)[0] - DELTA, 0.01, 10)
    assert exact <= stated <= exact + 1e-2, "the event's figure is the exact one of one Poisson step"
    first, second = dp_sgd_steps(True, draws, multiplier_used, 1), dp_sgd_steps(False, draws, multiplier_used, 2)
    return best([(first > cut, second > cut) for cut in (hockey_stick(stated)[1], 1.0)], DELTA), stated


def test_audit_of_dp_sgd_steps() -> None:
    found, stated = dp_sgd_bound(40_000, 0.8)
    assert 0.7 * stated < found < stated
    found, stated = dp_sgd_bound(40_000, 0.4)
    assert found > stated


@pytest.mark.slow
def test_audit_of_a_million_dp_sgd_steps() -> None:
    found, stated = dp_sgd_bound(DRAWS, 0.8)
    assert 0.9 * stated < found < stated
    found, stated = dp_sgd_bound(DRAWS, 0.4)
    assert found > stated


def dp_sgd_run(steps: int, records: int, batch: int, images: object = None, **changes: object) -> tuple[Ledger, object]:
    import torch
    from torch.nn.functional import cross_entropy

    from bench.privacy.dp_sgd import DPSGDRun

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    given = torch.rand(records, 1, 2, 2, generator=torch.Generator().manual_seed(0)) if images is None else images
    run = DPSGDRun(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=cross_entropy,
        **{"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": batch, "steps": steps, **changes},
    )
    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, np.random.default_rng(0))
    book.dp_sgd(model, given, torch.zeros(records, dtype=torch.long), run)
    return book, model


def test_dp_sgd_samples_each_record_at_the_rate_that_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.privacy import dp_sgd

    seen = np.zeros(50)
    step = dp_sgd._step

    def counting(module, optimizer, images, labels, chosen, run) -> None:
        seen[chosen.numpy()] += 1
        step(module, optimizer, images, labels, chosen, run)

    monkeypatch.setattr(dp_sgd, "_step", counting)
    book, _ = dp_sgd_run(steps=800, records=50, batch=10)
    (event,) = book.events
    assert (event.sampling_rate, event.steps) == (0.2, 800)
    # 40,000 independent draws: five standard errors are 0.01.
    assert abs(seen.mean() / 800 - event.sampling_rate) < 0.01
    assert abs(seen / 800 - event.sampling_rate).max() < 0.08


def test_dp_sgd_is_charged_even_where_it_breaks_off() -> None:
    def breaks(logits: object, labels: object) -> object:
        raise RuntimeError("out of memory")

    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, np.random.default_rng(0))
    import torch

    from bench.privacy.dp_sgd import DPSGDRun

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    run = DPSGDRun(lambda p: torch.optim.SGD(p, lr=0.1), breaks, 1.0, 1.0, 20, 5)
    with pytest.raises(RuntimeError):
        book.dp_sgd(model, torch.rand(20, 1, 2, 2), torch.zeros(20, dtype=torch.long), run)
    assert [(event.kind, event.steps) for event in book.events] == [(events.DPSGD.kind, 5)]


def test_dp_sgd_drops_a_gradient_that_is_not_finite() -> None:
    import torch

    images = torch.rand(20, 1, 2, 2)
    images[3] = float("nan")
    _, model = dp_sgd_run(steps=20, records=20, batch=20, images=images)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_batch_norm_student_is_refused_by_dp_sgd() -> None:
    import torch
    from torch.nn.functional import cross_entropy

    from bench.privacy.dp_sgd import DPSGDRun

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    run = DPSGDRun(lambda p: torch.optim.SGD(p, lr=0.1), cross_entropy, 1.0, 1.0, 5, 2)
    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, np.random.default_rng(0))
    with pytest.raises(BenchError, match="BatchNorm1d"):
        book.dp_sgd(model, torch.rand(20, 1, 2, 2), torch.zeros(20, dtype=torch.long), run)
