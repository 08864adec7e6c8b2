"""Gaussian naive Bayes, as a head on features and as a registered net on pixels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.models.feature_net import FeatureNet, Size, height_width
from bench.models.registration import register_own

NEVER = -1e30
"""The logit of an unknown class: finite, to keep infinities out of later steps."""


class GaussianHead(nn.Module):
    """Log-likelihoods of features (n, d) under one Gaussian per class and feature, without the additive constant."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.in_features, self.out_features = features, classes
        self.mean = nn.Parameter(torch.zeros(classes, features))
        self.log_variance = nn.Parameter(torch.zeros(classes, features))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits (n, classes) of `features` (n, d)."""
        squares = (features[:, None] - self.mean).square() * torch.exp(-self.log_variance)
        return self.bias - 0.5 * (squares + self.log_variance).sum(2)


def set_gaussians(head: GaussianHead, mean: Tensor, variance: Tensor, known: Tensor) -> None:
    """Write `mean` and `variance`, each (classes, d), into `head`; it predicts only `known` (classes,) classes."""
    with torch.no_grad():
        head.mean.copy_(mean)
        head.log_variance.copy_(variance.log())
        head.bias.copy_(torch.where(known, 0.0, NEVER))


@register_own
def naive_bayes_pixels(num_classes: int = 10, in_chans: int = 1, img_size: Size = 28, **_: Any) -> FeatureNet:
    """Build naive Bayes with one Gaussian per class and pixel; pixels stay in [0, 1]. Not from a paper."""
    height, width = height_width(img_size)
    features = in_chans * height * width
    return FeatureNet(nn.Sequential(nn.Flatten()), GaussianHead(features, num_classes), features, None)
