"""dlib's face embedding (``face_resnet``), registered with timm: 128 numbers, close for photographs of one person.

A residual net of 29 convolutions (He et al., CVPR 2016), trained by dlib's author so that photographs of one person
are less than 0.6 apart. :mod:`bench.models.weight_packages` folds the layers that scale channels into the convolutions.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.models import register_model
from torch import Tensor, nn
from torch.nn import functional

from bench.models.feature_net import TwoPartNet
from bench.models.registration import check_rgb, rgb_cfgs

MEAN = (122.782 / 255, 117.001 / 255, 104.298 / 255)
"""For RGB in [0, 1]. dlib subtracts the mean from bytes and divides by 256."""
STD = (256 / 255, 256 / 255, 256 / 255)
SIDE = 150
WIDTH = 128
BLOCKS = (
    *(f"conv32_{number}" for number in (1, 2, 3)),
    "conv64_down", *(f"conv64_{number}" for number in (1, 2, 3)),
    "conv128_down", "conv128_1", "conv128_2",
    "conv256_down", "conv256_1", "conv256_2", "conv256_down_out",
)  # fmt: skip
"""Names of the residual blocks, in order; each starts with its number of channels."""

default_cfgs = rgb_cfgs("face_resnet", SIDE, mean=MEAN, std=STD, first_conv="conv32_down", classifier="head")


class _Block(nn.Module):
    """Two convolutions and a shortcut; `down` halves the size, and the shortcut's missing channels are zero."""

    def __init__(self, into: int, out: int, *, down: bool) -> None:
        super().__init__()
        self.down = down
        self.conv1 = nn.Conv2d(into, out, 3, 2 if down else 1, 0 if down else 1)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        made = self.conv2(self.conv1(x).relu())
        if self.down:
            x = functional.avg_pool2d(x, 2)
            x = functional.pad(x, (0, 0, 0, 0, 0, made.shape[1] - x.shape[1]))
            # Without padding, the convolution of an even-sized input misses one pixel at the end.
            made = functional.pad(made, (0, x.shape[3] - made.shape[3], 0, x.shape[2] - made.shape[2]))
        return torch.relu(made + x)


class FaceResNet(TwoPartNet):
    """Map normalised RGB images (n, 3, 150, 150) to embeddings (n, 128), or logits with `num_classes`."""

    def __init__(self, num_classes: int = 0) -> None:
        super().__init__()
        self.num_features, self.num_classes = WIDTH, num_classes
        self.conv32_down = nn.Conv2d(3, 32, 7, 2)
        into = 32
        for name in BLOCKS:
            out = int(name.removeprefix("conv").split("_")[0])
            self.add_module(name, _Block(into, out, down="down" in name))
            into = out
        self.fc = nn.Linear(into, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, num_classes) if num_classes else nn.Identity()

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the embeddings (n, 128)."""
        x = functional.max_pool2d(self.conv32_down(images).relu(), 3, 2)
        for name in BLOCKS:
            x = self.get_submodule(name)(x)
        embedding: Tensor = self.fc(x.mean((2, 3)))
        return embedding


@register_model
def face_resnet(pretrained: bool = False, num_classes: int = 0, in_chans: int = 3, **options: Any) -> nn.Module:
    """Build dlib's face embedding for normalised RGB images (n, 3, 150, 150); further `options` are ignored.

    Raise BenchError unless `in_chans` is 3, and for `pretrained`: no hub has the weights.
    """
    check_rgb("face_resnet", pretrained, in_chans)
    return FaceResNet(num_classes)
