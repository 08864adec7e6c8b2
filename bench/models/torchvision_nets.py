"""Three of torchvision's nets that timm lacks, registered with timm: DPSD compares them as teachers (figure 4).

Parameters keep torchvision's names, so its weights load as ``teacher_weights=file:PATH``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torchvision import models

from bench.core.errors import BenchError
from bench.models.feature_net import Size, TwoPartNet, height_width
from bench.models.registration import register_own


class _AlexNet(TwoPartNet):
    end = "classifier.6"

    def __init__(self, classes: int) -> None:
        super().__init__()
        net = models.AlexNet(classes)
        self.features, self.avgpool, self.classifier = net.features, net.avgpool, net.classifier

    def forward_features(self, images: Tensor) -> Tensor:
        maps: Tensor = self.features(images)
        return maps

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        return super().forward_head(self.classifier[:-1](self.avgpool(features).flatten(1)), pre_logits)


class _Chain(TwoPartNet):
    """The children of `net` in a row, then global pooling, dropout and the linear layer ``fc``."""

    end = "fc"

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.layers: list[str] = []
        self.dropout: nn.Module = nn.Identity()
        for name, layer in net.named_children():
            self.add_module(name, layer)
            if name not in ("avgpool", "dropout", "fc"):
                self.layers.append(name)

    def forward_features(self, images: Tensor) -> Tensor:
        for name in self.layers:
            images = self.get_submodule(name)(images)
        return images

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        hidden = features.mean((2, 3))
        return hidden if pre_logits else self.get_classifier()(self.dropout(hidden))


@register_own
def torchvision_alexnet(num_classes: int = 1000, in_chans: int = 3, img_size: Size = 224, **_: Any) -> nn.Module:
    """Build AlexNet (Krizhevsky, arXiv:1404.5997) for RGB images of 63 pixels or more; else raise BenchError."""
    _check("torchvision_alexnet", in_chans, img_size, 63)
    return _AlexNet(num_classes)


@register_own
def torchvision_shufflenet(num_classes: int = 1000, in_chans: int = 3, img_size: Size = 224, **_: Any) -> nn.Module:
    """Build ShuffleNet v2 of width 1 (Ma et al., arXiv:1807.11164) for RGB images; else raise BenchError."""
    _check("torchvision_shufflenet", in_chans, img_size, 1)
    return _Chain(models.ShuffleNetV2([4, 8, 4], [24, 116, 232, 464, 1024], num_classes))


@register_own
def torchvision_googlenet(num_classes: int = 1000, in_chans: int = 3, img_size: Size = 224, **_: Any) -> nn.Module:
    """Build GoogLeNet (arXiv:1409.4842) without auxiliary classifiers for RGB images; else raise BenchError."""
    _check("torchvision_googlenet", in_chans, img_size, 15)
    return _Chain(models.GoogLeNet(num_classes, aux_logits=False, init_weights=False))


def _check(name: str, in_chans: int, img_size: Size, least: int) -> None:
    if in_chans != 3 or min(height_width(img_size)) < least:
        shape = f"{in_chans} x {' x '.join(map(str, height_width(img_size)))}"
        raise BenchError(f"{name} takes RGB images of {least} x {least} pixels or more, not {shape}.")
