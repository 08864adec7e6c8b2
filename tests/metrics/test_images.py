"""SSIM, PSNR, KID and inception scores against cases worked out by hand."""

from __future__ import annotations

import math
import time

import pytest
import torch

from bench.core.errors import BenchError
from bench.metrics.images import PAIRED, dpsd_inception_score, kid, pairwise, psnr, ssim

torch.set_num_threads(1)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


# --- two images -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 64, 64), (1, 112, 92), (1, 8, 8), (1, 5, 4)])
def test_an_image_is_itself(shape: tuple[int, int, int]) -> None:
    x = noise(3, *shape)
    assert torch.allclose(ssim(x, x), torch.ones(3))
    assert psnr(x, x).tolist() == [60, 60, 60]


def test_flat_images_compare_by_their_means_alone() -> None:
    a, b = torch.full((1, 1, 28, 28), 0.2), torch.full((1, 1, 28, 28), 0.6)
    expected = (2 * 0.2 * 0.6 + 1e-4) / (0.2**2 + 0.6**2 + 1e-4)
    assert float(ssim(a, b)) == pytest.approx(expected, abs=1e-4)
    assert float(psnr(a, b)) == pytest.approx(-20 * math.log10(0.4), abs=1e-4)


def test_ssim_of_one_window_by_hand() -> None:
    """On 7 x 7 pixels there is one window: the formula written out with its weights."""
    a, b = noise(1, 1, 7, 7), noise(1, 1, 7, 7, seed=1)
    line = torch.exp(-(torch.arange(7.0) - 3).square() / 4.5)
    weight = torch.outer(line, line) / line.sum() ** 2
    means = [(weight * x[0, 0]).sum() for x in (a, b)]
    spreads = [(weight * (x[0, 0] - m).square()).sum() for x, m in zip((a, b), means, strict=True)]
    both = (weight * (a[0, 0] - means[0]) * (b[0, 0] - means[1])).sum()
    above = (2 * means[0] * means[1] + 1e-4) * (2 * both + 9e-4)
    below = (means[0] ** 2 + means[1] ** 2 + 1e-4) * (spreads[0] + spreads[1] + 9e-4)
    assert float(ssim(a, b)) == pytest.approx(float(above / below), abs=1e-5)
    assert float(ssim(a, 1 - a)) < 0, "a negative goes the other way"


def test_the_window_grows_with_the_image() -> None:
    small, large = noise(2, 1, 31, 31), noise(2, 1, 32, 32)
    from bench.metrics.images import window_bands

    assert [b.shape for b in window_bands(small)] == [(25, 31), (25, 31)]
    assert [b.shape for b in window_bands(large)] == [(22, 32), (22, 32)]


def test_bytes_and_floats_are_the_same() -> None:
    x = (noise(2, 1, 28, 28) * 255).to(torch.uint8)
    y = noise(2, 1, 28, 28, seed=1)
    for measure in PAIRED.values():
        assert torch.equal(measure(x, y), measure(x.float() / 255, y))


def test_the_cap_is_at_an_error_of_a_millionth() -> None:
    x = torch.full((1, 1, 28, 28), 0.5)
    assert float(psnr(x, x + 0.0005)) == 60
    assert float(psnr(x, x + 0.002)) == pytest.approx(-20 * math.log10(0.002), abs=1e-2)


# --- a pool -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", ["ssim", "psnr"])
def test_all_pairs_are_what_each_pair_is(measure: str) -> None:
    a, b = noise(4, 3, 20, 24), noise(5, 3, 20, 24, seed=1)
    table = pairwise(a, b, measure)  # type: ignore[arg-type]
    for row in range(4):
        one = PAIRED[measure](a[row : row + 1].expand(5, -1, -1, -1), b)  # type: ignore[index]
        assert torch.allclose(table[row], one, atol=1e-5)


@pytest.mark.slow
def test_a_hundred_against_five_thousand_takes_seconds() -> None:
    start = time.process_time()
    pairwise(noise(100, 1, 28, 28), noise(5_000, 1, 28, 28), "ssim")
    assert time.process_time() - start < 20


def test_shapes_must_agree() -> None:
    with pytest.raises(BenchError, match="cannot be compared"):
        ssim(noise(1, 1, 28, 28), noise(1, 1, 27, 28))
    with pytest.raises(BenchError, match="cannot be compared"):
        psnr(noise(1, 1, 28, 28), noise(2, 1, 28, 28))


# --- sets -------------------------------------------------------------------------------------------------------------


def test_kid_by_hand() -> None:
    a, b = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [3.0]])
    within_a, within_b = (1 * 2 + 1) ** 3, (0 * 3 + 1) ** 3
    between = ((0 + 1) ** 3 + (3 + 1) ** 3 + (0 + 1) ** 3 + (6 + 1) ** 3) / 4
    assert kid(a, b) == pytest.approx(within_a + within_b - 2 * between)


def test_kid_is_about_zero_for_one_distribution_and_not_for_two() -> None:
    a, b = (torch.randn(400, 8, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    assert abs(kid(a, b)) < 0.05
    assert kid(a, b + 1) > 1
    with pytest.raises(BenchError, match="two or more rows"):
        kid(a[:1], b)


def test_inception_scores_at_both_ends() -> None:
    same = torch.full((50, 10), 0.1)
    assert dpsd_inception_score(same) == pytest.approx(0, abs=1e-3)
    assert dpsd_inception_score(torch.eye(10)) == pytest.approx(9e6)
