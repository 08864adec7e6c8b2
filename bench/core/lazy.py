"""Imports at first use, so that a module's names are available without its slow libraries."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


class LazyModule:
    """A module that is imported when an attribute is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def lazy_names(module: str, file: str, names: list[str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a module that imports some of its `names` at first use.

    These are the names that its source in `file` imports from elsewhere under ``if TYPE_CHECKING``.
    """
    blocks = [node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names if alias.name in names}

    def get(name: str) -> Any:
        if (home := homes.get(name)) is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home), name)

    return get, lambda: list(names)
