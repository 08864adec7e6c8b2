"""Register this project's nets with timm; with `pretrained` they load a folder written by ``bench export``."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import nn

from bench.core.errors import BenchError, UnknownNameError
from bench.core.lazy_libraries import timm
from bench.models.feature_net import Size, height_width

OWN_MODULES = "bench.models."
"""Prefix of this project's entry points, which take `img_size`."""
_FILES = (
    "classifiers", "face_resnet", "gaussian_nb", "keras_resnet", "noise_wrn", "public_layers", "text_nets",
    "torchvision_nets", "frozen_backbone", "scattering",
)  # fmt: skip
OWN_NETS = tuple(OWN_MODULES + name for name in _FILES)

B = TypeVar("B", bound=Callable[..., nn.Module])


def register_all() -> None:
    """Register every net of this project with timm, by name."""
    for name in OWN_NETS:
        importlib.import_module(name)


def register_own(build: B) -> B:
    """Register `build` with timm; `pretrained` raises RuntimeError unless ``pretrained_cfg`` names weights that fit."""

    @functools.wraps(build)
    def make(pretrained: bool = False, pretrained_cfg: Any = None, **options: Any) -> nn.Module:
        net = build(**options)
        if pretrained:
            if not isinstance(pretrained_cfg, dict):
                raise RuntimeError(
                    f"{build.__name__} has no published weights. Load an exported student by "
                    "timm.create_model('local-dir:FOLDER', pretrained=True)."
                )
            timm.models.load_pretrained(net, pretrained_cfg, num_classes=int(pretrained_cfg.get("num_classes", 0)))
            cast(Any, net).pretrained_cfg = pretrained_cfg  # where timm.data.resolve_data_config looks
        return net

    return cast(B, timm.models.register_model(make))


def rgb_cfgs(name: str, side: int, *, num_classes: int = 0, crop_pct: float = 1.0, **more: Any) -> Any:
    """Return timm's `default_cfgs` of a net called `name` for RGB images of `side` pixels."""
    size = {"input_size": (3, side, side), "interpolation": "bilinear"}
    return timm.models.generate_default_cfgs({name: {**size, "num_classes": num_classes, "crop_pct": crop_pct, **more}})


def check_rgb(name: str, pretrained: bool, in_chans: int) -> None:
    """Raise BenchError unless `in_chans` is 3, and for `pretrained`: no hub has the weights."""
    if in_chans != 3:
        raise BenchError(f"{name} takes images of 3 channels, not of {in_chans}: repeat a grey channel.")
    if pretrained:
        raise BenchError(f"{name} is on no hub. Get its weights: python -m bench weights get {name}")


def check_model(name: str) -> None:
    """Raise :class:`UnknownNameError` if neither timm nor this project has a net called `name`."""
    register_all()
    if not timm.is_model(name):
        hint = "Any timm model is accepted; `bench ls models` lists ours."
        raise UnknownNameError("model", name, timm.list_models(), hint)


def model_options(name: str, num_classes: int, in_chans: int, img_size: Size, **options: Any) -> dict[str, Any]:
    """Return the JSON keyword arguments of ``timm.create_model(name, ...)`` for this net; raise as ``build`` does."""
    check_model(name)
    height, width = height_width(img_size)
    base: dict[str, Any] = {"num_classes": num_classes, "in_chans": in_chans, **options}
    sized = {**base, "img_size": height if height == width else [height, width]}
    if timm.models.model_entrypoint(name).__module__.startswith(OWN_MODULES):
        return sized
    for arguments in (sized, base):
        try:
            with torch.device("meta"):
                timm.create_model(name, **arguments)
        except (TypeError, AssertionError, ValueError, RuntimeError) as error:
            if isinstance(error, TypeError) and "img_size" in arguments and "img_size" in str(error):
                continue
            raise BenchError(f"model {name!r} cannot be built with {arguments}: {error}") from error
        return arguments
    raise AssertionError("unreachable: the second try has no img_size")
