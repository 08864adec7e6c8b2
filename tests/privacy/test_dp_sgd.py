"""DP-SGD: its steps audited on adjacent sets, its sampling, its charge, its refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit, Sampling
from bench.privacy.accounting.accountants import proven
from bench.privacy.dpsgd import dp_sgd
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun, NoisySteps
from bench.privacy.dpsgd.exact_steps import ExactSteps
from bench.privacy.events import events
from bench.privacy.mechanisms.ledger import Ledger
from bench.storage.cache import Cache
from bench.storage.checkpoint import Checkpoint
from helpers.dp_sgd_training import trained, weights
from helpers.draws import DELTA, DRAWS, best
from helpers.ledgers import seeded_ledger

AT_ONCE = 200
RATE = 0.5


def dp_sgd_steps(
    with_record: bool, draws: int, multiplier: float, seed: int, steps_of: type[NoisySteps] = NoisySteps
) -> np.ndarray:
    """Draw `draws` steps of the ledger's DP-SGD on one weight; the record's gradient exceeds the clipping norm. Each of
    :data:`AT_ONCE` weights has its own record; clipping, sampling and noise treat them separately.
    """
    weight = torch.nn.Parameter(torch.zeros(1, AT_ONCE))
    run = DPSGDRun(torch.optim.SGD, torch.nn.functional.cross_entropy, multiplier, Flat(2.0), 1, 1, 1)
    taken = steps_of(torch.optim.SGD([weight], lr=1.0), run.clipping, run, np.random.default_rng(seed))
    sample = np.random.default_rng([seed, 1])
    big, steps = -50.0 * torch.eye(AT_ONCE)[:, None], []
    for _ in range(draws // AT_ONCE):
        with torch.no_grad():
            weight.zero_()
        taken.add([big[(sample.random(AT_ONCE) < RATE) & with_record]])
        taken.step()
        steps.append(weight.detach().numpy()[0].copy())
    return np.concatenate(steps) / 2.0


def dp_sgd_bound(draws: int, used: float, steps_of: type[NoisySteps] = NoisySteps) -> tuple[float, float]:
    """Poisson sampling at RATE: a step is a mixture of N(0, s^2) and N(1, s^2) with the record, else N(0, s^2)."""
    from scipy import optimize, stats

    multiplier = 0.8
    stated = proven([events.DPSGD(RATE, multiplier, 1)], DELTA).epsilon

    def hockey_stick(epsilon: float) -> tuple[float, float]:
        # The ratio is 1 - q + q exp((x - 1/2) / s^2); the best set ends where it is e^eps.
        cut = 0.5 + multiplier**2 * math.log((math.exp(epsilon) - 1 + RATE) / RATE)
        with_record = (1 - RATE) * stats.norm.sf(cut / multiplier) + RATE * stats.norm.sf((cut - 1) / multiplier)
        return with_record - math.exp(epsilon) * stats.norm.sf(cut / multiplier), cut

    exact = optimize.brentq(lambda epsilon: hockey_stick(epsilon)[0] - DELTA, 0.01, 10)
    assert exact <= stated <= exact + 1e-2, "the event's figure is the exact one of one Poisson step"
    first = dp_sgd_steps(True, draws, used, 1, steps_of)
    second = dp_sgd_steps(False, draws, used, 2, steps_of)
    return best([(first > cut, second > cut) for cut in (hockey_stick(stated)[1], 1.0)], DELTA), stated


@pytest.mark.slow
@pytest.mark.parametrize("steps_of", [NoisySteps, ExactSteps])
def test_audit_of_a_million_dp_sgd_steps(steps_of: type[NoisySteps]) -> None:
    found, stated = dp_sgd_bound(DRAWS, 0.8, steps_of)
    assert 0.9 * stated < found < stated
    found, stated = dp_sgd_bound(8_000, 0.4, steps_of)
    assert found > stated


def dp_sgd_run(
    steps: int, records: int, batch: int, images: object = None, flatten: object = None, **changes: object
) -> tuple[Ledger, object]:
    model = torch.nn.Sequential(flatten or torch.nn.Flatten(), torch.nn.Linear(4, 2))
    given = torch.rand(records, 1, 2, 2, generator=torch.Generator().manual_seed(0)) if images is None else images
    run = DPSGDRun(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=cross_entropy,
        expected_batch_size=batch,
        steps=steps,
        **{"noise_multiplier": 1.0, "clipping": Flat(1.0), "records": records, **changes},
    )
    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, np.random.default_rng(0))
    book.dp_sgd(model, given, torch.zeros(len(given), dtype=torch.long), run)
    return book, model


def test_dp_sgd_samples_each_record_at_the_rate_that_is_charged() -> None:
    seen = np.zeros(50)

    class Counting(torch.nn.Flatten):
        """Identifies each record by its pixels, which exceed those of the images that gradients are compared on."""

        def forward(self, x):
            numbers = x[:, 0, 0, 0].numpy()
            np.add.at(seen, numbers[numbers > 1].astype(int) - 2, 1)
            return super().forward(x)

    images = (torch.arange(50.0) + 2).view(50, 1, 1, 1).expand(50, 1, 2, 2)
    book, _ = dp_sgd_run(steps=800, records=50, batch=10, images=images, flatten=Counting())
    (event,) = book.events
    assert (event.sampling_rate, event.steps) == (0.2, 800)
    # 40,000 independent draws: five standard errors are 0.01.
    assert abs(seen.mean() / 800 - event.sampling_rate) < 0.01
    assert abs(seen / 800 - event.sampling_rate).max() < 0.08


@pytest.mark.parametrize("sampling", [Sampling.RANDOM_ALLOCATION, Sampling.FIXED, Sampling.SHUFFLED])
def test_other_batches_are_charged_by_their_own_event(sampling: Sampling) -> None:
    sizes: list[int] = []

    class Counting(torch.nn.Flatten):
        def forward(self, x):
            if float(x.max()) > 1:  # not the images that gradients are compared on
                sizes.append(len(x))
            return super().forward(x)

    images = torch.full((30, 1, 2, 2), 2.0)
    changes = {"images": images, "flatten": Counting(), "sampling": sampling}
    book, _ = dp_sgd_run(steps=7, records=30, batch=10, **changes)
    wanted = {
        Sampling.RANDOM_ALLOCATION: events.AllocatedSteps(1.0, 3, 3), Sampling.SHUFFLED: events.ShuffledEpochs(1.0, 3),
        Sampling.FIXED: events.FixedBatches(10 / 30, 1.0, 7),
    }  # fmt: skip
    assert book.events == (wanted[sampling],)
    if sampling is Sampling.RANDOM_ALLOCATION:
        assert sum(sizes[:3]) == sum(sizes[3:6]) == 30
    else:
        assert sizes == [10] * 7


@pytest.mark.parametrize("sampling", [Sampling.FIXED, Sampling.SHUFFLED])
def test_batches_with_places_refuse_more_records_than_the_public_number(sampling: Sampling) -> None:
    with pytest.raises(BenchError, match="have places for 20 records"):
        dp_sgd_run(steps=1, records=20, batch=5, images=torch.zeros(21, 1, 2, 2), sampling=sampling)
    dp_sgd_run(steps=1, records=20, batch=5, images=torch.zeros(19, 1, 2, 2), sampling=sampling)


def test_sampling_is_one_of_those_that_are_accounted() -> None:
    with pytest.raises(BenchError, match="poisson, random-allocation, fixed, shuffled"):
        dp_sgd_run(steps=1, records=20, batch=5, sampling="sorted")
    with pytest.raises(BenchError, match="whole number"):
        dp_sgd_run(steps=1, records=20, batch=5.5, sampling=Sampling.FIXED)


@pytest.mark.parametrize("present", [19, 20, 21])
def test_rate_and_update_are_those_of_the_public_number(present: int) -> None:
    torch.manual_seed(0)
    images = torch.ones(present, 1, 2, 2)  # 19 and 21 are the neighbours of 20
    book, model = dp_sgd_run(steps=1, records=20, batch=20, images=images, noise_multiplier=1e-9, clipping=Flat(1e-3))
    assert book.events == (events.DPSGD(1.0, 1e-9, 1),)
    torch.manual_seed(0)
    before = torch.nn.Linear(4, 2)
    moved = torch.cat([(p - q).flatten() for p, q in zip(model.parameters(), before.parameters(), strict=True)])
    # Every record is in the batch, and every gradient is clipped.
    assert float(moved.detach().norm()) == pytest.approx(0.1 * 1e-3 * present / 20, rel=1e-3)


def test_an_expected_batch_above_the_public_number_is_refused() -> None:
    with pytest.raises(BenchError, match="between 1 and 20 records"):
        dp_sgd_run(steps=1, records=20, batch=21, images=np.zeros((21, 1, 2, 2)))


def test_dp_sgd_is_charged_even_where_it_breaks_off() -> None:
    def breaks(logits: object, labels: object) -> object:
        raise RuntimeError("out of memory")

    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, np.random.default_rng(0))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    run = DPSGDRun(lambda p: torch.optim.SGD(p, lr=0.1), breaks, 1.0, Flat(1.0), 20, 5, 20)
    with pytest.raises(RuntimeError):
        book.dp_sgd(model, torch.rand(20, 1, 2, 2), torch.zeros(20, dtype=torch.long), run)
    assert [(event.kind, event.steps) for event in book.events] == [(events.DPSGD.kind, 5)]


def test_dp_sgd_drops_a_gradient_that_is_not_finite() -> None:
    images = torch.rand(20, 1, 2, 2)
    images[3] = float("nan")
    _, model = dp_sgd_run(steps=20, records=20, batch=20, images=images)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_batch_norm_student_is_refused_by_dp_sgd() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    run = DPSGDRun(lambda p: torch.optim.SGD(p, lr=0.1), cross_entropy, 1.0, Flat(1.0), 5, 2, 20)
    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, np.random.default_rng(0))
    with pytest.raises(BenchError, match="BatchNorm1d"):
        book.dp_sgd(model, torch.rand(20, 1, 2, 2), torch.zeros(20, dtype=torch.long), run)


@pytest.mark.parametrize("physical", [1024, 8])
def test_neither_the_methods_optimiser_nor_its_loss_sees_a_sum_without_noise(
    physical: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dp_sgd, "MAX_PHYSICAL_BATCH", physical)
    seen: list[object] = []
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))

    def look(*, grad: bool) -> None:
        for p in model.parameters():
            seen.extend([getattr(p, "summed_grad", None), getattr(p, "grad_sample", None), p.grad if grad else None])

    class Peeping(torch.optim.SGD):
        def step(self, closure=None):
            look(grad=False)
            return super().step(closure)

        def zero_grad(self, set_to_none: bool = True) -> None:
            look(grad=True)
            super().zero_grad(set_to_none)

    def peeping(logits, labels):
        look(grad=True)
        return cross_entropy(logits, labels)

    trained(model, peeping, lambda p: Peeping(p, lr=0.1))
    assert seen
    assert all(value is None for value in seen)


def test_an_optimiser_that_leaves_out_trained_weights_is_refused() -> None:
    with pytest.raises(BenchError, match="all trainable parameters"):
        trained(optimizer=lambda parameters: torch.optim.SGD(list(parameters)[:1], lr=0.1))


def test_the_noise_that_is_charged_is_the_noise_that_is_added() -> None:
    class Fickle:
        """Shows the accountant one noise multiplier and the training another."""

        def __init__(self, run: DPSGDRun) -> None:
            self.run, self.asked = run, 0

        def __getattr__(self, name: str) -> object:
            if name != "noise_multiplier":
                return getattr(self.run, name)
            self.asked += 1
            return 2.0 if self.asked == 1 else 1e-9

    models = []
    for kind in (lambda run: run, Fickle):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        run = DPSGDRun(
            lambda p: torch.optim.SGD(p, lr=0.1), torch.nn.functional.cross_entropy, 2.0, Flat(0.5), 20, 4, 40
        )
        book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, np.random.default_rng(0))
        book.dp_sgd(model, torch.rand(40, 1, 2, 2), torch.zeros(40, dtype=torch.long), kind(run))
        assert book.events[0].noise_multiplier == 2.0
        models.append(model)
    assert weights(models[0]) == weights(models[1])


def test_clipping_of_another_class_is_refused() -> None:
    class Unclipped(Flat):
        """States one norm but clips to another."""

        def summed(self, samples):
            return [sample.sum(0) for sample in samples]

    with pytest.raises(BenchError, match=r"Flat, PerLayer, .* not by Unclipped"):
        trained(clipping=Unclipped(0.5))


def test_a_checkpoint_does_not_hold_the_state_of_the_noise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saved: list[dict[str, Any]] = []
    monkeypatch.setattr(Checkpoint, "due", lambda self: True)
    monkeypatch.setattr(Checkpoint, "save", lambda self, state: saved.append(state))
    trained(checkpoint=Checkpoint(Cache(tmp_path, {}), "student", {}))
    assert len(saved) == 5
    assert all(set(state["parts"]) == {"model", "optimizer", "counted", "torch"} for state in saved)
    assert not any("bit_generator" in str(state) for state in saved)


def test_a_checkpoint_of_a_method_s_own_is_refused(tmp_path: Path) -> None:
    """It could restore weights that no step produced."""

    class Mine(Checkpoint):
        pass

    changed = Checkpoint(Cache(tmp_path, {}), "student", {})
    changed.load = lambda: None
    for checkpoint in (Mine(Cache(tmp_path, {}), "student", {}), changed):
        with pytest.raises(BenchError, match="resumes only from a plain Checkpoint"):
            trained(checkpoint=checkpoint)
