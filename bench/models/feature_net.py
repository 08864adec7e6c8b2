"""Nets with timm's feature interface."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

Size = int | tuple[int, int]


def height_width(img_size: Size) -> tuple[int, int]:
    """Return height and width of `img_size` in pixels."""
    return (img_size, img_size) if isinstance(img_size, int) else (int(img_size[0]), int(img_size[1]))


class Evaluated(nn.Module):
    """A net that stays in evaluation mode: batch statistics would make images of a batch interact."""

    def train(self, mode: bool = True) -> Self:
        """Ignore `mode`: batch statistics stay fixed, and nothing is dropped out."""
        return super().train(False)


class TwoPartNet(nn.Module):
    """Base of classifiers in two parts, ``forward_features`` and ``forward_head``."""

    end: ClassVar[str] = "head"
    """Name of the last layer, or of another net in two parts that ends in it."""

    def forward_features(self, images: Tensor) -> Tensor:
        """Map images (n, channels, height, width) in [0, 1] to features (n, num_features)."""
        raise NotImplementedError

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits (n, num_classes) of `features`, or with `pre_logits` the input of the last layer."""
        end = self.get_submodule(self.end)
        if pre_logits and isinstance(end, TwoPartNet):
            return end.forward_head(end.forward_features(features), pre_logits=True)
        return features if pre_logits else end(features)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (n, channels, height, width) in [0, 1] to logits (n, num_classes)."""
        return self.forward_head(self.forward_features(images))

    def get_classifier(self) -> nn.Module:
        """Return the last layer, as timm's models do."""
        end = self.get_submodule(self.end)
        return end.get_classifier() if isinstance(end, TwoPartNet) else end


class FeatureNet(TwoPartNet):
    """A body that gives feature vectors, and a head after `before_head` (noise or dropout)."""

    def __init__(self, body: nn.Sequential, head: nn.Module, num_features: int, before_head: nn.Module | None) -> None:
        super().__init__()
        self.body = body
        self.before_head = before_head if before_head is not None else nn.Identity()
        self.head = head
        self.num_features = self.head_hidden_size = num_features
        self.num_classes = int(getattr(head, "out_features", 0))

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the output of the body."""
        features: Tensor = self.body(images)
        return features

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits of `features`, or `features` themselves with `pre_logits`."""
        return features if pre_logits else self.head(self.before_head(features))


class FixedMap(Evaluated, abc.ABC):
    """A public map from each image to its features, which are computed once and shared by all runs."""

    num_features: int
    dtype: torch.dtype = torch.float32
    """Features are stored in this type."""
    carried = False
    """Whether a released student includes the map because its options cannot rebuild it."""

    @abc.abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return everything that affects features, except the images, as JSON values."""


class OnFixedMap(TwoPartNet):
    """A head on a fixed map. Only the head has parameters; the state dict includes the map if it is carried."""

    def __init__(self, fixed: FixedMap, head: nn.Module, classes: int) -> None:
        super().__init__()
        self.head = head
        self.num_classes = classes
        if fixed.carried:
            self.carried = fixed
        # A tuple hides the map from torch, which would count its weights and buffers as the student's.
        self._fixed = (fixed,)

    @property
    def fixed(self) -> FixedMap:
        """Return the map."""
        return self._fixed[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OnFixedMap:
        if not self.fixed.carried:
            self.fixed._apply(fn)  # type: ignore[no-untyped-call]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward_features(self, images: Tensor) -> Tensor:
        """Map images in [0, 1] to the map's features."""
        features: Tensor = self.fixed(images)
        return features
