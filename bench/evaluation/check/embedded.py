"""Data that a method carries in its source: it may be of the private set, and is public in any case."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.interface.method import Method
from bench.interface.plugin_source import sources_of

LONGEST = 1_000
"""Characters of a text, or numbers of a list, that a method without public data may hold."""


def embedded_data(method: type[Method]) -> str:
    """Return where the source of `method` holds a long text or many numbers, empty if nowhere; no docstring counts."""
    files = sources_of(method) or _module(method)
    for file, data in files.items():
        if file.suffix != ".py":
            continue
        tree = ast.parse(data)
        said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for line, size in _literals(tree, said):
            if size > LONGEST:
                return f"line {line} of {file.name} holds {size} characters or numbers"
    return ""


def constants_of(method: type[Method]) -> str:
    """Return how much data the source of a plug-in holds in constants, docstrings apart; empty for our own methods."""
    files = sources_of(method)
    characters = numbers = 0
    for file, data in files.items():
        if file.suffix == ".py":
            tree = ast.parse(data)
            said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            held = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in said]
            characters += sum(len(one) for one in held if isinstance(one, str | bytes))
            numbers += sum(isinstance(one, int | float | complex) for one in held)
    return f"its source holds {characters} characters and {numbers} numbers in constants" if files else ""


def _module(method: type[Method]) -> dict[Path, bytes]:
    file = getattr(sys.modules.get(method.__module__), "__file__", None)
    return {} if file is None else {Path(file): Path(file).read_bytes()}


def _literals(tree: ast.Module, said: set[int]) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in said:
            yield node.lineno, len(node.value)
        elif isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
            yield node.lineno, sum(isinstance(part, ast.Constant) for part in ast.walk(node))
