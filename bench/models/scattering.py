"""The scattering transform, image features that need no training or data, and classifiers on it.

Bruna and Mallat, "Invariant Scattering Convolution Networks", 2013, with two scales, eight angles and two orders: 81
coefficients per channel, at a quarter of the resolution. Filters, padding and coefficient order follow kymatio 0.3.0
(Andreux et al. 2020), which Tramer and Boneh (ICLR 2021) use for private classifiers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.errors import BenchError
from bench.models.feature_net import FixedMap, OnFixedMap, Size, TwoPartNet, height_width
from bench.models.registration import register_own

VERSION = 1
"""Increment when the same image would get different features."""
ANGLES = 8
COEFFICIENTS = 1 + 2 * ANGLES + ANGLES**2
GROUPS = 27
STRIDE = 4
BATCH = 64  # images transformed at once, to bound memory
KYMATIO_PI = 3.1415  # kymatio's pi in the filter norms; math.pi would change them by 3e-5
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _gabor(height: int, width: int, sigma: float, angle: float, frequency: float, slant: float) -> Tensor:
    """Return a Gaussian envelope times a plane wave, periodic, centred at pixel (0, 0): complex128 (height, width)."""
    rows, columns = (torch.arange(-2 * size, 3 * size, dtype=torch.float64) for size in (height, width))
    along = rows[:, None] * math.cos(angle) + columns * math.sin(angle)
    across = -rows[:, None] * math.sin(angle) + columns * math.cos(angle)
    envelope = torch.exp(-(along.square() + (slant * across).square()) / (2 * sigma**2))
    # Envelopes vanish within two periods.
    periods = torch.polar(envelope, frequency * along).reshape(5, height, 5, width)
    return periods.sum((0, 2)) * slant / (2 * KYMATIO_PI * sigma**2)


def _morlet(height: int, width: int, scale: int, angle: float) -> Tensor:
    """Return the Fourier transform of a wavelet of mean 0: real, float64 (height, width)."""
    sigma, frequency, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4.0 / ANGLES
    wave, envelope = (_gabor(height, width, sigma, angle, f, slant) for f in (frequency, 0.0))
    spectrum: Tensor = torch.fft.fft2(wave - wave.sum() / envelope.sum() * envelope)
    return spectrum.real


def _lowpass(size: int, halved: bool) -> Tensor:
    """Return the matrix that smooths one axis and keeps every fourth pixel, without margins: (size / 4 - 2, size).

    If `halved`, the input axis has length size / 2 and the filter keeps only the lower half of the frequencies.
    """
    sigma = 1.6
    at = torch.arange(-2 * size, 3 * size, dtype=torch.float64)
    spectrum = torch.fft.fft(torch.exp(-at.square() / (2 * sigma**2)).reshape(5, size).sum(0))
    if halved:
        spectrum = torch.cat([spectrum[: size // 4], spectrum[3 * size // 4 :]])
    filtered: Tensor = torch.fft.ifft(spectrum).real / math.sqrt(2 * KYMATIO_PI * sigma**2)
    length, stride = len(filtered), STRIDE // (2 if halved else 1)
    taken = torch.arange(stride, length - stride, stride)
    return filtered[(taken[:, None] - torch.arange(length)) % length]


def _reflected(size: int) -> Tensor:
    """Return the pixel indices of one axis, reflection-padded to a multiple of four with a margin."""
    whole = (size // STRIDE + 2) * STRIDE
    at = torch.arange(whole) - (whole - size) // 2
    turned = at.remainder(2 * (size - 1))
    return torch.minimum(turned, 2 * (size - 1) - turned)


class Scattering(FixedMap):
    """Maps images in [0, 1] to their scattering coefficients, normalised in 27 groups within each image.

    Group normalisation uses no private statistics. If not `grouped`, coefficients of order m are instead multiplied by
    8**m, so that all are about equally large. Raises :class:`BenchError` for images below 4x4.
    """

    dtype = torch.float16
    rows: Tensor
    columns: Tensor
    fine: Tensor
    coarse: Tensor
    down: Tensor
    across: Tensor
    down_halved: Tensor
    across_halved: Tensor
    mean: Tensor
    deviation: Tensor
    levels: Tensor

    def __init__(self, channels: int, height: int, width: int, grouped: bool = True) -> None:
        super().__init__()
        self.grouped = grouped
        if min(height, width) < STRIDE:
            raise BenchError(
                f"the scattering transform takes images of at least {STRIDE}x{STRIDE} pixels, not "
                f"{height}x{width}. Choose another data set or method."
            )
        self.shape = (channels, height, width)
        self.map_shape = (COEFFICIENTS * channels, height // STRIDE, width // STRIDE)
        self.num_features = math.prod(self.map_shape)
        rows, columns = _reflected(height), _reflected(width)
        angles = [(ANGLES // 2 - 1 - number) * math.pi / ANGLES for number in range(ANGLES)]
        fine, coarse = (
            torch.stack([_morlet(len(rows), len(columns), scale, angle) for angle in angles]) for scale in (0, 1)
        )
        mean, deviation = IMAGENET if channels == 3 else ((0.0,), (1.0,))
        held = {
            "rows": rows[:, None], "columns": columns, "fine": _twice(fine), "coarse": _twice(coarse / 4),
            "across": _lowpass(len(columns), False), "down": _lowpass(len(rows), False),
            "across_halved": _lowpass(len(columns), True), "down_halved": _lowpass(len(rows), True),
            "mean": torch.tensor(mean)[:, None, None], "deviation": torch.tensor(deviation)[:, None, None],
            "levels": torch.tensor([1.0, *[8.0] * 2 * ANGLES, *[64.0] * ANGLES**2]).repeat(channels)[:, None, None],
        }  # fmt: skip
        for name, value in held.items():
            self.register_buffer(name, value.float() if value.is_floating_point() else value, persistent=False)

    def identity(self) -> dict[str, Any]:
        """See :meth:`bench.models.feature_net.FixedMap.identity`."""
        other = {} if self.grouped else {"grouped": False}
        return {"name": "scattering", "version": VERSION, "shape": list(self.shape), **other}

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, (n, num_features)."""
        scaled = (images - self.mean) / self.deviation
        maps = torch.cat([self.coefficients(batch).flatten(1, 2) for batch in torch.split(scaled, BATCH)])
        return (functional.group_norm(maps, GROUPS) if self.grouped else maps * self.levels).flatten(1)

    def coefficients(self, images: Tensor) -> Tensor:
        """Return the scattering coefficients of float `images`: (n, channels, 81, height // 4, width // 4)."""
        count, channels = images.shape[:2]
        padded = images.flatten(0, 1)[:, self.rows, self.columns]
        fine, coarse = (wavelets.reshape(*wavelets.shape[:2], -1, 2) for wavelets in (self.fine, self.coarse))
        spectrum = torch.view_as_real(torch.fft.fft2(padded))[:, None]
        first = _modulus(spectrum * fine)
        second = _modulus(_halved(spectrum, coarse))
        first_spectrum = torch.view_as_real(torch.fft.fft2(first))[:, :, None]
        third = _modulus(_halved(first_spectrum, coarse)).flatten(1, 2)
        full = _smoothed(torch.cat([padded[:, None], first], 1), self.down, self.across)
        half = _smoothed(torch.cat([second, third], 1), self.down_halved, self.across_halved)
        maps = torch.cat([full, half], 1)
        return maps.reshape(count, channels, *maps.shape[1:])


def _twice(spectrum: Tensor) -> Tensor:
    """Repeat a real spectrum to multiply interleaved real and imaginary parts: (..., rows, 2 * columns).

    It stays three-dimensional, because the training loop changes the memory layout of 4-d buffers.
    """
    return spectrum.repeat_interleave(2, -1)


def _halved(spectrum: Tensor, wavelets: Tensor) -> Tensor:
    """Filter by each of `wavelets` and return the spectra of every second pixel, (..., rows / 2, columns / 2, 2).

    Subsampling sums the four frequencies that alias; `wavelets` include the division by four.
    """
    rows, columns = wavelets.shape[-3] // 2, wavelets.shape[-2] // 2
    total = spectrum.new_zeros(())
    for r, c in ((0, 0), (0, columns), (rows, 0), (rows, columns)):
        part = (..., slice(r, r + rows), slice(c, c + columns), slice(None))
        total = torch.addcmul(total, spectrum[part], wavelets[part])
    return total


def _modulus(spectrum: Tensor) -> Tensor:
    # torch defines the gradient of the modulus at 0 as 0.
    modulus: Tensor = torch.fft.ifft2(torch.view_as_complex(spectrum)).abs()
    return modulus


def _smoothed(maps: Tensor, down: Tensor, across: Tensor) -> Tensor:
    return ((maps @ across.T).mT @ down.T).mT


class ChannelNorm(nn.Module):
    """Standardises each channel of (n, features) by constants; all channels are equally long."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("deviation", torch.ones(channels))

    def forward(self, features: Tensor) -> Tensor:
        """Return the standardised features, (n, features)."""
        maps = features.view(len(features), len(self.mean), -1)
        return ((maps - self.mean[:, None]) / self.deviation[:, None]).flatten(1)


class NormedHead(TwoPartNet):
    """A head after a :class:`ChannelNorm`."""

    def __init__(self, channels: int, head: nn.Module) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels)
        self.head = head

    def forward_features(self, features: Tensor) -> Tensor:
        """Return the standardised `features` (n, features)."""
        normed: Tensor = self.norm(features)
        return normed


class ConvHead(TwoPartNet):
    """Convolutions on scattering maps, and a last dense layer."""

    end = "last"

    def __init__(self, shape: tuple[int, int, int], layers: list[nn.Module], hidden: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Unflatten(1, shape), *layers, nn.Flatten())
        with torch.no_grad():
            width = self.body(torch.zeros(1, math.prod(shape))).shape[1]
        if hidden:
            self.body.extend([nn.Linear(width, hidden), nn.Tanh()])
        self.last = nn.Linear(hidden or width, classes)

    def forward_features(self, features: Tensor) -> Tensor:
        """Return the input of the last layer for `features` (n, features)."""
        hidden: Tensor = self.body(features)
        return hidden


def _student(scattering: Scattering, head: nn.Module, classes: int) -> OnFixedMap:
    return OnFixedMap(scattering, head if scattering.grouped else NormedHead(scattering.map_shape[0], head), classes)


@register_own
def scatter_linear(
    num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, standardised: bool = False, **_: Any
) -> OnFixedMap:
    """Build the linear classifier of scattering coefficients (Tramer and Boneh, ICLR 2021, section 3)."""
    scattering = Scattering(in_chans, *height_width(img_size), not standardised)
    return _student(scattering, nn.Linear(scattering.num_features, num_classes), num_classes)


@register_own
def scatter_cnn_mnist(
    num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, standardised: bool = False, **_: Any
) -> OnFixedMap:
    """Build the CNN on scattering coefficients of Tramer and Boneh (ICLR 2021, appendix C) for (Fashion-)MNIST."""
    scattering = Scattering(in_chans, *height_width(img_size), not standardised)
    layers: list[nn.Module] = [
        nn.Conv2d(scattering.map_shape[0], 16, 3, stride=2, padding=1), nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(),
    ]  # fmt: skip
    return _student(scattering, ConvHead(scattering.map_shape, layers, 32, num_classes), num_classes)


@register_own
def scatter_cnn_cifar(
    num_classes: int = 10, in_chans: int = 3, img_size: Size = 32, standardised: bool = False, **_: Any
) -> OnFixedMap:
    """Build the CNN on scattering coefficients of Tramer and Boneh (ICLR 2021, appendix C) for CIFAR-10."""
    scattering = Scattering(in_chans, *height_width(img_size), not standardised)
    layers: list[nn.Module] = [
        nn.Conv2d(scattering.map_shape[0], 64, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(64, 64, 3, padding=1), nn.Tanh(),
    ]  # fmt: skip
    return _student(scattering, ConvHead(scattering.map_shape, layers, 0, num_classes), num_classes)
