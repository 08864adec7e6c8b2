"""Similarity of images (SSIM, PSNR) and statistics of image sets (KID, inception score).

Images are float in [0, 1] or uint8, (n, channels, height, width); the data range is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from bench.core.errors import BenchError
from bench.core.transforms import as_float

Measure = Literal["ssim", "psnr"]

PSNR_CAP = 60.0
"""In decibels; identical images would score infinity."""
_C1, _C2 = 0.01**2, 0.03**2
_SIGMA = 1.5
_CHUNK = 2**23
"""Pixels of products per step: 32 MiB of float32."""


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Return the structural similarity (n,), float32 in [-1, 1], of each image pair, as the mean over channels.

    The Gaussian window (standard deviation 1.5) stays inside the image and is 11 pixels wide; for sides below 32, 7 or
    the largest odd width that fits. Source: Wang, Bovik, Sheikh, Simoncelli 2004, equation 13, K1 = 0.01, K2 = 0.03.
    """
    _alike(a, b, paired=True)
    first, second = as_float(a), as_float(b)
    return _ssim(first, second, _moments(first), _moments(second), window_bands(first))


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio (n,), float32 decibels, of each image pair, at most `PSNR_CAP`."""
    _alike(a, b, paired=True)
    return _decibels((as_float(a).double() - as_float(b).double()).square().flatten(1).mean(1))


PAIRED: dict[Measure, Callable[[Tensor, Tensor], Tensor]] = {"ssim": ssim, "psnr": psnr}


def pairwise(images: Tensor, pool: Tensor, measure: Measure) -> Tensor:
    """Return the similarity (n, m), float32, of each of `images` to each of `pool`."""
    _alike(images, pool)
    a, b = as_float(images), as_float(pool).to(images.device)
    if measure == "psnr":
        first, second = a.double().flatten(1), b.double().flatten(1)
        squares = first.square().sum(1)[:, None] + second.square().sum(1)[None] - 2 * first @ second.T
        return _decibels(squares.clamp_min(0) / first.shape[1])
    bands = window_bands(a)
    moments, others = _moments(a), _moments(b)
    step = max(1, _CHUNK // max(1, a[0].numel()))
    out = torch.empty(len(a), len(b), device=a.device)
    for row in range(len(a)):
        for start in range(0, len(b), step):
            part = slice(start, start + step)
            mine = (moments[0][row : row + 1], moments[1][row : row + 1])
            out[row, part] = _ssim(a[row : row + 1], b[part], mine, (others[0][part], others[1][part]), bands)
    return out


def _ssim(
    a: Tensor, b: Tensor, of_a: tuple[Tensor, Tensor], of_b: tuple[Tensor, Tensor], bands: tuple[Tensor, Tensor]
) -> Tensor:
    (mean_a, variance_a), (mean_b, variance_b) = of_a, of_b
    product = mean_a * mean_b
    covariance = _blur(a * b, bands) - product
    above = (2 * product + _C1) * (2 * covariance + _C2)
    below = (mean_a.square() + mean_b.square() + _C1) * (variance_a + variance_b + _C2)
    return (above / below).flatten(1).mean(1)


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    bands = window_bands(images)
    mean = _blur(images, bands)
    return mean, (_blur(images.square(), bands) - mean.square()).clamp_min(0)


def _blur(images: Tensor, bands: tuple[Tensor, Tensor]) -> Tensor:
    # Two products with banded matrices are faster on a CPU than a convolution.
    down, across = bands
    return down @ (images @ across.T)


def window_bands(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return matrices (height - w + 1, height) and (width - w + 1, width) that blur by a window of w pixels."""
    height, width = images.shape[-2:]
    least = min(height, width)
    window = 11 if least >= 32 else min(7, least - 1 + least % 2)
    places = torch.arange(window, dtype=torch.float64) - window // 2
    weights = torch.exp(-places.square() / (2 * _SIGMA**2))
    weights = (weights / weights.sum()).float()

    def band(size: int) -> Tensor:
        out = torch.zeros(size - window + 1, size)
        for row in range(len(out)):
            out[row, row : row + window] = weights
        return out.to(images.device)

    return band(height), band(width)


def _decibels(squared_error: Tensor) -> Tensor:
    return (-10 * squared_error.clamp_min(10 ** (-PSNR_CAP / 10)).log10()).float()


def _alike(a: Tensor, b: Tensor, *, paired: bool = False) -> None:
    same = a.ndim == b.ndim == 4 and a.shape[1:] == b.shape[1:] and (not paired or len(a) == len(b))
    if not same:
        raise BenchError(f"images of the shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be compared.")


def kid(a: Tensor, b: Tensor) -> float:
    """Return the kernel distance between features (n, d) and (m, d): the unbiased squared MMD, which may be negative.

    The kernel is (x.y / d + 1) ** 3. Unlike FID it is valid below 2,048 images. Features are the evaluator's, not
    Inception's: compare only within one table. Source: Binkowski, Sutherland, Arbel, Gretton 2018, section 3. Raises
    :class:`BenchError` for fewer than two rows, or different widths.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise BenchError(f"KID takes two or more rows of equal width, not {tuple(a.shape)} and {tuple(b.shape)}.")
    x, y = a.double(), b.double().to(a.device)

    def kernel(p: Tensor, q: Tensor) -> Tensor:
        return (p @ q.T / p.shape[1] + 1) ** 3

    def within(p: Tensor) -> Tensor:
        k = kernel(p, p)
        return (k.sum() - k.diagonal().sum()) / (len(p) * (len(p) - 1))

    return float(within(x) + within(y) - 2 * kernel(x, y).mean())


def scaled_kid(features: Tensor, reference: Tensor) -> float:
    """Return :func:`kid` after dividing both by the root mean square of `reference`, since KID depends on the scale."""
    unit = reference.square().mean().sqrt().clamp_min(1e-12)
    return kid(features / unit, reference / unit)


def dpsd_inception_score(probabilities: Tensor) -> float:
    """Return DPSD's [IS], (IS - 1) * 10**6, of an evaluator's `probabilities` (n, classes).

    IS is exp of the mean KL divergence of the rows from their mean, 1 to `classes` (Salimans et al. 2016, section 4).
    Shown because papers report it, but not ranked: it ignores private data, and noise or one repeated private photo
    gets the best value, about 0, while good and varied images get the worst. It depends on n and the evaluator.
    """
    p = probabilities.double()
    marginal = p.mean(0, keepdim=True)
    divergence = torch.special.xlogy(p, p) - torch.special.xlogy(p, marginal)
    return (math.exp(float(divergence.sum(1).mean())) - 1) * 1e6
