"""The papers' own classifiers, registered with timm.

Every net takes float images (n, in_chans, height, width) in [0, 1] and normalises them itself, without data set
statistics. As in timm, ``forward_features`` and ``forward_head(x, pre_logits=True)`` give the last hidden layer, for
feature matching and attacks. Only `small_cnn_bn` has batch normalisation; all others allow per-example gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.errors import BenchError
from bench.models.feature_net import FeatureNet, Size, height_width
from bench.models.layers import BytesAboutHalf, ChannelNorm, GaussianNoise, Normalise, TemperedSigmoid, WeightNormLinear
from bench.models.registration import register_own

Activation = Callable[[], nn.Module]


def _flat_width(name: str, layers: Sequence[nn.Module], in_chans: int, size: tuple[int, int]) -> int:
    """Return the number of outputs of `layers` for one image; raise BenchError if it is too small."""
    try:
        with torch.no_grad():
            return int(nn.Sequential(*layers)(torch.zeros(1, in_chans, *size)).numel())
    except RuntimeError as error:
        raise BenchError(
            f"{name} cannot take images of {size[0]}x{size[1]} pixels with {in_chans} channels: they are "
            "too small for its strides and pools. Use small_cnn, which fits any size from 4x4, or another timm model."
        ) from error


def _assemble(
    name: str, layers: list[nn.Module], dense: Sequence[int], activation: Activation, in_chans: int, size: Size,
    num_classes: int,
) -> FeatureNet:  # fmt: skip
    width = _flat_width(name, layers, in_chans, height_width(size))
    layers.append(nn.Flatten())
    if isinstance(layers[-2], nn.ReLU):  # flatten before ReLU, because changing the layout of its gradient is slow
        layers[-2:] = layers[:-3:-1]
    for units in dense:
        layers += [nn.Linear(width, units), activation()]
        width = units
    # Without classes the net ends at its features, as timm's nets do.
    head = nn.Linear(width, num_classes) if num_classes else nn.Identity()
    return FeatureNet(nn.Sequential(*layers), head, width, None)


def _pate_layers(scale: nn.Module, in_chans: int) -> list[nn.Module]:
    return [
        scale,
        nn.Conv2d(in_chans, 64, 5, padding=2), nn.MaxPool2d(3, 2, ceil_mode=True), nn.ReLU(), ChannelNorm(64),
        nn.Conv2d(64, 128, 5, padding=2), nn.ReLU(), ChannelNorm(128), nn.MaxPool2d(3, 2, ceil_mode=True),
    ]  # fmt: skip


@register_own
def pate_mnist(num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, **_: Any) -> FeatureNet:
    """Build PATE 2017's MNIST teacher: two 5x5 convolutions (64 and 128 maps), dense layers of 384 and 192 units.

    Papernot et al., ICLR 2017, section 4; follows ``inference`` in ``research/pate_2017/deep_cnn.py`` of
    tensorflow/privacy and its truncated normal initialisation. Pooling before the first ReLU gives the same values
    faster. The code's weight decay, 0.004 on both dense layers, is `dense_decay` of :mod:`bench.training.loop`.
    """
    layers = _pate_layers(BytesAboutHalf(), in_chans)
    net = _assemble("pate_mnist", layers, (384, 192), nn.ReLU, in_chans, img_size, num_classes)
    linear = [layer for layer in net.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    starts = [(1e-4, 0.0), (1e-4, 0.1), (0.04, 0.1), (0.04, 0.1), (1 / 192.0, 0.0)]
    for layer, (deviation, bias) in zip(linear, starts[: len(linear)], strict=True):
        nn.init.trunc_normal_(layer.weight, 0.0, deviation, -2.0 * deviation, 2.0 * deviation)
        if layer.bias is not None:
            nn.init.constant_(layer.bias, bias)
    return net


@register_own
def pate_svhn(num_classes: int = 10, in_chans: int = 3, img_size: Size = 32, **_: Any) -> FeatureNet:
    """Build the SVHN teacher of PATE 2017: the MNIST one with two more hidden layers, on whitened images.

    Papernot et al., ICLR 2017, section 4 ("we add two hidden layers"), read here as two more dense layers of 192. The
    published code trains the net of :func:`pate_mnist` on SVHN, whitened.
    """
    layers = _pate_layers(WhitenImage(), in_chans)
    net = _assemble("pate_svhn", layers, (384, 192, 192, 192), nn.ReLU, in_chans, img_size, num_classes)
    for layer in net.modules():
        # He initialisation: with the published 1e-4 no gradient gets through four dense layers.
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net


class WhitenImage(nn.Module):
    """Give each image mean 0 and standard deviation 1, without data set statistics.

    Follows ``image_whitening`` in ``research/pate_2017/input.py`` of tensorflow/privacy, on the byte scale.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Return `images`, (n, channels, height, width) in [0, 1], whitened."""
        values = images * 255.0
        floor = 1.0 / values[0].numel() ** 0.5
        mean = values.mean((1, 2, 3), keepdim=True)
        deviation = values.std((1, 2, 3), correction=0, keepdim=True).clamp_min(floor)
        return (values - mean) / deviation


@register_own
def dgd_cnn(
    num_classes: int = 10, in_chans: int = 1, img_size: Size = 28,
    dense: Sequence[int] = (), **_: Any,
) -> FeatureNet:  # fmt: skip
    """Build DGD's baseline and teacher (section IV): two 3x3 convolutions; for SVHN it sets `dense` to (384, 192)."""
    layers: list[nn.Module] = [Normalise()]
    channels = in_chans
    for width in (64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    net = _assemble("dgd_cnn", layers, dense, nn.ReLU, in_chans, img_size, num_classes)
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight)
    return net


def _mnist_cnn(name: str, activation: Activation, num_classes: int, in_chans: int, img_size: Size) -> FeatureNet:
    if min(height_width(img_size)) >= 20:
        first, second = nn.Conv2d(in_chans, 16, 8, stride=2, padding=2), nn.Conv2d(16, 32, 4, stride=2)
    else:
        first, second = nn.Conv2d(in_chans, 16, 4, stride=1, padding=1), nn.Conv2d(16, 32, 3, stride=1)
    layers: list[nn.Module] = [
        Normalise(), first, activation(), nn.MaxPool2d(2, 1), second, activation(), nn.MaxPool2d(2, 1),
    ]  # fmt: skip
    return _assemble(name, layers, (32,), activation, in_chans, img_size, num_classes)


def _cifar_cnn(name: str, activation: Activation, num_classes: int, in_chans: int, img_size: Size) -> FeatureNet:
    layers: list[nn.Module] = [Normalise()]
    channels = in_chans
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), activation(), nn.Conv2d(width, width, 3, padding=1)]
        layers += [activation(), nn.MaxPool2d(2, 2)]
        channels = width
    return _assemble(name, layers, (128,), activation, in_chans, img_size, num_classes)


@register_own
def tanh_cnn_mnist(num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, **_: Any) -> FeatureNet:
    """Build Tramer and Boneh's tanh CNN (ICLR 2021, appendix C) for (Fashion-)MNIST; small kernels below 20 pixels."""
    return _mnist_cnn("tanh_cnn_mnist", nn.Tanh, num_classes, in_chans, img_size)


@register_own
def tanh_cnn_cifar(num_classes: int = 10, in_chans: int = 3, img_size: Size = 32, **_: Any) -> FeatureNet:
    """Build the tanh CNN that Tramer and Boneh (ICLR 2021, appendix C) train with DP-SGD on CIFAR-10."""
    return _cifar_cnn("tanh_cnn_cifar", nn.Tanh, num_classes, in_chans, img_size)


@register_own
def tempered_cnn_mnist(
    num_classes: int = 10, in_chans: int = 1, img_size: Size = 28,
    scale: float = 2.0, inverse_temperature: float = 2.0, offset: float = 1.0, **_: Any,
) -> FeatureNet:  # fmt: skip
    """Build tanh_cnn_mnist with tempered sigmoids (Papernot et al., AAAI 2021), tanh by default."""
    activation = partial(TemperedSigmoid, scale, inverse_temperature, offset)
    return _mnist_cnn("tempered_cnn_mnist", activation, num_classes, in_chans, img_size)


@register_own
def tempered_cnn_cifar(
    num_classes: int = 10, in_chans: int = 3, img_size: Size = 32,
    scale: float = 2.0, inverse_temperature: float = 2.0, offset: float = 1.0, **_: Any,
) -> FeatureNet:  # fmt: skip
    """Build tanh_cnn_cifar with tempered sigmoids (Papernot et al., AAAI 2021), tanh by default."""
    activation = partial(TemperedSigmoid, scale, inverse_temperature, offset)
    return _cifar_cnn("tempered_cnn_cifar", activation, num_classes, in_chans, img_size)


@register_own
def small_cnn(num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, width: int = 16, **_: Any) -> FeatureNet:
    """Build a small CNN for quick runs on a CPU: two strided convolutions and a dense layer. Not from a paper."""
    layers = [Normalise(), *_small_layers(in_chans, img_size, width)]
    return _assemble("small_cnn", layers, (64,), nn.ReLU, in_chans, img_size, num_classes)


@register_own
def small_cnn_bn(
    num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, width: int = 16, **_: Any
) -> FeatureNet:  # fmt: skip
    """Build `small_cnn` with batch normalisation after each convolution. Not from a paper."""
    first, relu, second, last = _small_layers(in_chans, img_size, width)
    layers = [Normalise(), first, nn.BatchNorm2d(width), relu, second, nn.BatchNorm2d(2 * width), last]
    return _assemble("small_cnn_bn", layers, (64,), nn.ReLU, in_chans, img_size, num_classes)


def _small_layers(in_chans: int, img_size: Size, width: int) -> list[nn.Module]:
    big = min(height_width(img_size)) >= 16
    return [
        nn.Conv2d(in_chans, width, 5 if big else 3, stride=2 if big else 1, padding=2 if big else 1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
    ]  # fmt: skip


@register_own
def convnet(
    num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, width: int = 128, **_: Any
) -> FeatureNet:  # fmt: skip
    """Build the ConvNet of dataset condensation: three convolutions, each with instance normalisation and pooling.

    Zhao, Mopuri, Bilen, ICLR 2021 (arXiv:2006.05929), appendix A; follows ``ConvNet`` in ``utils/networks.py`` of
    DingfanChen/Private-Set, which pads grey images by 2 more pixels.
    """
    layers: list[nn.Module] = [Normalise()]
    for channels in (in_chans, width, width):
        wide = 3 if len(layers) == 1 and in_chans == 1 else 1
        layers += [nn.Conv2d(channels, width, 3, padding=wide), nn.GroupNorm(width, width), nn.ReLU(), nn.AvgPool2d(2)]
    return _assemble("convnet", layers, (), nn.ReLU, in_chans, img_size, num_classes)


@register_own
def softmax_regression(num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, **_: Any) -> FeatureNet:
    """Build the softmax regression on pixels of Fredrikson et al. 2015, section 5, initialised at 0."""
    net = _assemble("softmax_regression", [Normalise()], (), nn.ReLU, in_chans, img_size, num_classes)
    head = net.get_classifier()
    if isinstance(head, nn.Linear):
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    return net


class SignedFeatures(nn.Module):
    """Map values v in [0, 1], (n, ...), to (w, -w, 1, -1) with w = 2 v - 1, (n, 2 d + 2).

    Its mean is 0, so standardising it within a record, as frozen features are, loses only the length of (w, 1).
    """

    def forward(self, values: Tensor) -> Tensor:
        """Return the features of `values`."""
        lifted = functional.pad(2 * values.flatten(1) - 1, (0, 1), value=1.0)
        return torch.cat([lifted, -lifted], dim=1)


@register_own
def features(num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, **_: Any) -> FeatureNet:
    """Build the fixed map for features as data; with `num_classes`, a linear classifier on it. Not from a paper."""
    return _assemble("features", [SignedFeatures()], (), nn.ReLU, in_chans, img_size, num_classes)


@register_own
def salimans_mlp(
    num_classes: int = 10, in_chans: int = 1, img_size: Size = 28,
    widths: Sequence[int] = (1000, 500, 250, 250, 250), input_noise: float = 0.3, noise: float = 0.5, **_: Any,
) -> FeatureNet:  # fmt: skip
    """Build the MNIST classifier of the improved GAN (Salimans et al. 2016): weight-normed dense layers with noise.

    Follows ``mnist_svhn_cifar10/train_mnist_feature_matching.py`` of openai/improved-gan, which keeps pixels in [0, 1].
    """
    height, across = height_width(img_size)
    fan = in_chans * height * across
    layers: list[nn.Module] = [nn.Flatten()]
    for number, units in enumerate(widths):
        layers += [GaussianNoise(noise if number else input_noise), WeightNormLinear(fan, units), nn.ReLU()]
        fan = units
    if not num_classes:
        return FeatureNet(nn.Sequential(*layers), nn.Identity(), fan, None)
    head = WeightNormLinear(fan, num_classes, train_scale=True)
    return FeatureNet(nn.Sequential(*layers), head, fan, GaussianNoise(noise))
