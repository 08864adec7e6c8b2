"""Build students from timm by name, with seeded weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.core.seeds import seeded
from bench.models.build import build
from bench.models.registration import model_options

if TYPE_CHECKING:
    import torch

    from bench.core.types import Facts


def make_student(
    name: str, facts: Facts, generator: torch.Generator, **chosen: Any
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return the timm model `name` for data of `facts`, weights drawn from `generator`, and its timm options.

    `chosen` are further options of the model.

    Raises :class:`bench.core.errors.BenchError` if timm does not know the model or it cannot take such images.
    """
    channels, height, width = facts.shape
    size = height if height == width else (height, width)
    options = model_options(name, facts.classes, channels, size, **chosen)
    with seeded(generator):
        return build(name, facts.classes, channels, size, **chosen), options
