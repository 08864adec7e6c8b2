"""Every public function of a class has a docstring, its own or inherited, where ruff's D102 is off."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import bench.attacks
import bench.methods
import bench.privacy

MODULES = [
    info.name
    for package in (bench.attacks, bench.methods, bench.privacy)
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", [name for name in MODULES if "._" not in name])
def test_public_functions_of_classes_have_docstrings(name: str) -> None:
    for kind in vars(importlib.import_module(name)).values():
        if inspect.isclass(kind) and kind.__module__ == name and not kind.__name__.startswith("_"):
            for member in (getattr(kind, member) for member in vars(kind) if not member.startswith("_")):
                assert not inspect.isroutine(member) or inspect.getdoc(member), member
