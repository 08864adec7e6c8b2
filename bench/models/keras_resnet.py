"""Keras' first ResNet-50 (``resnet50_keras``), registered with timm, for weights trained with it.

Unlike timm's ``resnet50``, layers 2 to 4 stride in the first convolution (He et al., CVPR 2016), and batch
normalisation adds 1e-3 to the variance. :mod:`bench.models.weight_packages` folds biases into the running means.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from timm.models import build_model_with_cfg, register_model
from timm.models.resnet import Bottleneck, ResNet
from torch import nn

from bench.models.registration import check_rgb, rgb_cfgs

MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)
"""For RGB in [0, 1]. Keras subtracts the mean from bytes and does not scale, so `STD` is one byte step."""
STD = (1 / 255, 1 / 255, 1 / 255)

default_cfgs = rgb_cfgs(
    "resnet50_keras", 224, pool_size=(7, 7), num_classes=1000, crop_pct=0.875, mean=MEAN, std=STD, first_conv="conv1",
    classifier="fc",
)  # fmt: skip


@register_model
def resnet50_keras(
    pretrained: bool = False, num_classes: int = 1000, in_chans: int = 3, img_size: Any = None, **options: Any
) -> nn.Module:
    """Build Keras' first ResNet-50 for normalised RGB images (n, 3, height, width) of 32 pixels or more.

    `img_size` is ignored. Raise BenchError unless `in_chans` is 3, and for `pretrained`: no hub has the weights.
    """
    check_rgb("resnet50_keras", pretrained, in_chans)
    options.setdefault("norm_layer", partial(nn.BatchNorm2d, eps=1e-3))
    net: nn.Module = build_model_with_cfg(
        ResNet, "resnet50_keras", False, block=Bottleneck, layers=(3, 4, 6, 3), num_classes=num_classes, **options
    )
    for block in net.modules():
        # features_only wraps the net, so blocks are found by class.
        if isinstance(block, Bottleneck):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return net
