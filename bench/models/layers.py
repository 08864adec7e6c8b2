"""Layers that torch lacks. Images are normalised by public constants: private statistics would bypass the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional


def normalise(images: Tensor) -> Tensor:
    """Map images in [0, 1] to [-1, 1] by the public constants mean 0.5 and standard deviation 0.5; any shape."""
    return (images - 0.5) / 0.5


class Normalise(nn.Module):
    """:func:`normalise` as a layer, the first of most nets here."""

    def forward(self, images: Tensor) -> Tensor:
        """Return `images` mapped from [0, 1] to [-1, 1]."""
        return normalise(images)


class BytesAboutHalf(nn.Module):
    """Map images in [0, 1] to [-0.5, 254.5], the scale on which the published PATE nets train on MNIST.

    ``research/pate_2017/input.py`` of tensorflow/privacy normalises MNIST by a `pixel_depth` of 1, so pixels stay on
    the byte scale, contrary to its docstring. Nets with initial weights of 1e-4 train only on that scale.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Return ``255 * images - 0.5``."""
        return images * 255.0 - 0.5


class TemperedSigmoid(nn.Module):
    """``scale * sigmoid(inverse_temperature * x) - offset``: Papernot et al., AAAI 2021; (2, 2, 1) is tanh."""

    def __init__(self, scale: float, inverse_temperature: float, offset: float) -> None:
        super().__init__()
        self.scale, self.inverse_temperature, self.offset = scale, inverse_temperature, offset

    def forward(self, values: Tensor) -> Tensor:
        """Return the activations of `values`, any shape."""
        return self.scale * torch.sigmoid(self.inverse_temperature * values) - self.offset


class GaussianNoise(nn.Module):
    """Add N(0, `sigma`^2) noise to every value in training; change nothing in evaluation."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.sigma = sigma

    def forward(self, values: Tensor) -> Tensor:
        """Return `values` with noise, of the same shape."""
        if not self.training or self.sigma == 0.0:
            return values
        return values + torch.empty_like(values).normal_(0.0, self.sigma)


class WeightNormLinear(nn.Module):
    """A dense layer whose rows are ``scale * direction / |direction|``, with data-dependent initialisation.

    Salimans and Kingma 2016; follows ``nn.DenseLayer`` in ``mnist_svhn_cifar10/nn.py`` of openai/improved-gan. Inside
    :func:`data_dependent_start`, a batch sets scale and bias so that outputs have mean 0 and standard deviation 1.
    """

    def __init__(self, inputs: int, outputs: int, *, train_scale: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.direction = nn.Parameter(torch.empty(outputs, inputs).normal_(0.0, 0.1))
        self.bias = nn.Parameter(torch.zeros(outputs))
        if train_scale:
            self.scale = nn.Parameter(torch.ones(outputs))
        else:
            self.register_buffer("scale", torch.ones(outputs))
        self.starting = False

    def forward(self, values: Tensor) -> Tensor:
        """Map (n, inputs) to (n, outputs)."""
        weight = self.direction * (self.scale * self.direction.square().sum(1).rsqrt()).unsqueeze(1)
        if self.starting:
            with torch.no_grad():
                raw = functional.linear(values, weight)
                mean = raw.mean(0)
                deviation = (raw - mean).square().mean(0).sqrt().clamp_min(1e-6)
                self.scale.div_(deviation)
                self.bias.copy_(-mean / deviation)
                weight = weight / deviation.unsqueeze(1)
        return functional.linear(values, weight, self.bias)


@contextmanager
def data_dependent_start(model: nn.Module) -> Iterator[None]:
    """Make forward passes initialise weight-normed layers. The batch must be public, since the values are released."""
    layers = [layer for layer in model.modules() if isinstance(layer, WeightNormLinear)]
    for layer in layers:
        layer.starting = True
    try:
        yield
    finally:
        for layer in layers:
            layer.starting = False


class ChannelNorm(nn.Module):
    """Local response normalisation across channels: ``x / (1 + alpha * sum of x^2 over 2 * radius + 1 channels)^0.75``.

    As in TensorFlow, `alpha` is not divided by the window. A banded matrix is much faster on CPUs than torch's layer.
    """

    band: Tensor

    def __init__(self, channels: int, radius: int = 4, alpha: float = 0.001 / 9.0) -> None:
        super().__init__()
        index = torch.arange(channels)
        near = ((index[:, None] - index[None, :]).abs() <= radius).float()
        self.register_buffer("band", near[:, :, None, None] * alpha, persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Return `values`, (n, channels, height, width), normalised."""
        root = (1.0 + functional.conv2d(values.square(), self.band)).rsqrt()
        # Under autocast, multiply in the type of `values`: mixed-type products are several times slower.
        return values * (root * root.sqrt()).to(values.dtype)
