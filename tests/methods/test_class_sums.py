"""Heads by noisy class sums: sensitivity, cost, and equality with the regressions that they implement."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Basis, Budget, Facts, PrivacyUnit, PublicData, TargetAdjacency
from bench.interface.registry import METHODS
from bench.methods.linear.class_sums import class_sums
from bench.methods.linear.dp_fc import whitened, whitening
from bench.methods.linear.dp_least_squares import joined, parted, solved
from bench.methods.shared.clipping import clipped_rows, symmetric, triangle
from bench.privacy.accounting.accountants import proven, replace_one
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.small_sets import SMALL, private_pair, public_set

FMNIST = Facts("fmnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)
NAMES = ("dp-fc", "dp-prototypes", "dp-least-squares")
CLASSES = 4


def problem(seed: int, records: int = 23, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = 2 * torch.randn(records, width, generator=generator)
    return features, torch.randint(CLASSES, (records,), generator=generator)


def sums_of(features: torch.Tensor, labels: torch.Tensor, most: float) -> torch.Tensor:
    return class_sums(clipped_rows(features, most), labels, CLASSES)


def moments_of(features: torch.Tensor, most: float) -> torch.Tensor:
    rows = torch.cat(list(clipped_rows(features, most)))
    return triangle(rows.T @ rows)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    most=st.floats(0.01, 5.0),
    size=st.sampled_from([1e-6, 1.0, 1e6, 1e19, math.nan, math.inf, -math.inf]),
)
def test_a_record_added_moves_sums_and_moments_by_no_more_than_their_sensitivity(
    seed: int, most: float, size: float
) -> None:
    features, labels = problem(seed)
    features[-1] *= size
    labels[-1] += int(100 * (seed % 2))  # a label that is none of the classes is no error
    moved = sums_of(features, labels, most) - sums_of(features[:-1], labels[:-1], most)
    assert float(moved.norm()) <= most * (1 + 1e-9)
    moved = moments_of(features, most) - moments_of(features[:-1], most)
    assert float(moved.norm()) <= most**2 * (1 + 1e-9)
    moved = joined(features, labels, CLASSES, 0.3) - joined(features[:-1], labels[:-1], CLASSES, 0.3)
    assert float(moved.norm()) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("other", "label", "times"), [(-1.0, 0, 2.0), (-1.0, 1, math.sqrt(2)), (1.0, 1, math.sqrt(2)), (1.0, 0, 0.0)]
)
def test_a_replaced_record_moves_the_sums_by_up_to_twice_the_norm(other: float, label: int, times: float) -> None:
    features, labels = problem(0)
    labels[0] = 0
    changed, names = features.clone(), labels.clone()
    changed[0], names[0] = other * features[0], label
    moved = sums_of(changed, names, 0.5) - sums_of(features, labels, 0.5)
    assert float(moved.norm()) == pytest.approx(0.5 * times, abs=1e-11)


def test_a_replaced_record_moves_the_moments_by_up_to_the_root_of_two() -> None:
    features, _ = problem(0)
    features[0] = torch.eye(6)[0]
    changed = features.clone()
    changed[0] = torch.eye(6)[1]
    moved = moments_of(changed, 0.5) - moments_of(features, 0.5)
    assert float(moved.norm()) == pytest.approx(math.sqrt(2) * 0.25)


@pytest.mark.parametrize("share", [0.2, 0.7])
def test_moments_and_sums_come_back_with_the_noise_of_their_shares(share: float) -> None:
    features, labels = problem(1)
    asked = joined(features, labels, CLASSES, share)
    moments, sums = parted(asked, 6, share)
    torch.testing.assert_close(sums, sums_of(features, labels, 1.0))
    torch.testing.assert_close(triangle(moments), moments_of(features, 1.0))
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=90 * 91 // 2 + 90 * 90))
    on_moments, on_sums = parted(noise, 90, share)
    assert float(triangle(on_moments).std()) == pytest.approx(share**-0.5, rel=0.05)
    assert float(on_sums.std()) == pytest.approx((1 - share) ** -0.5, rel=0.05)


def test_the_triangle_has_the_norm_of_the_matrix_and_gives_it_back() -> None:
    features, _ = problem(1)
    matrix = features.double().T @ features.double()
    assert float(triangle(matrix).norm()) == pytest.approx(float(matrix.norm()))
    torch.testing.assert_close(symmetric(triangle(matrix), 6), matrix)


def test_noise_on_the_triangle_is_a_symmetric_matrix_within_its_bound() -> None:
    width = 200
    drawn = symmetric(torch.from_numpy(np.random.default_rng(0).normal(size=width * (width + 1) // 2)), width)
    assert torch.equal(drawn, drawn.T)
    assert float(torch.linalg.eigvalsh(drawn).abs().max()) == pytest.approx(math.sqrt(2 * width), rel=0.06)


@pytest.mark.parametrize(("epsilon", "printed"), [(1.0, 3.7306), (3.0, 1.3906), (10.0, 0.4999)])
@pytest.mark.parametrize("basis", list(Basis))
@pytest.mark.parametrize("name", NAMES)
def test_the_noise_is_the_exact_one(name: str, basis: Basis, epsilon: float, printed: float) -> None:
    method = METHODS.get(name)
    budget = Budget(epsilon, 1e-5, basis, TargetAdjacency.OWN)
    config = method(build_config(method, Preset.QUICK, FMNIST)[0], FMNIST).calibrate(budget)
    assert config.noise_multiplier == pytest.approx(printed, abs=1.01e-4)
    events = method(config, FMNIST).charges()
    assert {event.adjacency for event in events} == {Adjacency.ADD_REMOVE}
    spent = proven(events, 1e-5).epsilon
    assert 0.999 * epsilon < spent <= epsilon
    assert method(config, FMNIST).claimed(1e-5).epsilon == pytest.approx(spent, rel=1e-6)


def test_a_budget_for_a_replaced_record_takes_twice_the_noise() -> None:
    method = METHODS.get("dp-fc")
    config = build_config(method, Preset.QUICK, FMNIST)[0]
    twice = method(config, FMNIST).calibrate(Budget(1.0, 1e-5, Basis.PROVEN, TargetAdjacency.REPLACE_ONE))
    assert twice.noise_multiplier == pytest.approx(2 * 3.7306, abs=2.01e-4)
    assert replace_one(method(twice, FMNIST).charges(), 1e-5).epsilon <= 1


@pytest.mark.parametrize(
    ("name", "facts", "change", "words"),
    [
        ("dp-fc", FMNIST, {"ridge": 0.0}, "ridge must be positive"),
        ("dp-fc", FMNIST, {"max_norm": math.inf}, "max_norm must be positive"),
        ("dp-fc", FMNIST, {"ridge_of_noise": math.nan}, "ridge_of_noise must be at least 0"),
        ("dp-fc", dataclasses.replace(FMNIST, public_records=0), {}, "unlabelled public images"),
        ("dp-least-squares", FMNIST, {"share": 1.0}, "share must be positive and below 1"),
        ("dp-least-squares", FMNIST, {"ridge": -1.0}, "ridge must be positive"),
        ("dp-prototypes", FMNIST, {"backbone": "no_such_net"}, "no_such_net"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(name: str, facts: Facts, change: dict[str, Any], words: str) -> None:
    method = METHODS.get(name)
    with pytest.raises(BenchError, match=words):
        method(build_config(method, Preset.PAPER, facts, change)[0], facts).calibrate(Budget(1.0, 1e-5))


def test_public_images_that_are_all_alike_are_refused() -> None:
    with pytest.raises(BenchError, match="the same features"):
        whitening(torch.ones(20, 5), 1.0)


class Watched(Ledger):
    """Notes the stated sensitivity of each Gaussian release."""

    def __init__(self, adjacency: Adjacency) -> None:
        super().__init__(PrivacyUnit.RECORD, adjacency, Noisy(SeededNoise(np.random.default_rng(0))))
        self.sensitivities: list[float] = []

    def gaussian(self, values: Any, *, sensitivity: float, noise_multiplier: float) -> Any:
        self.sensitivities.append(sensitivity)
        return super().gaussian(values, sensitivity=sensitivity, noise_multiplier=noise_multiplier)


def tiny_run(name: str, noise: float | None = None, public: PublicData | None = None, **change: Any) -> Any:
    """Return the release of the method `name` on patterns, its ledger, its config and the private data."""
    method = METHODS.get(name)
    config = dataclasses.replace(build_config(method, Preset.TINY, SMALL)[0], **change)
    config = method(config, SMALL).calibrate(Budget(10.0, 1e-5))
    if noise is not None:
        config = dataclasses.replace(config, noise_multiplier=noise)
    ledger = Watched(method.adjacency)
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    private = private_pair()[0]
    released = method(config, private.facts).train_student(private, public or public_set(), ledger, context)
    return released, ledger, config, private


@pytest.mark.parametrize("name", NAMES)
def test_the_ledger_is_charged_what_is_calibrated(name: str) -> None:
    _, ledger, config, _ = tiny_run(name)
    assert [event.as_dict() for event in ledger.events] == [
        event.as_dict() for event in METHODS.get(name)(config, SMALL).charges()
    ]
    assert not ledger.bypasses


def test_each_release_states_its_own_sensitivity() -> None:
    assert tiny_run("dp-prototypes")[1].sensitivities == [1.0]
    assert tiny_run("dp-least-squares")[1].sensitivities == [1.0]
    half, whole = (tiny_run("dp-fc", max_norm=most)[1].sensitivities for most in (0.5, 1.0))
    assert len(whole) == 1
    assert half[0] == pytest.approx(whole[0] / 2)


@pytest.mark.parametrize("name", NAMES)
def test_the_student_takes_images_and_knows_the_patterns(name: str) -> None:
    private = private_pair()[0]
    alike = PublicData(private.images, "images of the same patterns")
    student = tiny_run(name, 1e-6, alike)[0].student
    assert not student.training
    with torch.no_grad():
        logits = student(private.images.float() / 255)
    assert float((logits.argmax(1) == private.labels).double().mean()) > 0.9, "the patterns are easy without noise"


@pytest.mark.parametrize("name", NAMES)
def test_noise_that_hides_the_records_leaves_chance(name: str) -> None:
    """The head comes from the ledger's answers: there is no way around the noise."""
    released, _, _, private = tiny_run(name, 1e9)
    with torch.no_grad():
        logits = released.student(private.images.float() / 255)
    assert float((logits.argmax(1) == private.labels).double().mean()) < 0.5


def test_dp_fc_is_ridge_regression_with_the_public_covariance() -> None:
    features, labels = problem(2, records=400)
    pool, _ = problem(3, records=300)
    mean, factor, norm = whitening(pool, 0.3)
    z = whitened(features.double(), mean, factor)
    x = pool.double() - pool.double().mean(0)
    covariance = x.T @ x / len(x)
    ridged = covariance + 0.3 * covariance.trace() / 6 * torch.eye(6, dtype=torch.float64)
    targets = torch.nn.functional.one_hot(labels, CLASSES).double()
    centred = features.double() - pool.double().mean(0)
    expected = centred @ torch.linalg.solve(ridged, centred.T @ targets)
    torch.testing.assert_close(z @ (z.T @ targets), expected)
    assert norm == pytest.approx(float(whitened(pool.double(), mean, factor).norm()) / math.sqrt(300))


@pytest.mark.parametrize(("of_noise", "ridge"), [(0.0, 0.1), (3e8, 0.3)])
def test_the_released_weights_on_plain_features_are_those_on_whitened_ones(of_noise: float, ridge: float) -> None:
    released, _, _, private = tiny_run("dp-fc", 1e-9, max_norm=100.0, ridge_of_noise=of_noise)
    student = released.student
    with torch.no_grad():
        images = private.images.float() / 255
        logits = student(images).double()
        scaled, pool = (
            student.forward_features(x).double() / math.sqrt(student.head.last.in_features)
            for x in (images, public_set().images.float() / 255)
        )
    mean, factor, _ = whitening(pool, ridge)
    z = whitened(scaled, mean, factor)
    targets = torch.nn.functional.one_hot(private.labels, SMALL.classes).double()
    torch.testing.assert_close(logits, z @ (z.T @ targets) / len(z), rtol=1e-3, atol=1e-3)


def test_least_squares_without_noise_is_ridge_regression() -> None:
    features, labels = problem(2, records=400)
    x = features.double()
    targets = torch.nn.functional.one_hot(labels, CLASSES).double()
    level = 0.7 / math.sqrt(12)
    expected = torch.linalg.solve(x.T @ x + 0.7 * torch.eye(6, dtype=torch.float64), x.T @ targets).T
    torch.testing.assert_close(solved(x.T @ x, targets.T @ x, level), expected)


def test_eigenvalues_below_zero_count_as_zero() -> None:
    moments = torch.diag(torch.tensor([2.0, -5.0], dtype=torch.float64))
    torch.testing.assert_close(
        solved(moments, torch.ones(1, 2, dtype=torch.float64), 0.5), torch.tensor([[1 / 3, 1.0]], dtype=torch.float64)
    )


def test_prototypes_are_the_directions_of_the_class_means() -> None:
    released, _, _, private = tiny_run("dp-prototypes", 1e-9)
    student = released.student
    with torch.no_grad():
        features = student.forward_features(private.images.float() / 255)
    means = torch.stack([features[private.labels == c].mean(0) for c in range(SMALL.classes)])
    cosines = torch.nn.functional.cosine_similarity(student.head.last.weight, means)
    torch.testing.assert_close(cosines, torch.ones(SMALL.classes))
    assert not student.head.last.bias.any()
