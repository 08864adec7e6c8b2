"""Imports at first use, so that a module's names are available without its slow libraries."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


class LazyModule:
    """A module that is imported when an attribute is first read; submodules are attributes, imported or not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        module = importlib.import_module(self._name)
        if not hasattr(module, attribute):
            with suppress(ModuleNotFoundError):
                importlib.import_module(f"{self._name}.{attribute}")
        return getattr(module, attribute)


def lazy_modules(file: str) -> dict[str, LazyModule]:
    """Return the modules that the source in `file` imports under ``if TYPE_CHECKING``, by their names there."""
    found: dict[str, LazyModule] = {}
    for node in _typed_imports(file):
        parent = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        found |= {alias.asname or alias.name: LazyModule(parent + alias.name) for alias in node.names}
    return found


def lazy_names(module: str, file: str, names: list[str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a module that imports some of its `names` at first use.

    These are the names that its source in `file` imports from elsewhere under ``if TYPE_CHECKING``.
    """
    imports = [node for node in _typed_imports(file) if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names if alias.name in names}

    def get(name: str) -> Any:
        if (home := homes.get(name)) is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home), name)

    return get, lambda: list(names)


def _typed_imports(file: str) -> list[ast.Import | ast.ImportFrom]:
    blocks = [node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    return [node for block in blocks for node in block.body if isinstance(node, ast.Import | ast.ImportFrom)]
