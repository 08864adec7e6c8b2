"""Heads on scattering coefficients: the paper's settings, their cost, and features that are computed once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Basis, Budget, Facts, PrivacyUnit, Released, TargetAdjacency
from bench.interface.registry import METHODS
from bench.methods.dpsgd import scatter
from bench.methods.shared import calibration
from bench.models import scattering
from bench.models.rebuild import rebuild
from bench.models.scattering import ChannelNorm
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise
from bench.storage.cache import Cache
from bench.training import features
from bench.training.context import Context
from helpers.small_sets import SMALL, private_pair, public_set

OWN = TargetAdjacency.OWN
NAMES = ("scatter-linear", "scatter-cnn")


class Sums:
    """A ledger without noise that keeps what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[np.ndarray[Any, Any], float]] = []

    def gaussian(
        self, values: np.ndarray[Any, Any], *, sensitivity: float, noise_multiplier: float
    ) -> np.ndarray[Any, Any]:
        assert noise_multiplier == 1.0
        self.asked.append((values.copy(), sensitivity))
        return values.copy()


def facts(dataset: str, records: int) -> Facts:
    shape = (3, 32, 32) if dataset == "cifar10" else (1, 28, 28)
    return Facts(dataset, records, 0, 10_000, 10, shape, public_benchmark=True)


@pytest.mark.parametrize(
    ("name", "dataset", "records", "steps", "printed"),
    [
        ("scatter-linear", "fmnist", 60_000, 366, {3: 3.767}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("scatter-linear", "mnist", 60_000, 732, {1: 6.989, 3: 2.714, 10: 1.166}),
                ("scatter-linear", "fmnist", 60_000, 366, {1: 9.848, 10: 1.508}),
                ("scatter-linear", "cifar10", 50_000, 366, {1: 11.792, 3: 4.480, 10: 1.746}),
                ("scatter-cnn", "mnist", 60_000, 1758, {3: 1.237}),
                ("scatter-cnn", "fmnist", 60_000, 1465, {3: 1.984}),
                ("scatter-cnn", "cifar10", 50_000, 366, {3: 4.480}),
            )
        ),
    ],
)
def test_noise_is_that_of_the_tight_accountant(
    name: str, dataset: str, records: int, steps: int, printed: dict[int, float]
) -> None:
    """Found with dp-accounting alone, for Poisson batches at delta 1e-5, on a grid that costs up to 0.1% of noise."""
    method, known = METHODS.get(name), facts(dataset, records)
    config, changed = build_config(method, Preset.PAPER, known)
    assert changed == []
    assert config.statistics_noise == (8 if dataset == "cifar10" else None)
    config = dataclasses.replace(config, statistics_noise=None)
    assert config.steps(records) == steps
    for epsilon, noise in printed.items():
        budget = Budget(float(epsilon), 1e-5, Basis.PROVEN, OWN)
        found = method(config, known).calibrate(budget).noise_multiplier
        assert 0.999 * noise <= found <= noise + 6e-4


@pytest.mark.parametrize(
    ("epsilon", "noise"),
    [(3, 4.615), pytest.param(1, 15.638, marks=pytest.mark.slow), pytest.param(10, 1.751, marks=pytest.mark.slow)],
)
def test_noisy_statistics_take_their_part_of_the_budget(epsilon: int, noise: float) -> None:
    method, known = METHODS.get("scatter-linear"), facts("cifar10", 50_000)
    config, _ = build_config(method, Preset.PAPER, known)
    found = method(config, known).calibrate(Budget(float(epsilon), 1e-5, Basis.PROVEN, OWN)).noise_multiplier
    assert 0.999 * noise <= found <= noise + 1e-3


def test_data_sets_that_the_paper_lacks_get_settings_that_fit() -> None:
    small = Facts("digits", 1_000, 400, 397, 10, (1, 8, 8))
    large = Facts("svhn", 73_257, 10_000, 16_032, 10, (3, 32, 32))
    linear, cnn = map(METHODS.get, NAMES)
    config, changed = build_config(linear, Preset.QUICK, small)
    assert (config.batch_size, config.lr) == (125, 8)
    assert [change.field for change in changed] == ["batch_size", "scale_lr"]
    config, changed = build_config(cnn, Preset.QUICK, large)
    assert [change.field for change in changed] == ["scale_lr", "statistics_noise"]
    assert (config.batch_size, config.student) == (8_192, "scatter_cnn_cifar")


def test_the_rate_falls_as_the_noise_grows_above_the_stated_one_and_never_rises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linear, known = METHODS.get("scatter-linear"), facts("mnist", 60_000)

    def rate(preset: Preset, noise: float) -> float:
        monkeypatch.setattr(calibration, "least_noise", lambda *_, **__: noise)
        config, _ = build_config(linear, preset, known)
        found = linear(config, known).calibrate(Budget(1.0, 1e-5))
        assert found.noise_multiplier == noise
        return float(found.lr)

    stated = linear.Config()
    assert rate(Preset.QUICK, 2 * stated.noise_multiplier) == pytest.approx(stated.lr / 2)
    assert rate(Preset.QUICK, 0.5 * stated.noise_multiplier) == stated.lr
    assert rate(Preset.PAPER, 2 * stated.noise_multiplier) == stated.lr


def run(name: str, cache: Cache, epsilon: float = 10.0, **changes: object) -> tuple[Released, Context]:
    method = METHODS.get(name)
    config, _ = build_config(method, Preset.TINY, SMALL)
    config = method(dataclasses.replace(config, **changes), SMALL).calibrate(Budget(epsilon, 1e-5))
    streams = Streams(0)
    context = Context(torch.device("cpu"), streams, cache, Progress())
    ledger = Ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, Noisy(SeededNoise(streams.numpy("noise"))))
    return method(config, private_pair()[0].facts).train_student(
        private_pair()[0], public_set(), ledger, context
    ), context


def test_both_methods_share_features_kept_in_half_precision(tmp_path: Path) -> None:
    first, second = Cache(tmp_path, {}), Cache(tmp_path, {})
    run("scatter-linear", first)
    run("scatter-cnn", second)
    assert first.counts()["features"] == (1, 0)
    assert second.counts()["features"] == (0, 1)
    (file,) = tmp_path.glob("features-*.safetensors")
    assert file.stat().st_size < 240 * (2 * 3969 + 16) + 1_000


@pytest.mark.parametrize("name", NAMES)
def test_the_student_learns_and_takes_images_itself(name: str) -> None:
    changed = {"epochs": 15.0, "batch_size": 60, "lr": 4.0}
    released, context = run(name, Cache(None, {}), 1000.0, **changed)
    private = private_pair()[0]
    assert released.student_name == METHODS.get(name).Config().student
    with torch.no_grad():
        plain = released.student(private.images / 255)
    cached = features.student_logits(released.student, private.images, context, "private")
    assert (plain - cached).abs().max() < 0.01 * plain.abs().max()
    assert (plain.argmax(1) == private.labels).float().mean() > 0.9


@given(features=arrays("float32", (3, 162 * 4), elements=st.floats(-100, 100, width=32)))
@settings(max_examples=30, deadline=None)
def test_one_record_moves_statistics_by_the_stated_sensitivity_at_most(features: np.ndarray[Any, Any]) -> None:
    with_all, without = Sums(), Sums()
    for ledger, rows in ((with_all, features), (without, features[:2])):
        scatter.standardise(ChannelNorm(162), torch.from_numpy(rows), 3, 1.0, ledger)  # type: ignore[arg-type]
    for power, (more, bound), (less, same) in zip((1, 2), with_all.asked, without.asked, strict=True):
        assert np.linalg.norm(more - less) <= same * (1 + 1e-9)
        assert bound == same == power * 162**0.5


def test_statistics_of_images_are_hardly_clipped() -> None:
    images = private_pair()[0].images / 255
    features = scattering.Scattering(1, *images.shape[2:], grouped=False)(images).half()
    asked = Sums()
    scatter.standardise(ChannelNorm(81), features, len(images), 1.0, asked)  # type: ignore[arg-type]
    maps = features.double().view(len(images), 81, -1)
    for power, (found, _) in zip((1, 2), asked.asked, strict=True):
        assert np.allclose(found, maps.pow(power).mean(2).sum(0), rtol=0.05, atol=0.05 * abs(found).max())


def test_channels_are_standardised_over_the_records() -> None:
    features = torch.randn(5_000, 81, 4) * torch.linspace(0.5, 1, 81)[:, None] + torch.linspace(-0.2, 0.2, 81)[:, None]
    norm = ChannelNorm(81)
    scatter.standardise(norm, features.flatten(1), 5_000, 1.0, Sums())  # type: ignore[arg-type]
    found = norm(features.flatten(1)).view(5_000, 81, 4)
    assert found.mean((0, 2)).abs().max() < 1e-5
    assert (found.std((0, 2)) - 1).abs().max() < 1e-3


def test_a_student_with_statistics_takes_images_itself_and_its_ledger_has_them() -> None:
    changed = {"epochs": 15.0, "batch_size": 60, "lr": 4.0, "statistics_noise": 2.0}
    released, context = run("scatter-cnn", Cache(None, {}), 1000.0, **changed)
    private = private_pair()[0]
    assert released.student_options["standardised"]
    again = rebuild(released.student_name, released.student_options, released.student.state_dict())
    assert not torch.equal(again.head.norm.mean, torch.zeros(81))  # type: ignore[union-attr]
    with torch.no_grad():
        plain = again(private.images / 255)
    cached = features.student_logits(released.student, private.images, context, "private")
    assert (plain - cached).abs().max() < 0.01 * plain.abs().max()


def test_noise_of_statistics_below_zero_is_refused() -> None:
    with pytest.raises(BenchError, match="statistics_noise"):
        build_config(METHODS.get("scatter-linear"), Preset.PAPER, SMALL, {"statistics_noise": 0.0})


def test_a_student_without_scattering_is_refused() -> None:
    with pytest.raises(BenchError, match="Accepted as student: scatter_linear"):
        run("scatter-linear", Cache(None, {}), student="small_cnn")


def test_features_larger_than_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "memory_bytes", lambda: 240 * 3969 * 2 - 1)
    with pytest.raises(BenchError, match=r"3969 features of 240 private images need 0\.0 GB"):
        run("scatter-linear", Cache(None, {}))
