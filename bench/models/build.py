"""Build timm's and this project's nets by name."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bench.core.errors import BenchError
from bench.core.lazy_libraries import timm
from bench.models.feature_net import Size
from bench.models.registration import model_options


def build(name: str, num_classes: int, in_chans: int, img_size: Size, **options: Any) -> nn.Module:
    """Build the timm model `name` for images of (`in_chans`, `img_size`) with `num_classes` outputs.

    Initialised from torch's global RNG: seed it first. Raise UnknownNameError, or BenchError if the net does not fit.
    """
    return timm.create_model(name, **model_options(name, num_classes, in_chans, img_size, **options))


def features_and_logits(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last hidden layer (n, features) and logits (n, classes); raise BenchError without timm's interface.

    That of a single linear layer is its input.
    """
    if isinstance(model, nn.Linear):
        return images, model(images)
    if not (hasattr(model, "forward_features") and hasattr(model, "forward_head")):
        raise BenchError(f"{type(model).__name__} has no forward_features and forward_head: use a timm model.")
    timm_model: Any = model
    hidden = timm_model.forward_features(images)
    features = timm_model.forward_head(hidden, pre_logits=True)
    return features.flatten(1), timm_model.forward_head(hidden)
