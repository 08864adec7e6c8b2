"""What the source of a method says of it. Read by `ast`: no method is imported, so no training code is."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

METHODS = Path(__file__).resolve().parent.parent.parent / "methods"


@dataclass(frozen=True, slots=True)
class MethodSource:
    """A registered method in this repository. Texts are as written, empty where the source has none."""

    name: str
    file: str
    """Relative to the repository."""
    text: str
    """The docstring of the module."""
    about: str
    """The docstring of the class."""
    citation: str
    unit: str
    adjacency: str


def method_sources(folder: Path = METHODS) -> dict[str, MethodSource]:
    """Return the methods that the files of `folder` register, by name; a file that is no Python is passed over."""
    found: dict[str, MethodSource] = {}
    for path in sorted(folder.glob("*.py")):
        try:
            module = ast.parse(path.read_text(encoding="utf-8"))
            constants = _texts(module.body, _imported(module, folder))
        except (SyntaxError, ValueError):
            continue
        for node in module.body:
            name = _registered(node) if isinstance(node, ast.ClassDef) else None
            if name is not None and isinstance(node, ast.ClassDef):
                values = _texts(node.body, constants)
                found[name] = MethodSource(
                    name=name,
                    file=f"{folder.name}/{path.name}",
                    text=ast.get_docstring(module) or "",
                    about=ast.get_docstring(node) or "",
                    citation=values.get("citation", ""),
                    unit=values.get("unit", ""),
                    adjacency=values.get("adjacency", ""),
                )
    return dict(sorted(found.items()))


def _imported(module: ast.Module, folder: Path) -> dict[str, str]:
    """Return the texts that a module takes from other files of its folder."""
    found: dict[str, str] = {}
    for line in module.body:
        if isinstance(line, ast.ImportFrom) and line.module and line.module.startswith(f"{folder.name}."):
            path = folder / f"{line.module.rsplit('.', 1)[-1]}.py"
            if path.is_file():
                texts = _texts(ast.parse(path.read_text(encoding="utf-8")).body, {})
                found.update({a.asname or a.name: texts[a.name] for a in line.names if a.name in texts})
    return found


def _registered(node: ast.ClassDef) -> str | None:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "register_method":
            first = decorator.args[0] if decorator.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                return first.value
    return None


def _texts(body: Sequence[ast.stmt], constants: Mapping[str, str]) -> dict[str, str]:
    """Return `constants` and the names in `body` that are given a text, one of these, or a member of an enum.

    ``PrivacyUnit.RECORD`` becomes "record".
    """
    found: dict[str, str] = {}
    for line in body:
        target, value = None, None
        if isinstance(line, ast.Assign) and len(line.targets) == 1:
            target, value = line.targets[0], line.value
        elif isinstance(line, ast.AnnAssign):
            target, value = line.target, line.value
        if not isinstance(target, ast.Name):
            continue
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[target.id] = value.value
        elif isinstance(value, ast.Name) and value.id in constants:
            found[target.id] = constants[value.id]
        elif isinstance(value, ast.Attribute):
            found[target.id] = value.attr.lower().replace("_", "-")
    return {**constants, **found}
