"""Identification of a plug-in by its distribution and a hash of its source."""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, entry_points
from pathlib import Path

from bench.core.errors import BenchError
from bench.core.rows import Plugin
from bench.interface.registry import GROUPS, PLUGIN

_OWN = "bench"


@functools.cache
def plugin_of(member: type) -> Plugin | None:
    """Return the plug-in that defines `member`, None for a class of this project.

    A fork's file in ``methods/`` is the project's own: its ``version`` identifies it, as for every method there.

    The hash covers the path and content of the module's file, of the ``__init__.py`` of its packages, and of all
    modules that these import, directly or not and inside functions too, from the same distribution; for a single .py
    file or an editable install, from the same folder. Not covered: other distributions, modules imported by a computed
    name, and data files. Raises :class:`BenchError` if the module has no file or a file cannot be parsed.
    """
    if _own(member):
        return None
    distribution = _distribution(member.__module__.partition(".")[0])
    root, sources = _found(member)
    digest = hashlib.sha256()
    for source, data in sorted(sources.items()):
        digest.update(f"{source.relative_to(root).as_posix()} {hashlib.sha256(data).hexdigest()}\n".encode())
    name, version = ("", "") if distribution is None else (distribution.name, distribution.version)
    return Plugin(distribution=name, version=version, source_sha256=digest.hexdigest())


def sources_of(member: type) -> dict[Path, bytes]:
    """Return the files that :func:`plugin_of` covers, with their content; empty for a class of this project."""
    return {} if _own(member) else _found(member)[1]


def _own(member: type) -> bool:
    return member.__module__.partition(".")[0] == _OWN


def _found(member: type) -> tuple[Path, dict[Path, bytes]]:
    name = member.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        raise BenchError(f"the source of {name}.{member.__qualname__} cannot be found. Define it in a Python file.")
    path = Path(file).resolve()
    parts = (path.stem,) if name.startswith(PLUGIN) else tuple(name.split("."))
    root = path.parents[len(parts) - (path.name != "__init__.py")]
    tops = _tops(root, parts[0], _distribution(parts[0]))
    return root, _sources(root, ".".join(parts), path, tops)


def _distribution(top: str) -> Distribution | None:
    """Return the distribution whose entry points name the top-level module `top`."""
    found = (entry for group in GROUPS for entry in entry_points(group=group))
    return next((entry.dist for entry in found if entry.value.partition(":")[0].split(".")[0] == top), None)


def _tops(root: Path, top: str, distribution: Distribution | None) -> frozenset[str] | None:
    """Return the top-level modules of the plug-in in `root`; None: all, since no other distribution is in it."""
    if next(root.glob("*.dist-info"), None) is None:
        return None
    files = () if distribution is None else distribution.files or ()
    return frozenset({top, *(file.parts[0].removesuffix(".py") for file in files)})


def _sources(root: Path, module: str, path: Path, tops: frozenset[str] | None) -> dict[Path, bytes]:
    """Return the files, with content, of `module` in `path` and of everything it imports below `root`."""
    found: dict[Path, bytes] = {}
    todo = [(module, path), *_files(root, module)]
    while todo:
        name, file = todo.pop()
        if file in found:
            continue
        found[file] = file.read_bytes()
        if file.suffix != ".py":
            continue
        try:
            tree = ast.parse(found[file])
        except (SyntaxError, ValueError) as error:
            raise BenchError(f"{file}, which a plug-in imports, is not valid Python: {error}. Fix it.") from error
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for imported in _imports(tree, package):
            top = imported.partition(".")[0]
            if top != _OWN and (tops is None or top in tops):
                todo += _files(root, imported)
    return found


def _files(root: Path, module: str) -> Iterator[tuple[str, Path]]:
    """Yield name and file of `module` and of its packages below `root`, those that exist."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:count])
        for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if file.is_file():
                yield ".".join(parts[:count]), file


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the absolute names of the modules that `tree` may import; a name imported from one may be another."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            start = ".".join(filter(None, [*base, node.module]))
            yield from (f"{start}.{alias.name}" if start else alias.name for alias in node.names)
