"""Class Gaussians: what one record moves, what the releases cost, and what is recovered from noise."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bench.core.types import Budget, Facts
from bench.methods.generative.class_gaussians import (
    ClassGaussians,
    ClassGaussiansConfig,
    low_frequencies,
    moments_about,
    moved,
    root_of,
    spread_out,
    sums_about,
)
from bench.methods.shared.clipping import symmetric
from bench.privacy.accounting.accountants import proven
from bench.privacy.events.events import Gaussian

MNIST = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))


def method(epsilon: float, **changes: float) -> ClassGaussians:
    made = ClassGaussians(dataclasses.replace(ClassGaussiansConfig(), **changes), MNIST)  # type: ignore[arg-type]
    return ClassGaussians(made.calibrate(Budget(epsilon, 1e-5)), MNIST)


def random_codes(count: int, q: int, scale: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, q, generator=draws, dtype=torch.float64)
    codes = scale * torch.randn(count, q, generator=draws, dtype=torch.float64)
    return codes, torch.randint(0, 4, (count,), generator=draws), centres


@pytest.mark.parametrize(("epsilon", "components"), [(1.0, 1), (10.0, 16)])
def test_all_releases_cost_what_one_gaussian_release_does(epsilon: float, components: int) -> None:
    found = method(epsilon)
    assert found.config.components == components
    together = [Gaussian(found.config.noise_multiplier, adjacency=found.adjacency)]
    costs = [proven(events, 1e-5).epsilon for events in (found.charges(), together)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-9)
    assert 0.999 * epsilon < costs[0] <= epsilon


def test_a_number_of_components_that_is_set_stays() -> None:
    assert method(1.0, components=3).config.components == 3
    assert method(10.0, components=1).config.components == 1


@given(st.integers(0, 10_000), st.sampled_from([1e-3, 0.3, 1.0, 30.0]), st.sampled_from([1e-6, 0.5, 2.0]))
def test_one_record_moves_each_release_by_at_most_one(seed: int, scale: float, norm: float) -> None:
    codes, own, centres = random_codes(7, 5, scale, seed)
    for release in (sums_about, moments_about):
        moved_by = release(codes, own, centres, norm) - release(codes[1:], own[1:], centres, norm)
        assert float(moved_by.norm()) <= 1 + 1e-12


@pytest.mark.parametrize("release", [sums_about, moments_about])
def test_a_record_at_the_clipping_norm_moves_a_release_by_one(release: object) -> None:
    assert callable(release)
    codes, own, centres = random_codes(1, 5, 100.0, 0)
    assert float(release(codes, own, centres, 1.0).norm()) == pytest.approx(1.0, abs=1e-9)


def test_centres_move_to_the_means_and_not_beyond_what_noise_allows() -> None:
    codes, own, centres = random_codes(400, 5, 0.1, 1)
    found, counts = moved(centres, sums_about(codes, own, centres, 100.0), 100.0, noise=1e-6)
    means = torch.stack([codes[own == label].mean(0) for label in range(4)])
    assert torch.allclose(found, means, atol=1e-6)
    assert torch.allclose(counts, own.bincount(minlength=4).double(), atol=1e-6)
    # Three deviations of the count's noise are the least that a sum is divided by.
    still, _ = moved(centres, sums_about(codes, own, centres, 100.0), 100.0, noise=1e9)
    assert torch.allclose(still, centres, atol=1e-4)


def test_frequencies_are_orthonormal_and_the_first_is_the_mean() -> None:
    basis = low_frequencies((3, 8, 6), 10)
    assert basis.shape == (30, 3 * 8 * 6)
    assert torch.allclose(basis @ basis.T, torch.eye(30, dtype=torch.float64))
    assert torch.allclose(
        basis[10], torch.cat([torch.zeros(48), torch.full((48,), 48**-0.5), torch.zeros(48)]).double()
    )
    assert low_frequencies((1, 8, 8), 105).shape == (64, 64)


def test_random_centres_surround_the_means() -> None:
    means = torch.zeros(2, 6, dtype=torch.float64)
    found = spread_out(means, (2, 28, 28), 500, torch.Generator().manual_seed(0)).view(2, 500, 6)
    deviations = found.std((0, 1))
    # Frequencies 0 and 1 (twice) of two channels: half as far at the first.
    assert torch.allclose(deviations, torch.tensor([2.0, 1.0, 1.0] * 2).double(), rtol=0.1)


def test_a_covariance_is_recovered_from_noise() -> None:
    """A spike far above the noise keeps its size, noise alone gives nothing, and the error is below the raw one."""
    q, noise = 60, 0.05
    rng = np.random.default_rng(0)
    axis = torch.from_numpy(np.linalg.qr(rng.normal(size=(q, 3)))[0])
    truth = axis @ torch.diag(torch.tensor([3.0, 2.0, 1.0]).double()) @ axis.T
    rows, columns = torch.triu_indices(q, q).unbind()
    ratios = []
    for _ in range(20):
        row = truth[rows, columns] * torch.where(rows == columns, 1.0, math.sqrt(2))
        noisy = symmetric(row + noise * torch.from_numpy(rng.normal(size=len(row))), q)
        root = root_of(noisy, noise)
        found = root @ root.T
        assert int((torch.linalg.eigvalsh(found) > 1e-9).sum()) in (3, 4)
        assert torch.linalg.eigvalsh(found)[-3:].tolist() == pytest.approx([1.0, 2.0, 3.0], abs=0.25)
        ratios.append(float((found - truth).norm() / (noisy - truth).norm()))
    assert np.mean(ratios) < 0.5


def test_without_noise_moments_are_exact() -> None:
    codes, own, centres = random_codes(50, 5, 0.1, 2)
    row = moments_about(codes, own, centres, 1000.0)[2]
    apart = (codes - centres[own])[own == 2]
    root = root_of(symmetric(row, 5), 0.0)
    assert torch.allclose(root @ root.T * 1000.0**2, apart.T @ apart, atol=1e-6)
