"""Makes torchvision with a CUDA extension importable with a CPU-only torch.

The extension does not load there, and the import fails on undeclared operators (``torchvision::nms``). Declared schemas
suffice for models, transforms, data sets and timm; other operators raise when called. It imports neither library.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.core.lazy_libraries import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_kept: list[Any] = []  # libraries; a library's schemas disappear when it is garbage-collected


class _Finder:
    """Detects the first import of torchvision; never finds a module itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Declare the operators before torchvision is imported; return None."""
        if name == "torchvision" and "torchvision" not in sys.modules:
            # Removed first: the calls below look up torchvision and would recurse.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            declare_operators()
        return None


def allow_cpu_torchvision() -> None:
    """Make the first import of torchvision work with a CPU-only torch; idempotent and cheap."""
    if "torchvision" in sys.modules or _kept or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())


def declare_operators() -> None:
    """Declare torchvision's operators unless torch is missing or the extension loads."""
    if _kept or importlib.util.find_spec("torch") is None or _extension_loads():
        return
    new_library: Any = torch.library.Library
    library = new_library("torchvision", "DEF")
    for schema in SCHEMAS:
        # Another package may have declared them already.
        if not hasattr(torch.ops.torchvision, schema.split("(", 1)[0]):
            library.define(schema)
    _kept.append(library)


def _extension_loads() -> bool:
    """Load the compiled extension of torchvision if possible; return whether it loaded."""
    operators: Any = torch.ops
    found = importlib.util.find_spec("torchvision")
    for folder in (found.submodule_search_locations or []) if found else []:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = Path(folder) / f"_C{suffix}"
            if path.exists():
                try:
                    operators.load_library(str(path))
                except (OSError, RuntimeError):
                    return False
                return True
    return False
