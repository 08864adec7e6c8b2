"""How this project's nets are registered with timm: like timm's own, they load weights where `pretrained` is asked for.

A folder that ``bench export`` wrote is then read by ``timm.create_model("local-dir:FOLDER", pretrained=True)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from timm.models import load_pretrained, register_model
from torch import nn

B = TypeVar("B", bound=Callable[..., nn.Module])


def register_own(build: B) -> B:
    """Register the entry point `build` with timm; asked for `pretrained`, it loads what ``pretrained_cfg`` names.

    Every tensor must fit. Raises what :func:`timm.models.load_pretrained` does: RuntimeError where the configuration
    names no weights, or others than the net's.
    """

    @functools.wraps(build)
    def make(pretrained: bool = False, pretrained_cfg: Any = None, **options: Any) -> nn.Module:
        net = build(pretrained=False, **options)
        if pretrained:
            given = pretrained_cfg if isinstance(pretrained_cfg, dict) else None
            if given is None:
                raise RuntimeError(
                    f"{build.__name__} has no published weights. A student that was exported is loaded by "
                    "timm.create_model('local-dir:FOLDER', pretrained=True)."
                )
            load_pretrained(net, given, num_classes=int(given.get("num_classes", 0)))
        return net

    return cast(B, register_model(make))
