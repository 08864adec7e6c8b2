"""The noisy change of the loss on a Poisson sample: its bound, its noise, its charge, and its exact privacy loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.audit.tapped_dp_sgd import tapped_loss_change
from bench.privacy.accounting import accountants, distributions
from bench.privacy.events.events import SampledGaussian
from bench.privacy.mechanisms import loss_change
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise
from helpers.draws import DELTA, best
from helpers.ledgers import seeded_ledger

BOUND = 0.001


class Net(nn.Module):
    """Logits (size * x, 0): for positive images a large size favours label 0."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.tensor(size))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.size * images.flatten(1).sum(1), torch.zeros(len(images))], 1)


def change(values: list[float], before: float = 0.0, after: float = 1.0) -> float:
    images = torch.tensor(values).reshape(-1, 1, 1, 1)
    return loss_change.loss_change(Net(before), Net(after), images, torch.zeros(len(values), dtype=torch.long), BOUND)


def test_a_record_moves_the_change_from_one_bound_to_the_other_at_most() -> None:
    assert change([1.0, 1.0]) == -BOUND
    assert change([1.0, 1.0, -1e6]) == BOUND, "it is one of three, and as far away as it likes"
    assert change([0.0, 0.0]) == 0.0
    assert change([1e-3]) == pytest.approx(math.log1p(math.exp(-1e-3)) - math.log(2), rel=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38])
def test_a_change_that_is_undefined_is_the_bound(value: float) -> None:
    found = change([1.0, value], 1e30, 1e38)
    assert abs(found) <= BOUND
    assert change([math.nan, 1.0]) == BOUND


def test_no_record_is_no_change() -> None:
    assert change([]) == 0.0


def test_the_mean_is_that_of_all_records_in_several_passes_and_leaves_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    net, images, labels = Net(0.5), torch.randn(10, 1, 1, 1), torch.arange(10) % 2
    net.train()
    after = Net(0.9).train()
    whole = loss_change.loss_change(net, after, images, labels, 1e3)
    monkeypatch.setattr(loss_change, "RECORDS_A_PASS", 3)
    assert loss_change.loss_change(net, after, images, labels, 1e3) == pytest.approx(whole, rel=1e-5)
    losses = [nn.functional.cross_entropy(one(images), labels).item() for one in (net, after)]
    assert whole == pytest.approx(losses[1] - losses[0], rel=1e-4)
    assert net.training
    assert after.training


def draws(with_record: bool, count: int, rate: float, multiplier: float, seed: int) -> np.ndarray:
    """Draw the answer in units of its sensitivity; it is 0 without the record."""
    images = torch.tensor([-1e6, 1.0, 1.0])[not with_record :].reshape(-1, 1, 1, 1)
    labels, noise = torch.zeros(len(images), dtype=torch.long), SeededNoise(np.random.default_rng(seed))
    first = loss_change.loss_change

    def cached(before: nn.Module, after: nn.Module, some: torch.Tensor, theirs: torch.Tensor, bound: float) -> float:
        key = tuple(some.flatten().tolist())
        if key not in known:  # twenty thousand passes would take minutes
            known[key] = first(before, after, some, theirs, bound)
        return known[key]

    known: dict[tuple[float, ...], float] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_change, "loss_change", cached)
        found = [
            loss_change.sampled_loss_change(Net(0.0), Net(1.0), images, labels, BOUND, rate, multiplier, noise)[0]
            for _ in range(count)
        ]
    return np.array(found) / (2 * BOUND) + 0.5


@pytest.mark.slow
def test_audit_of_the_noise() -> None:
    """If all records are sampled, one record moves the answer by the whole sensitivity."""
    stated = accountants.proven([SampledGaussian(1.0, 1.3)], DELTA).epsilon
    cuts = (0.5, 1.5, 2.5)

    def bound(multiplier: float) -> float:
        first, second = (draws(with_record, 10_000, 1.0, multiplier, with_record) for with_record in (True, False))
        return best([(first > cut, second > cut) for cut in cuts], DELTA)

    assert 0.5 * stated < bound(1.3) < stated
    assert bound(0.65) > stated, "half the noise is found out"


def test_each_record_is_in_the_sample_at_the_rate_that_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = np.zeros(40)

    def counting(before: nn.Module, after: nn.Module, images: torch.Tensor, *_: object) -> float:
        seen[images.flatten().long().numpy()] += 1
        return 0.0

    monkeypatch.setattr(loss_change, "loss_change", counting)
    book = ledger()
    for _ in range(1000):
        release(book, torch.arange(40.0).reshape(-1, 1, 1, 1), sampling_rate=0.2)
    assert abs(seen.mean() / 1000 - 0.2) < 5 * math.sqrt(0.16 / 40_000)
    assert distributions.merged(book.events) == [SampledGaussian(0.2, 1.3, 1000, adjacency=Adjacency.ADD_REMOVE)]


def ledger() -> Ledger:
    return seeded_ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, np.random.default_rng(0))


def release(book: Ledger, images: torch.Tensor, **changed: float) -> np.ndarray:
    given = {"bound": BOUND, "sampling_rate": 0.5, "noise_multiplier": 1.3, **changed}
    return book.sampled_loss_change(Net(0.0), Net(1.0), images, torch.zeros(len(images), dtype=torch.long), **given)


def test_what_is_given_is_checked() -> None:
    for changed, message in (
        ({"sampling_rate": 1.5}, "at most 1"),
        ({"bound": 0.0}, "bound must be a positive"),
        ({"noise_multiplier": -1.0}, "noise multiplier|noise of"),
    ):
        book = ledger()
        with pytest.raises(BenchError, match=message):
            release(book, torch.ones(3, 1, 1, 1), **changed)
        assert book.events == ()
    book = ledger()
    with book.charging_again(), pytest.raises(BenchError, match="does not support votes"):
        release(book, torch.ones(3, 1, 1, 1))


@pytest.mark.few(1)
@pytest.mark.parametrize("present", [True, False])
def test_the_exact_loss_of_a_whole_sample_is_that_of_a_gaussian(present: bool) -> None:
    """The tilted draw has ln E[exp(loss)] of mu^2, and the answer lies around the first set's change."""
    images = torch.tensor([-1e6, 1.0, 1.0]).reshape(-1, 1, 1, 1)
    common = {
        "before": Net(0.0), "after": Net(1.0), "bound": BOUND, "sampling_rate": 1.0, "noise_multiplier": 2.0,
    }  # fmt: skip
    more, fewer = (
        {**common, "images": x, "labels": torch.zeros(len(x), dtype=torch.long)} for x in (images, images[1:])
    )
    first, second = (more, fewer) if present else (fewer, more)
    generator = np.random.default_rng(0)
    plain = [tapped_loss_change(first, second, generator, 0.0) for _ in range(2000)]
    assert np.mean([one.loss for one in plain]) == pytest.approx(0.125, abs=5 * 0.5 / math.sqrt(2000))
    centre = BOUND if present else -BOUND
    assert np.mean([one.answer[0] for one in plain]) == pytest.approx(centre, abs=5 * 4 * BOUND / math.sqrt(2000))
    tilted = [tapped_loss_change(first, second, generator, 1.0) for _ in range(50)]
    assert [one.loss + one.log_weight for one in tilted] == pytest.approx([0.25] * 50, abs=0.02)
