"""The papers' own classifiers, registered with timm.

Every net takes float images in [0, 1] of shape (n, in_chans, height, width) and normalises them itself by public
constants (:mod:`bench.models.layers`). Entry points take `num_classes`, `in_chans` and `img_size`. Like timm's models
they have ``forward_features`` and ``forward_head(x, pre_logits=True)``, which returns the last hidden layer: feature
matching and attacks rely on it. None has batch normalisation, so all of them allow per-example gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.core.errors import BenchError
from bench.models.feature_net import FeatureNet, Size, height_width
from bench.models.layers import BytesAboutHalf, ChannelNorm, GaussianNoise, Normalise, WeightNormLinear
from bench.models.registration import register_own


def _flat_width(name: str, layers: Sequence[nn.Module], in_chans: int, size: tuple[int, int]) -> int:
    """Return the number of outputs of `layers` for one image; raise :class:`BenchError` where it is too small."""
    try:
        with torch.no_grad():
            return int(nn.Sequential(*layers)(torch.zeros(1, in_chans, *size)).numel())
    except RuntimeError as error:
        raise BenchError(
            f"{name} cannot take images of {size[0]}x{size[1]} pixels with {in_chans} channels: they are too small for "
            "its strides and pools. Take small_cnn, which fits any size from 4x4, or another timm model."
        ) from error


def _assemble(
    name: str, layers: list[nn.Module], dense: Sequence[int], activation: type[nn.Module], in_chans: int, size: Size,
    num_classes: int, before_head: nn.Module | None = None,
) -> FeatureNet:  # fmt: skip
    """Add dense layers of the widths `dense`, each with `activation`, and a linear head to convolutional `layers`."""
    width = _flat_width(name, layers, in_chans, height_width(size))
    layers.append(nn.Flatten())
    for units in dense:
        layers += [nn.Linear(width, units), activation()]
        width = units
    # Without classes the net ends at its features, as timm's nets do.
    head = nn.Linear(width, num_classes) if num_classes else nn.Identity()
    return FeatureNet(nn.Sequential(*layers), head, width, before_head if num_classes else None)


def _pate_layers(scale: nn.Module, in_chans: int) -> list[nn.Module]:
    return [
        scale,
        nn.Conv2d(in_chans, 64, 5, padding=2), nn.MaxPool2d(3, 2, ceil_mode=True), nn.ReLU(), ChannelNorm(64),
        nn.Conv2d(64, 128, 5, padding=2), nn.ReLU(), ChannelNorm(128), nn.MaxPool2d(3, 2, ceil_mode=True),
    ]  # fmt: skip


@register_own
def pate_mnist(num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, **_: Any) -> FeatureNet:
    """Build the MNIST teacher of PATE 2017 (two 5x5 convolutions of 64 and 128, dense 384 and 192).

    Papernot et al., ICLR 2017, section 4; layer by layer from ``inference`` in ``research/pate_2017/deep_cnn.py`` of
    tensorflow/privacy: same-padded convolutions, 3x3 max pools of stride 2, response normalisation, truncated normal
    starts of 1e-4 (convolutions), 0.04 (dense) and 1/192 (last). Pooling goes before the first ReLU, which gives the
    same values faster. The code's weight decay, 0.004 on the two dense layers, is the `dense_decay` of
    :class:`bench.training.loop.FitSettings`.
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
    """Build the SVHN teacher of PATE 2017: the MNIST one with two more hidden layers.

    Papernot et al., ICLR 2017, section 4 ("we add two hidden layers"). The published code trains SVHN with the net of
    :func:`pate_mnist` on whitened images (per-image mean 0, deviation 1); the two further hidden layers are read here
    as two more dense layers of 192, and the input is normalised per image as the code does.
    """
    layers = _pate_layers(WhitenImage(), in_chans)
    net = _assemble("pate_svhn", layers, (384, 192, 192, 192), nn.ReLU, in_chans, img_size, num_classes)
    for layer in net.modules():
        # He's start, not the code's 1e-4: through four dense layers that one gives no gradient at all.
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net


class WhitenImage(nn.Module):
    """Give each image mean 0 and standard deviation 1, without statistics of the data set.

    ``image_whitening`` in ``research/pate_2017/input.py`` of tensorflow/privacy, on the scale of bytes; the deviation
    is at least one over the root of the number of pixels.
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
    """Build DGD's baseline and teacher: two 3x3 convolutions (64, 128), each with ReLU and a 2x2 pool, Xavier starts.

    DGD, section IV; `dense` adds layers with ReLU before the last, 384 and 192 there for SVHN.
    """
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


@register_own
def tanh_cnn_mnist(num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, **_: Any) -> FeatureNet:
    """Build the tanh CNN that Tramer and Boneh (ICLR 2021, appendix C) train with DP-SGD on MNIST and Fashion-MNIST.

    Convolution 16 of 8x8 with stride 2 and padding 2, pool 2x2 of stride 1, convolution 32 of 4x4 with stride 2, pool
    2x2 of stride 1, dense 32. Below 20 pixels the first convolution becomes one of 4x4 with stride 1 and the second one
    of 3x3 with stride 1, so that 8x8 digits fit.
    """
    if min(height_width(img_size)) >= 20:
        first, second = nn.Conv2d(in_chans, 16, 8, stride=2, padding=2), nn.Conv2d(16, 32, 4, stride=2)
    else:
        first, second = nn.Conv2d(in_chans, 16, 4, stride=1, padding=1), nn.Conv2d(16, 32, 3, stride=1)
    layers: list[nn.Module] = [
        Normalise(), first, nn.Tanh(), nn.MaxPool2d(2, 1), second, nn.Tanh(), nn.MaxPool2d(2, 1),
    ]  # fmt: skip
    return _assemble("tanh_cnn_mnist", layers, (32,), nn.Tanh, in_chans, img_size, num_classes)


@register_own
def tanh_cnn_cifar(num_classes: int = 10, in_chans: int = 3, img_size: Size = 32, **_: Any) -> FeatureNet:
    """Build the tanh CNN that Tramer and Boneh (ICLR 2021, appendix C) train with DP-SGD on CIFAR-10.

    Three pairs of 3x3 convolutions of 32, 64 and 128 channels, each pair before a 2x2 pool of stride 2; dense 128.
    """
    layers: list[nn.Module] = [Normalise()]
    channels = in_chans
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh(), nn.Conv2d(width, width, 3, padding=1)]
        layers += [nn.Tanh(), nn.MaxPool2d(2, 2)]
        channels = width
    return _assemble("tanh_cnn_cifar", layers, (128,), nn.Tanh, in_chans, img_size, num_classes)


@register_own
def small_cnn(num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, width: int = 16, **_: Any) -> FeatureNet:
    """Build a small CNN for quick runs on a CPU: two strided convolutions and a dense layer. Not from a paper."""
    big = min(height_width(img_size)) >= 16
    layers: list[nn.Module] = [
        Normalise(),
        nn.Conv2d(in_chans, width, 5 if big else 3, stride=2 if big else 1, padding=2 if big else 1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
    ]  # fmt: skip
    return _assemble("small_cnn", layers, (64,), nn.ReLU, in_chans, img_size, num_classes)


@register_own
def softmax_regression(num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, **_: Any) -> FeatureNet:
    """Build a linear classifier of pixels: the net of Fredrikson et al. 2015, section 5, attacked on faces there.

    Pixels are mapped to [-1, 1]; the head starts at 0, so that what it ends as comes of the data alone.
    """
    net = _assemble("softmax_regression", [Normalise()], (), nn.ReLU, in_chans, img_size, num_classes)
    head = net.get_classifier()
    if isinstance(head, nn.Linear):
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    return net


@register_own
def salimans_mlp(
    num_classes: int = 10, in_chans: int = 1, img_size: Size = 28,
    widths: Sequence[int] = (1000, 500, 250, 250, 250), input_noise: float = 0.3, noise: float = 0.5, **_: Any,
) -> FeatureNet:  # fmt: skip
    """Build the MNIST classifier of the improved GAN (Salimans et al. 2016): weight-normed dense layers with noise.

    ``mnist_svhn_cifar10/train_mnist_feature_matching.py`` of openai/improved-gan: Gaussian noise 0.3 on the input and
    0.5 before every other layer, dense 1000, 500, 250, 250, 250 with ReLU, a last layer whose scale is trained. Pixels
    stay in [0, 1] as there.
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
