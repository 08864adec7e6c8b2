"""Variants of DP-SGD: what they charge, what they spend of a budget, and that they train as they say."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Basis, Budget, Facts, TargetAdjacency
from bench.interface.registry import METHODS
from bench.privacy.accounting import accountants, claims, distributions
from bench.privacy.accounting.accountants import proven
from bench.privacy.events.base_event import Event
from bench.privacy.events.events import DPSGD, Gaussian, SampledGaussian
from bench.privacy.mechanisms.ledger import Ledger
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.small_sets import SMALL, private_pair, public_set

MNIST = Facts("mnist", 60_000, 0, 10_000, 10, (1, 28, 28), public_benchmark=True)


def run(name: str, **change: Any) -> tuple[dict[str, torch.Tensor], Ledger]:
    """Run the tiny preset of `name` with `change`; return the student's weights and the ledger."""
    method = METHODS.get(name)
    config = dataclasses.replace(build_config(method, Preset.TINY, SMALL)[0], **change)
    ledger = seeded_ledger(method.unit, method.adjacency, np.random.default_rng(0))
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    released = method(config, private_pair()[0].facts).train_student(private_pair()[0], public_set(), ledger, context)
    return released.student.state_dict(), ledger


def samplers() -> list[tuple[str, str]]:
    kinds = [METHODS.get(name) for name in METHODS.names()]
    chosen = [kind for kind in kinds if "sampling" in {one.name for one in dataclasses.fields(kind.Config)}]
    return [(kind.name, sampling) for kind in chosen for sampling in kind.samplings]


@pytest.mark.parametrize(("name", "sampling"), samplers())
def test_a_claim_fits_the_budget_it_was_calibrated_to(name: str, sampling: str) -> None:
    """Whatever the sampling that really ran: the papers claim Poisson's figure."""
    method, facts = METHODS.get(name), dataclasses.replace(MNIST, public_records=1_000)
    config = dataclasses.replace(build_config(method, Preset.QUICK, facts)[0], sampling=sampling)
    calibrated = method(config, facts).calibrate(Budget(3.0, 1e-5, Basis.CLAIMED))
    assert method(calibrated, facts).claimed(1e-5).epsilon == pytest.approx(3.0, rel=0.02)


@pytest.mark.parametrize("batch", [280, 290, 700])
@pytest.mark.parametrize("sampling", ["shuffled", "random-allocation"])
@pytest.mark.parametrize("name", ["dp-sgd", "scatter-linear"])
def test_a_claim_is_for_the_batches_that_run_where_they_do_not_divide_an_epoch(
    name: str, sampling: str, batch: int
) -> None:
    method, facts = METHODS.get(name), Facts("digits", 1000, 0, 397, 10, (1, 8, 8), public_benchmark=True)
    given = {"sampling": sampling, "batch_size": batch, "epochs": 10.0}
    config = dataclasses.replace(build_config(method, Preset.QUICK, facts)[0], **given)
    bound = method(method(config, facts).calibrate(Budget(3.0, 1e-5, Basis.CLAIMED)), facts)
    assert 2.9 < bound.claimed(1e-5).epsilon <= 3.0 + 1e-9
    if batch == 700:  # one batch makes an epoch: the claim is the moments accountant's for full batches
        assert bound.claimed(1e-5).epsilon >= proven(bound.charges(), 1e-5).epsilon


def test_random_allocation_spends_a_budget_beyond_the_reach_of_its_pld() -> None:
    """With few steps and little noise the PLD has infinite losses of more than delta; Renyi accounting has none."""
    facts = Facts("digits", 1000, 0, 397, 10, (1, 8, 8), public_benchmark=True)
    config = METHODS.get("dp-sgd").Config(sampling="random-allocation", batch_size=100, epochs=1.0)
    budget = Budget(9.0, 1e-5, Basis.PROVEN, TargetAdjacency.OWN)
    bound = METHODS.get("dp-sgd")(METHODS.get("dp-sgd")(config, facts).calibrate(budget), facts)
    assert 8.9 < proven(bound.charges(), 1e-5).epsilon <= 9.0


@pytest.mark.parametrize("name", ["dp-sgd", "dp-fedavg"])
def test_a_delta_that_no_pld_resolves_is_calibrated_by_renyi_accounting(name: str) -> None:
    facts = Facts("digits", 1000, 0, 397, 10, (1, 8, 8), public_benchmark=True)
    method = METHODS.get(name)
    config = build_config(method, Preset.TINY, facts)[0]
    bound = method(method(config, facts).calibrate(Budget(1.0, 1e-13, Basis.PROVEN)), facts)
    assert 0.3 < proven(bound.charges(), 1e-13).epsilon <= 1.0


def test_the_noise_of_zcdp_falls_as_the_authors_do() -> None:
    config = METHODS.get("zcdp").Config(epochs=25.0, batch_size=600, noise_multiplier=10.0)
    assert config.stages(60_000) == [(10.0, 1000), (10.0 * 0.7008, 1000), (10.0 * 0.7008**2, 500)]
    # No stage is empty where an epoch is one batch.
    assert [n for _, n in dataclasses.replace(config, epochs=3.0, decay_epochs=0.4).stages(600)] == [1, 1, 1]


def test_the_stages_of_zcdp_keep_the_momentum() -> None:
    """Where every record is in every batch and noise is none to speak of, stages give the steps of one training."""
    whole = {"batch_size": SMALL.private_records, "epochs": 6.0, "noise_multiplier": 1e-9}
    plain, _ = run("dp-sgd", **whole)
    staged, ledger = run("zcdp", **whole, decay_epochs=2.0)
    assert [event.steps for event in ledger.events] == [2, 2, 2]
    for name, weights in plain.items():
        torch.testing.assert_close(staged[name], weights, rtol=1e-4, atol=1e-5)


def test_zcdp_without_decay_costs_what_dp_sgd_does() -> None:
    method, config = METHODS.get("zcdp"), METHODS.get("zcdp").Config(decay=1.0, noise_multiplier=1.2)
    figure = proven(method(config, MNIST).charges(), 1e-5).epsilon
    assert figure == pytest.approx(proven([DPSGD(512 / 60_000, 1.2, 4688)], 1e-5).epsilon, rel=1e-9)


def test_the_student_of_tsadp_has_the_activation_that_was_set() -> None:
    start = {"batch_size": 32, "noise_multiplier": 1e-9}
    plain, _ = run("dp-sgd", **start)
    tanh, _ = run("tsadp", **start)
    other, _ = run("tsadp", **start, scale=1.0, inverse_temperature=1.0, offset=0.0)
    for name, weights in plain.items():
        torch.testing.assert_close(tanh[name], weights, rtol=1e-3, atol=1e-4)
    assert any(not torch.allclose(other[name], weights, atol=1e-3) for name, weights in plain.items())


LONG = (("gm-dp", 10.0), ("zcdp", 1.0), ("zcdp", 10.0))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "epsilon"), [("gm-dp", 1.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG)]
)
def test_a_proven_budget_is_spent(name: str, epsilon: float) -> None:
    method = METHODS.get(name)
    budget = Budget(epsilon, 1e-5, Basis.PROVEN, TargetAdjacency.OWN)
    config = method(build_config(method, Preset.QUICK, MNIST)[0], MNIST).calibrate(budget)
    assert 0.99 * epsilon < proven(method(config, MNIST).charges(), 1e-5).epsilon <= epsilon


def test_the_claim_of_zcdp_is_the_papers_formula() -> None:
    """Orders up to 52 hold, and the best is 44; for little noise they end at 2.9, far below the best."""
    rho = 1000 * (0.01 / 4) ** 2
    wanted = rho + 2 * math.sqrt(rho * math.log(1e5))
    assert claims.zcdp([DPSGD(0.01, 4.0, 1000)], 1e-5).epsilon == pytest.approx(wanted, rel=1e-3)
    rho, last = 100 * (0.0085 / 0.6) ** 2, 1 - 0.36 * math.log(0.0085 * 0.6)
    wanted = rho * last + math.log(1e5) / (last - 1)
    assert claims.zcdp([DPSGD(0.0085, 0.6, 100)], 1e-5).epsilon == pytest.approx(wanted, rel=0.02)
    # Nothing is gained by samples of all records.
    (one, ten) = (claims.zcdp([DPSGD(1.0, 4.0 * math.sqrt(n), n)], 1e-5).epsilon for n in (1, 10))
    assert one == pytest.approx(ten) == pytest.approx(1 / 32 + 2 * math.sqrt(math.log(1e5) / 32), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("zcdp", {"decay": 1.1}, "decay must be positive and at most 1"),
        ("zcdp", {"decay_epochs": 0.0}, "decay_epochs must be positive"),
        ("tsadp", {"scale": -1.0}, "scale must be positive"),
        ("tsadp", {"student": "tanh_cnn_mnist"}, "Accepted as student: tempered_cnn_mnist"),
        ("dpsur", {"change_bound": 0.0}, "change_bound must be positive"),
        ("dpsur", {"validation_batch": 0}, "validation_batch must be at least 1"),
        ("zcdp", {"batch_size": 60_001}, "60000 private records"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(name: str, change: dict[str, Any], words: str) -> None:
    method = METHODS.get(name)
    with pytest.raises(BenchError, match=words):
        method(build_config(method, Preset.PAPER, MNIST, change)[0], MNIST).calibrate(Budget(1.0, 1e-5))


# --------------------------------------------------------------------------------------------------------------- dpsur


def _all_charged(kept: int, share: float, *more: Event) -> float:
    """Return the cost of the iterations that keep `kept` steps of the authors' run on MNIST for epsilon 1."""
    count = round(kept / share)
    return proven([DPSGD(1024 / 60_000, 2.0, count), SampledGaussian(256 / 60_000, 1.3, count), *more], 1e-5).epsilon


def _claim(kept: int, *more: Event) -> float:
    events = [DPSGD(1024 / 60_000, 2.0, kept), SampledGaussian(256 / 60_000, 1.3, kept), *more]
    return accountants.claim_by("rdp", events, 1e-5, "theorem 5.6").epsilon


@pytest.mark.slow
def test_what_dpsur_claims_as_1_on_mnist_costs_if_every_iteration_is_charged() -> None:
    """The authors' run with its noisy means of features, then with none, as here; half or 22% of the steps are kept."""
    means = Gaussian(8.0, 2, adjacency=Adjacency.ADD_REMOVE)
    for kept, more, wanted in ((280, (means,), (1.13, 1.55)), (576, (), (1.31, 2.05))):
        assert _claim(kept, *more) <= 1 < _claim(kept + 5, *more)
        assert [_all_charged(kept, share, *more) for share in (0.5, 0.22)] == pytest.approx(wanted, abs=0.01)


def test_the_claim_of_dpsur_is_for_the_steps_that_it_may_keep() -> None:
    method = METHODS.get("dpsur")
    config = method.Config()
    assert (config.steps(60_000), config.kept(60_000), config.test_noise()) == (1172, 586, 1.3)
    assert method(config, MNIST).claimed(1e-5).epsilon == pytest.approx(_claim(586), rel=1e-9)
    assert dataclasses.replace(config, threshold=1.0).kept(60_000) == math.ceil(1172 * 0.77910)
    assert dataclasses.replace(config, noise_multiplier=0.7).test_noise() == 0.8
    kept, every = method(config, MNIST).claimed_charges(), method(config, MNIST).charges()
    assert proven(every, 1e-5).epsilon > 1.25 * proven(kept, 1e-5).epsilon


@pytest.mark.few(1)
@pytest.mark.parametrize("basis", list(Basis))
def test_dpsur_spends_the_budget_of_its_basis(basis: Basis) -> None:
    method, budget = METHODS.get("dpsur"), Budget(1.0, 1e-5, basis, TargetAdjacency.OWN)
    config = method(build_config(method, Preset.QUICK, MNIST)[0], MNIST).calibrate(budget)
    spent = (
        method(config, MNIST).claimed(1e-5) if basis is Basis.CLAIMED else proven(method(config, MNIST).charges(), 1e-5)
    )
    assert 0.99 < spent.epsilon <= 1


@pytest.mark.slow
def test_dpsur_charges_every_step_and_every_test_and_keeps_the_steps_that_pass() -> None:
    start, ledger = run("dpsur", threshold=-1e9)
    method = METHODS.get("dpsur")
    config = build_config(method, Preset.TINY, SMALL)[0]
    steps = config.steps(SMALL.private_records)
    assert steps > 3
    assert distributions.merged(ledger.events) == method(config, SMALL).charges()
    moved, _ = run("dpsur", threshold=1e9)
    again, _ = run("dpsur", threshold=-1e9, noise_multiplier=5.0)
    assert all(torch.equal(start[name], again[name]) for name in start), "no step is kept"
    assert any(not torch.equal(start[name], moved[name]) for name in start)


def test_dpsur_keeps_no_more_steps_than_it_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise far below the threshold passes every step; all after the half that the claim is for are rejected."""
    tried: list[float] = []
    real = Ledger.sampled_loss_change

    def passes(self: Ledger, before: torch.nn.Module, after: torch.nn.Module, *given: Any, **options: Any) -> Any:
        (weights, *_), (others, *_) = before.parameters(), after.parameters()
        tried.append(float((weights - others).detach().norm()))
        return real(self, before, after, *given, **options) - 1e9

    monkeypatch.setattr(Ledger, "sampled_loss_change", passes)
    first = run("dpsur", noise_multiplier=1e-9, momentum=0.0, lr=0.1)[0]
    kept = build_config(METHODS.get("dpsur"), Preset.TINY, SMALL)[0].kept(SMALL.private_records)
    steps = len(tried)
    monkeypatch.setattr(Ledger, "sampled_loss_change", lambda *given, **options: np.array([1e9]))
    start = run("dpsur", noise_multiplier=1e-9, momentum=0.0, lr=0.1)[0]
    name = next(iter(start))
    assert kept == math.ceil(steps / 2)
    assert 0 < float((first[name] - start[name]).norm()) <= sum(tried[:kept]) * 1.001


@pytest.mark.parametrize("name", ["dp-sgd", "gm-dp", "topagg", "tsadp"])
@pytest.mark.parametrize("sampling", ["random-allocation", "fixed", "shuffled"])
def test_the_ledger_charges_for_the_batches_that_are_drawn(name: str, sampling: str) -> None:
    method = METHODS.get(name)
    config = dataclasses.replace(build_config(method, Preset.TINY, SMALL)[0], sampling=sampling)
    _, ledger = run(name, sampling=sampling)
    planned = method(config, private_pair()[0].facts)
    assert ledger.events == tuple(planned.charges())
    (event,) = ledger.events
    assert event.kind == {"random-allocation": "dp-sgd-random-allocation", "fixed": "dp-sgd-fixed-batches"}.get(
        sampling, "dp-sgd-shuffled"
    )
    # The claim stays that of Poisson batches.
    plain = method(dataclasses.replace(config, sampling="poisson"), private_pair()[0].facts)
    assert planned.claimed(1e-5).epsilon == pytest.approx(plain.claimed(1e-5).epsilon, rel=0.1)


@pytest.mark.parametrize("name", ["zcdp", "dpsur"])
def test_methods_of_many_stages_take_poisson_batches_alone(name: str) -> None:
    method = METHODS.get(name)
    config = dataclasses.replace(build_config(method, Preset.PAPER, MNIST)[0], sampling="shuffled")
    with pytest.raises(BenchError, match="sampling=poisson, not shuffled"):
        method(config, MNIST).calibrate(Budget(3.0, 1e-5, Basis.PROVEN, TargetAdjacency.OWN))


@pytest.mark.parametrize(
    ("sampling", "basis"), [("shuffled", Basis.PROVEN), ("shuffled", Basis.CLAIMED), ("fixed", Basis.PROVEN)]
)
def test_the_budget_is_kept_on_its_basis(sampling: str, basis: Basis) -> None:
    method = METHODS.get("dp-sgd")
    config = dataclasses.replace(build_config(method, Preset.PAPER, MNIST)[0], sampling=sampling)
    planned = method(method(config, MNIST).calibrate(Budget(3.0, 1e-5, basis, TargetAdjacency.OWN)), MNIST)
    found = proven(planned.charges(), 1e-5).epsilon if basis is Basis.PROVEN else planned.claimed(1e-5).epsilon
    assert found == pytest.approx(3.0, rel=2e-3)
    if basis is Basis.CLAIMED:
        assert proven(planned.charges(), 1e-5).epsilon > 10
