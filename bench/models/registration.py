"""Registration of this project's nets with timm. As timm's own nets do, they load weights with `pretrained`.

``timm.create_model("local-dir:FOLDER", pretrained=True)`` reads a folder written by ``bench export``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from timm.models import create_model, is_model, list_models, load_pretrained, model_entrypoint, register_model
from torch import nn

from bench.core.errors import BenchError, UnknownNameError
from bench.models.feature_net import Size, height_width

OWN_NETS = (
    "bench.models.classifiers",
    "bench.models.gaussian_nb",
    "bench.models.keras_resnet",
    "bench.models.text_nets",
    "bench.models.frozen_backbone",
)
"""The modules that register nets."""

B = TypeVar("B", bound=Callable[..., nn.Module])


def register_all() -> None:
    """Register every net of this project with timm, by name."""
    for name in OWN_NETS:
        importlib.import_module(name)


def register_own(build: B) -> B:
    """Register the entry point `build` with timm; with `pretrained` it loads the weights of ``pretrained_cfg``.

    Raises RuntimeError, as :func:`timm.models.load_pretrained` does, where the configuration names no weights or a
    tensor does not fit.
    """

    @functools.wraps(build)
    def make(pretrained: bool = False, pretrained_cfg: Any = None, **options: Any) -> nn.Module:
        net = build(**options)
        if pretrained:
            if not isinstance(pretrained_cfg, dict):
                raise RuntimeError(
                    f"{build.__name__} has no published weights. A student that was exported is loaded by "
                    "timm.create_model('local-dir:FOLDER', pretrained=True)."
                )
            load_pretrained(net, pretrained_cfg, num_classes=int(pretrained_cfg.get("num_classes", 0)))
        return net

    return cast(B, register_model(make))


OWN_MODULES = "bench.models."
"""Where this project's own entry points lie: they take `img_size`."""


def model_options(name: str, num_classes: int, in_chans: int, img_size: Size, **options: Any) -> dict[str, Any]:
    """Return the keyword arguments, JSON values, with which ``timm.create_model(name, ...)`` gives the same net.

    The model is made once on the meta device to find whether it takes `img_size`. Raises as
    :func:`bench.models.build.build` does.
    """
    register_all()
    if not is_model(name):
        raise UnknownNameError("model", name, list_models(), "Any timm model is accepted.")
    height, width = height_width(img_size)
    base: dict[str, Any] = {"num_classes": num_classes, "in_chans": in_chans, **options}
    sized = {**base, "img_size": height if height == width else [height, width]}
    if model_entrypoint(name).__module__.startswith(OWN_MODULES):
        return sized
    for arguments in (sized, base):
        try:
            with torch.device("meta"):
                create_model(name, **arguments)
        except TypeError as error:
            if "img_size" in arguments and "img_size" in str(error):
                continue
            raise BenchError(f"model {name!r} cannot be built with {arguments}: {error}") from error
        except (AssertionError, ValueError, RuntimeError) as error:
            raise BenchError(f"model {name!r} cannot be built with {arguments}: {error}") from error
        return arguments
    raise AssertionError("unreachable: the second try has no img_size")
