"""Generative methods: useless images and a failed row that shows them, DP-MERF's release, DP-Kernel's gradients."""

from __future__ import annotations

import dataclasses
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Basis, Budget, PrivateData
from bench.experiments.run import run_cell
from bench.interface.registry import METHODS, groups_of
from bench.methods.generative.dp_kernel import DPKernelConfig, distance
from bench.methods.generative.dp_kernel_sound import DPKernelSound, DPKernelSoundConfig
from bench.methods.generative.dp_merf import DPMERF, DPMERFConfig
from bench.methods.generative.family import Source, as_bytes, drawn, usable
from bench.methods.generative.mean_embedding import SENSITIVITY, class_sums, embedded, fit_embedding
from bench.privacy.accounting.accountants import proven
from bench.privacy.mechanisms.ledger import Ledger
from bench.results.record import Status
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.divergence import CollapsedError
from helpers.ledgers import seeded_ledger
from helpers.one_teacher import one_cell
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair

LABELS = torch.arange(600) % 10
NOISE = torch.rand(600, 1, 8, 8, generator=torch.Generator().manual_seed(0))
DIGITS = 0.8 * NOISE + 0.2 * (LABELS / 9).view(-1, 1, 1, 1)


def context(notes: list[str] | None = None) -> Context:
    said: list[str] = [] if notes is None else notes
    return Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress(), note=said.append)


@pytest.mark.parametrize(
    ("images", "labels", "says"),
    [
        (torch.where(NOISE > 0.999, math.nan, DIGITS), LABELS, "not finite"),
        (0.5 + 0.001 * DIGITS, LABELS, "almost equal"),
        (DIGITS, torch.full_like(LABELS, 3), "one label only"),
        (NOISE, LABELS, "do not depend on their labels"),
    ],
)
def test_useless_images_are_refused_and_kept(images: torch.Tensor, labels: torch.Tensor, says: str) -> None:
    with pytest.raises(CollapsedError, match=says) as caught:
        usable(as_bytes(images, labels), labels, 10, context())
    assert caught.value.images.shape == images.shape
    again = pickle.loads(pickle.dumps(caught.value))  # between the processes of checks
    assert str(again) == str(caught.value)
    assert torch.equal(again.labels, labels)


def test_useful_images_pass_and_missing_classes_are_noted() -> None:
    notes: list[str] = []
    usable(as_bytes(DIGITS, LABELS), LABELS, 10, context(notes))
    assert notes == []
    usable(as_bytes(DIGITS, LABELS), LABELS.clamp(2, 8), 10, context(notes))
    assert notes == ["the generator makes no images of the classes 0, 1, 9"]


class Black(DPMERF):
    name = "one-teacher"

    def fit_generator(self, private: PrivateData, public: Any, ledger: Ledger, context: Context) -> Source:
        ledger.gaussian(np.zeros(1), sensitivity=SENSITIVITY, noise_multiplier=self.config.noise_multiplier)
        return Source(lambda count, draws: (torch.zeros(40, *private.facts.shape), torch.arange(40) % 10))


def test_a_collapsed_generator_is_a_failed_row_with_its_images(tmp_path: Path) -> None:
    with one_cell(tmp_path, method=Black) as (cell, run_dir, source):
        record = run_cell(cell, run_dir, source, Progress())
        assert run_dir.read_record(cell.key) == record
    assert record.status is Status.FAILED
    assert record.failure is not None
    assert "almost equal" in record.failure.reason
    assert len(record.failure.spent) == 1, "what was released before the failure"
    assert record.collapsed
    assert record.image_grid is not None
    assert (tmp_path / record.image_grid.file).read_bytes().startswith(b"\x89PNG")


def test_generative_methods_are_a_group() -> None:
    assert groups_of(METHODS.get("dp-merf")) == {"record", "generative"}


# ------------------------------------------------------------------------------------------------------------- dp-merf


def sums(images: torch.Tensor, labels: torch.Tensor, frequencies: torch.Tensor) -> np.ndarray:
    return class_sums(PrivateData(images, labels, SMALL), frequencies, torch.device("cpu")).numpy()


def test_a_replaced_record_moves_the_release_by_at_most_its_sensitivity() -> None:
    private, _ = private_pair()
    # Two frequencies that turn a black pixel's wave by half a period for a white one: the largest distance there is.
    frequencies = torch.zeros(2, 784)
    frequencies[:, 0] = math.pi
    images, labels = private.images.clone(), private.labels.clone()
    images[0, 0, 0, 0] = 0
    before = sums(images, labels, frequencies)
    images[0, 0, 0, 0] = 255
    same_class = np.linalg.norm(sums(images, labels, frequencies) - before)
    labels[0] = (labels[0] + 1) % 10
    other_class = np.linalg.norm(sums(images, labels, frequencies) - before)
    assert same_class == pytest.approx(SENSITIVITY, abs=1e-5)
    assert other_class == pytest.approx(SENSITIVITY, abs=1e-5)
    assert max(same_class, other_class) <= SENSITIVITY


def test_features_approximate_the_gaussian_kernel() -> None:
    config = DPMERFConfig(features=20_000)
    frequencies = DPMERF(config, SMALL).frequencies(torch.Generator().manual_seed(0))
    images = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    rows = embedded(images, frequencies)
    expected = torch.exp(-torch.cdist(images.flatten(1), images.flatten(1)).square() / (2 * config.length_scale))
    assert torch.allclose(rows @ rows.T, expected, atol=0.03)


def test_a_record_whose_features_overflow_moves_the_sums_by_no_more_than_the_others() -> None:
    private, _ = private_pair()
    frequencies = DPMERF(DPMERFConfig(features=40, length_scale=1e-75), SMALL).frequencies(torch.Generator())
    images = private.images.clone()
    images[0] = 0  # whose phases are zero, not infinite
    one, other = (sums(given, private.labels, frequencies) for given in (private.images, images))
    assert np.linalg.norm(one - other) <= SENSITIVITY


def test_the_release_has_the_noise_that_it_is_charged_for() -> None:
    """On adjacent sets: differences have the mean of the data and the variance of twice the noise."""
    private, _ = private_pair()
    frequencies = DPMERF(DPMERFConfig(features=40), SMALL).frequencies(torch.Generator().manual_seed(0))
    images = private.images.clone()
    images[0] = 255 - images[0]
    pair = [sums(given, private.labels, frequencies) for given in (private.images, images)]
    direction = (pair[1] - pair[0]) / np.linalg.norm(pair[1] - pair[0])
    ledger = seeded_ledger(DPMERF.unit, DPMERF.adjacency, np.random.default_rng(0))
    seen = [
        [float((ledger.gaussian(one, sensitivity=SENSITIVITY, noise_multiplier=0.5) * direction).sum()) for one in pair]
        for _ in range(2000)
    ]
    gap = np.diff(np.array(seen), axis=1)[:, 0]
    assert gap.mean() == pytest.approx(np.linalg.norm(pair[1] - pair[0]), abs=5 * math.sqrt(2 / 2000))
    assert gap.std() == pytest.approx(math.sqrt(2) * 0.5 * SENSITIVITY, rel=0.1)


@pytest.mark.parametrize(("epsilon", "multiplier"), [(1.0, 3.7307), (10.0, 0.5)])
def test_proven_noise_is_that_of_one_gaussian_release(epsilon: float, multiplier: float) -> None:
    config = DPMERF(DPMERFConfig(), SMALL).calibrate(Budget(epsilon, 1e-5, Basis.PROVEN))
    assert config.noise_multiplier == pytest.approx(multiplier, abs=2e-4)
    assert proven(DPMERF(config, SMALL).charges(), 1e-5).epsilon <= epsilon


@pytest.mark.parametrize(("noise", "epsilon"), [(5.0, 1.0), (25.0, 0.2)])
def test_the_authors_noise_is_just_below_the_epsilon_that_they_name(noise: float, epsilon: float) -> None:
    """The comment in code_balanced/dp_analysis.py."""
    claim = DPMERF(DPMERFConfig(noise_multiplier=noise), SMALL).claimed(1e-5)
    assert 0.95 * epsilon < claim.epsilon < epsilon
    assert proven(DPMERF(DPMERFConfig(noise_multiplier=noise), SMALL).charges(), 1e-5).epsilon < claim.epsilon


def test_a_generator_comes_near_the_embedding_with_the_released_class_shares() -> None:
    from bench.models.generators import ConditionalGenerator

    facts = dataclasses.replace(SMALL, shape=(1, 8, 8), classes=4)
    labels = torch.arange(facts.private_records) % 3  # the fourth class has no records
    images = (labels * 100 + 20).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, *facts.shape)
    config = DPMERFConfig(features=200, generator_batch=48, generator_epochs=20, generator_units=20)
    frequencies = DPMERF(config, facts).frequencies(torch.Generator().manual_seed(0))
    whole = class_sums(PrivateData(images, labels, facts), frequencies, torch.device("cpu"))
    wanted = (whole[:-1] / facts.private_records).float()
    torch.manual_seed(0)
    net = ConditionalGenerator(*facts.shape, facts.classes, units=20)
    fit_embedding(net, wanted, whole[-1], frequencies, config, facts, context())
    classes = torch.arange(300) % 3
    made = drawn(net, classes, torch.Generator().manual_seed(0)).float()
    means = torch.stack([made[classes == label].mean() for label in range(3)])
    assert torch.allclose(means, torch.tensor([20.0, 120.0, 220.0]), atol=25)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"features": 1}, "features must be at least 2"),
        ({"length_scale": 0.0}, "length_scale must be positive"),
        ({"synthetic": 0}, "synthetic must be at least 1"),
        ({"latent": 0}, "latent must be at least 1 and at most 4096"),
    ],
)
def test_wrong_settings_get_a_clear_error(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BenchError, match=says):
        configured("dp-merf", changes)


# ----------------------------------------------------------------------------------------------------------- dp-kernel


def kernel_gradient(first: torch.Tensor, noise: int) -> torch.Tensor:
    """Return the gradient that reaches generated images from a private batch whose first record is `first`."""
    draws = torch.Generator().manual_seed(0)
    x, y = torch.rand(30, 64, generator=draws), torch.rand(30, 64, generator=draws).requires_grad_()
    x[0] = first
    labels = torch.nn.functional.one_hot(torch.randint(0, 3, (60,), generator=draws), 3).float()
    process = torch.randn(60, generator=torch.Generator().manual_seed(noise))
    distance(x, y, labels, DPKernelConfig().deviations, 1.0, process).square().backward()
    assert y.grad is not None
    return torch.nn.functional.normalize(y.grad.flatten(), dim=0)


def test_the_noise_of_dp_kernel_leaves_the_direction_of_its_gradient_exact() -> None:
    """So a single step tells two adjacent batches apart, whatever the noise: no epsilon holds."""
    black, white = torch.zeros(64), torch.ones(64)
    of_black, of_white = [[kernel_gradient(first, seed) for seed in range(4)] for first in (black, white)]
    for same in (of_black, of_white):
        assert all(abs(float(one @ same[0])) == pytest.approx(1, abs=1e-5) for one in same)
    assert all(abs(float(one @ other)) < 0.999 for one in of_black for other in of_white)
    signs = {round(float(kernel_gradient(black, seed) @ of_black[0])) for seed in range(60)}
    assert signs == {-1, 1}, "and it sometimes points the wrong way"


def test_the_covariance_of_dp_kernel_is_that_of_the_authors_code() -> None:
    """Of one kernel, one label, and images at one point, each value has the same draw, of variance `coeff`."""
    x, kinds = torch.zeros(4, 9), torch.ones(8, 1)
    noisy = [
        float(distance(x, x, kinds, [1.0], 0.5, torch.randn(8, generator=torch.Generator().manual_seed(seed))))
        for seed in range(1500)
    ]
    assert np.mean(noisy) == pytest.approx(0, abs=0.06)
    assert np.var(noisy) == pytest.approx(math.sqrt(2) / 4 * 0.5, rel=0.15)


def test_dp_kernel_claims_what_the_authors_noise_is_for() -> None:
    facts = dataclasses.replace(SMALL, private_records=60_000)
    claim = METHODS.get("dp-kernel")(DPKernelConfig(), facts).claimed(1e-5)
    assert 9.5 < claim.epsilon < 10
    assert "does not hold" in claim.note


def test_features_of_the_repaired_dp_kernel_approximate_its_kernels() -> None:
    config = DPKernelSoundConfig(features=20_000)
    frequencies = DPKernelSound(config, SMALL).frequencies(torch.Generator().manual_seed(0))
    images = (
        torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(1))
        * torch.linspace(0, 1, 6)[:, None, None, None]
    )
    rows = embedded(images, frequencies)
    squares = torch.cdist(images.flatten(1), images.flatten(1)).square()
    expected = torch.stack([torch.exp(-squares / (2 * s**2)) for s in DPKernelConfig().deviations]).mean(0)
    assert torch.allclose(rows @ rows.T, expected, atol=0.03)
