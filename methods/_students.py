"""What every method shares about its student: making one from timm by name, with a seeded start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from bench.interface import Context, Facts


def student_depends(config: Any, context: Context) -> dict[str, Any]:
    """Return what the checkpoint of a stage of one cell depends on: no other cell may go on with its noise."""
    from bench.config import as_dict

    return {"cell": context.cell, "kind": type(config).__name__, "config": as_dict(config)}


def make_student(name: str, facts: Facts, generator: torch.Generator) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return the timm model `name` for data of `facts`, and the options with which timm makes it again.

    The start of its weights is drawn from `generator`. Raises :class:`bench.errors.BenchError` where timm does not
    know the model or it cannot take such images.
    """
    from bench.models.classifiers import build, model_options
    from bench.training import seeded

    channels, height, width = facts.shape
    size = height if height == width else (height, width)
    options = model_options(name, facts.classes, channels, size)
    with seeded(generator):
        return build(name, facts.classes, channels, size), options
