"""Settings as a user gives them, on facts like MNIST's."""

from __future__ import annotations

from typing import Any

from bench.core.config import Preset, build_config
from bench.interface import Facts
from bench.interface.registry import METHODS

FACTS = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)


def configured(name: str, changes: dict[str, Any]) -> Any:
    """Return the paper's config of the method `name` with `changes`; raise as the command line does."""
    return build_config(METHODS.get(name), Preset.PAPER, FACTS, changes)[0]
