"""DP on linear heads: what is clipped and summed, what it costs, and that both ways of training agree."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from bench.core.config import Grid, Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Basis, Budget, Facts, PrivacyUnit, TargetAdjacency
from bench.experiments.plan import Dataset, expand
from bench.interface.registry import METHODS
from bench.methods.linear import family
from bench.methods.linear.dp_linear import DPLinear
from bench.methods.linear.dp_linear_gd import DPLinearGD
from bench.methods.linear.family import clipped_sum
from bench.privacy.accounting.accountants import proven, replace_one
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun, train
from bench.privacy.events.events import DPSGD, Gaussian
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.small_sets import SMALL, private_pair, public_set

FMNIST = Facts("fmnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)
PRIVATE = ("dp-linear", "dp-linear-gd")


def problem(seed: int, records: int = 23, width: int = 6, classes: int = 4) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(records, width, generator=generator)
    labels = torch.randint(classes, (records,), generator=generator)
    weights = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    return weights, features, labels


def one_by_one(weights: torch.Tensor, features: torch.Tensor, labels: torch.Tensor, most: float) -> torch.Tensor:
    """The clipped gradients' sum by autograd, a record at a time."""
    total = torch.zeros_like(weights)
    for x, y in zip(features, labels, strict=True):
        own = weights.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy((own @ x.double())[None], y[None]), own)
        total += gradient * min(1.0, most / float(gradient.norm()))
    return total


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), records=st.integers(1, 40), most=st.floats(0.01, 20.0))
def test_the_clipped_sum_is_that_of_single_gradients(seed: int, records: int, most: float) -> None:
    weights, features, labels = problem(seed, records)
    expected = one_by_one(weights, features, labels, most)
    torch.testing.assert_close(clipped_sum(weights, features, labels, most), expected, rtol=1e-10, atol=1e-10)


def test_the_sum_does_not_depend_on_the_rows_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, features, labels = problem(0)
    whole = clipped_sum(weights, features, labels, 0.5)
    monkeypatch.setattr(family, "ROWS", 5)
    torch.testing.assert_close(clipped_sum(weights, features, labels, 0.5), whole, rtol=1e-12, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    most=st.floats(0.01, 5.0),
    size=st.sampled_from([1e-6, 1.0, 1e6, 1e19, math.nan, math.inf, -math.inf]),
)
def test_one_record_moves_the_sum_by_no_more_than_the_clipping_norm(seed: int, most: float, size: float) -> None:
    weights, features, labels = problem(seed)
    features[-1] *= size
    features[-1, 0] = size
    moved = clipped_sum(weights, features, labels, most) - clipped_sum(weights, features[:-1], labels[:-1], most)
    assert float(moved.norm()) <= most * (1 + 1e-9)


def test_a_large_gradient_uses_the_whole_clipping_norm() -> None:
    weights, features, _ = problem(0)
    wrong = (weights @ features[0].double()).argmin()[None]
    assert float(clipped_sum(weights, 100 * features[:1], wrong, 0.5).norm()) == pytest.approx(0.5)


def test_values_that_are_not_finite_leave_the_weights_finite() -> None:
    weights, features, labels = problem(0)
    features[3] = math.nan
    assert clipped_sum(weights, features, labels, 1.0).isfinite().all()
    assert clipped_sum(weights * math.inf, features, labels, 1.0).isfinite().all()


@pytest.mark.parametrize("most", [0.3, 100.0])
def test_a_full_batch_of_opacus_without_noise_takes_the_same_step(most: float) -> None:
    weights, features, labels = problem(3)
    layer = torch.nn.Linear(6, 4)
    with torch.no_grad():
        layer.weight.copy_(weights)
        layer.bias.zero_().requires_grad_(False)
    run = DPSGDRun(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.7),
        loss=cross_entropy,
        noise_multiplier=1e-12,
        clipping=Flat(most),
        expected_batch_size=len(features),
        steps=1,
        records=len(features),
    )
    train(layer, features, labels, run, randomness=np.random.default_rng(0))
    stepped = weights - 0.7 * clipped_sum(weights, features, labels, most) / len(features)
    torch.testing.assert_close(layer.weight.detach().double(), stepped, rtol=1e-5, atol=1e-5)
    assert not layer.bias.any()


@pytest.mark.parametrize(
    ("basis", "adjacency"),
    [
        (Basis.CLAIMED, TargetAdjacency.REPLACE_ONE),
        (Basis.PROVEN, TargetAdjacency.OWN),
        (Basis.PROVEN, TargetAdjacency.REPLACE_ONE),
    ],
)
@pytest.mark.parametrize("epsilon", [1.0, *(pytest.param(epsilon, marks=pytest.mark.slow) for epsilon in (3.0, 10.0))])
def test_the_noise_spends_the_budget_and_no_more(basis: Basis, adjacency: TargetAdjacency, epsilon: float) -> None:
    budget = Budget(epsilon, 1e-5, basis, adjacency)
    sampled = DPLinear(build_config(DPLinear, Preset.QUICK, FMNIST)[0], FMNIST).calibrate(budget)
    whole = DPLinearGD(build_config(DPLinearGD, Preset.QUICK, FMNIST)[0], FMNIST).calibrate(budget)
    events: dict[type[Any], Any] = {
        DPLinear: DPSGD(sampled.sampling_rate(60_000), sampled.noise_multiplier, sampled.steps(60_000)),
        DPLinearGD: Gaussian(whole.noise_multiplier, whole.steps, adjacency=Adjacency.ADD_REMOVE),
    }
    for method, config in ((DPLinear, sampled), (DPLinearGD, whole)):
        cost = proven([events[method]], 1e-5).epsilon
        claim = method(config, FMNIST).claimed(1e-5).epsilon
        replaced = adjacency is TargetAdjacency.REPLACE_ONE
        proved = replace_one([events[method]], 1e-5).epsilon if replaced else cost
        spent = proved if basis is Basis.PROVEN else claim
        assert 0.98 * epsilon < spent <= epsilon
        assert cost <= claim


def test_full_batches_compose_as_one_gaussian() -> None:
    one, many = (
        DPLinearGD(DPLinearGD.Config(steps=steps, weights="random"), FMNIST).calibrate(Budget(1.0, 1e-5, Basis.PROVEN))
        for steps in (1, 100)
    )
    assert many.noise_multiplier == pytest.approx(10 * one.noise_multiplier, rel=1e-4)


def test_a_batch_of_all_records_is_calibrated_too() -> None:
    config = DPLinear.Config(weights="random", batch_size=60_000, epochs=10.0)
    config = DPLinear(config, FMNIST).calibrate(Budget(1.0, 1e-5, Basis.PROVEN))
    other = DPLinearGD.Config(weights="random", steps=10)
    other = DPLinearGD(other, FMNIST).calibrate(Budget(1.0, 1e-5, Basis.PROVEN))
    assert config.noise_multiplier == pytest.approx(other.noise_multiplier, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("dp-linear", {"batch_size": 60_001}, "60000 private records"),
        ("dp-linear", {"batch_size": 0}, "must be at least 1"),
        ("dp-linear", {"backbone": "resnet50_kera"}, "resnet50_keras"),
        ("dp-linear-gd", {"backbone": "no_such_net"}, "no_such_net"),
        ("dp-linear-gd", {"steps": 0}, "steps must be at least 1"),
        ("dp-linear-gd", {"max_grad_norm": 0.0}, "max_grad_norm must be positive and finite"),
        ("dp-linear-gd", {"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ("dp-linear-gd", {"lr": math.nan}, "lr must be positive and finite"),
        ("nonprivate-transfer", {"backbone": "no_such_net"}, "no_such_net"),
        ("nonprivate-transfer", {"image_size": -1}, "image_size must be"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(name: str, change: dict[str, Any], words: str) -> None:
    method = METHODS.get(name)
    with pytest.raises(BenchError, match=words):
        method(build_config(method, Preset.PAPER, FMNIST, change)[0], FMNIST).calibrate(Budget(1.0, 1e-5))


def tiny_run(name: str, noise: float | None = None, absent: int = 0, **change: Any) -> tuple[Any, Ledger, Any]:
    method = METHODS.get(name)
    config = dataclasses.replace(build_config(method, Preset.TINY, SMALL)[0], **change)
    config = method(config, SMALL).calibrate(Budget(10.0, 1e-5))
    if noise is not None:
        config = dataclasses.replace(config, noise_multiplier=noise)
    ledger = seeded_ledger(PrivacyUnit.RECORD, method.adjacency, np.random.default_rng(0))
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    private = private_pair()[0]
    private = dataclasses.replace(private, images=private.images[absent:], labels=private.labels[absent:])
    return method(config, private.facts).train_student(private, public_set(), ledger, context), ledger, private


@pytest.mark.parametrize("name", ["dp-sgd", "dp-linear", "dp-linear-gd"])
def test_steps_and_charge_are_those_of_the_public_number_where_a_record_is_absent(name: str) -> None:
    # 13.5 batches are 14; those of 239 records are 13.
    sizes = {} if name == "dp-linear-gd" else {"epochs": 0.9, "batch_size": 16}
    _, whole, _ = tiny_run(name, 1.0, **sizes)
    _, less, private = tiny_run(name, 1.0, absent=1, **sizes)
    assert len(private) == SMALL.private_records - 1
    assert less.events == whole.events


def test_every_step_of_gradient_descent_is_one_release() -> None:
    _, ledger, _ = tiny_run("dp-linear-gd", steps=7)
    assert [event.kind for event in ledger.events] == ["gaussian"] * 7
    assert {event.adjacency for event in ledger.events} == {Adjacency.ADD_REMOVE}


@pytest.mark.parametrize("name", PRIVATE)
def test_the_released_student_takes_images_as_it_was_trained_on_features(name: str) -> None:
    many = {"steps": 60} if name == "dp-linear-gd" else {"epochs": 15.0}
    released, _, private = tiny_run(name, 1e-6, lr=4.0, max_grad_norm=1.0, **many)
    student = released.student
    assert not student.training
    with torch.no_grad():
        logits = student(private.images.float() / 255)
    assert float((logits.argmax(1) == private.labels).double().mean()) > 0.9, "the patterns are easy without noise"
    assert released.student_name == "frozen_transfer"


def test_the_ledgers_noise_is_that_of_the_clipping_norm() -> None:
    """With a noise that hides every gradient the first step is the noise alone."""
    released, _, private = tiny_run("dp-linear-gd", 1e6, steps=1, lr=1.0, max_grad_norm=0.5, momentum=0.0)
    layer = released.student.head.last
    spread = float(layer.weight.detach().std()) * layer.in_features**0.5
    assert spread == pytest.approx(1e6 * 0.5 / len(private), rel=0.1)


def test_the_secure_source_trains_by_exact_sums() -> None:
    class Exact(SeededNoise):
        exact = True

    method, context = DPLinear, Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    config = build_config(method, Preset.TINY, SMALL)[0]
    book = Ledger(PrivacyUnit.RECORD, method.adjacency, Noisy(Exact(np.random.default_rng(0))))
    method(config, private_pair()[0].facts).train_student(private_pair()[0], public_set(), book, context)
    assert isinstance(book.events[-1], DPSGD)


def test_the_baseline_without_privacy_names_its_weights_in_the_plan() -> None:
    grid = Grid(methods=("nonprivate-transfer",), datasets=("fmnist",), epsilons=(1.0,))
    (cell,) = expand(grid, lambda name: Dataset(name, FMNIST, "revision"))
    assert (cell.epsilon, cell.refused, cell.config.weights) == (None, "", "package")
    assert len(cell.config.weights_sha256) == 64
    assert "ImageNet" in METHODS.get(cell.method)(cell.config, FMNIST).public_words()


def test_the_baseline_without_privacy_learns_the_patterns() -> None:
    method = METHODS.get("nonprivate-transfer")
    config = method.Config(backbone="small_cnn", weights="random", image_size=0, epochs=20.0)
    book = seeded_ledger(PrivacyUnit.RECORD, method.adjacency, np.random.default_rng(0))
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    private = private_pair()[0]
    released = method(config, private.facts).train_student(private, public_set(), book, context)
    assert book.bypasses == [method.bypass]
    with torch.no_grad():
        logits = released.student(private.images.float() / 255)
    assert float((logits.argmax(1) == private.labels).double().mean()) > 0.9
