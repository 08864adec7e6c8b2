"""Lets torchvision be imported beside a torch that its compiled extension was not built for.

The usual wheel of torchvision carries an extension linked against CUDA. Beside a CPU-only torch it cannot be loaded;
torchvision then goes on without it, but dies when it describes operators (``torchvision::nms``) that only the
extension would have declared. Declaring their schemas first is enough for all that is used here: models, transforms,
data sets, timm. Operators that really need the extension (``ops.nms``, ``io.read_image``) still fail when called, and
say so.

:func:`allow_cpu_torchvision` only puts a finder on ``sys.meta_path``: neither torch nor torchvision is imported before
somebody imports torchvision.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import importlib.machinery
    from collections.abc import Sequence
    from types import ModuleType

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_kept: list[Any] = []
"""Libraries whose schemas vanish with them, so they must live as long as the process."""


class _Finder:
    """Finds nothing: it only notices that torchvision is about to be imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Declare the operators when torchvision is looked for, and leave the finding to the others."""
        if name == "torchvision" and "torchvision" not in sys.modules:
            # Off the path first: what follows looks torchvision up itself and must not come back here.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            declare_operators()
        return None


def allow_cpu_torchvision() -> None:
    """Arrange that the first import of torchvision works beside a CPU-only torch; cheap, may be called often."""
    if "torchvision" in sys.modules or _kept or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())


install = allow_cpu_torchvision


def declare_operators() -> bool:
    """Declare torchvision's operators unless its extension loads; return whether they were declared here.

    Does nothing where torch or torchvision is not installed: the import that follows then says so.
    """
    import importlib.util

    if _kept or importlib.util.find_spec("torch") is None:
        return False
    import torch

    if _extension_loads():
        return False
    registry: Any = torch.library
    library = registry.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        # Another package may have had the same idea.
        if not hasattr(torch.ops.torchvision, schema.split("(", 1)[0]):
            library.define(schema)
    _kept.append(library)
    return True


def _extension_loads() -> bool:
    """Return whether the compiled extension of the installed torchvision can be loaded; loads it if so."""
    import importlib.machinery
    import importlib.util
    from pathlib import Path

    import torch

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
