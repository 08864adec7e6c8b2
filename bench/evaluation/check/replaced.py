"""Detects functions and classes of this package, torch and NumPy that a method replaces while it runs."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

WATCHED = ("bench", "torch.nn", "torch.autograd", "torch.optim", "numpy.random")
ALONE = ("torch", "torch._tensor", "torch.random", "numpy")  # without submodules
AT_CALLS = ("bench.privacy",)
"""Compared at each call of the ledger; the rest is compared after a run."""
CODE = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, type, property, classmethod, staticmethod, functools.partial,
    type(functools.cache(len)),
)  # fmt: skip


class Originals:
    """The functions and classes of modules at the time of creation."""

    def __init__(self) -> None:
        for kind in vars(torch.optim).values():  # torch itself replaces these when an optimiser is first created
            if isinstance(kind, type) and issubclass(kind, Optimizer) and not hasattr(kind.step, "hooked"):
                hooked = Optimizer.profile_hook_step(kind.step)
                setattr(hooked, "hooked", True)  # noqa: B010 (functions have no such attribute for mypy)
                setattr(kind, "step", hooked)  # noqa: B010
        # Keep references, so that no new object reuses a deleted one's identity.
        self._before = {module: list(_code_of(module)) for module in _modules(WATCHED)}

    def replaced(self, packages: tuple[str, ...] = WATCHED) -> str:
        """Return the name of the first function or class that was replaced, or ""."""
        for module in _modules(packages):
            for owner, key, name, value in self._before.get(module, ()):  # no entry for modules imported since
                if owner.get(key) is not value:
                    return f"{module}.{name}"
        return ""


def _modules(packages: tuple[str, ...]) -> list[str]:
    below = tuple(f"{package}." for package in packages)
    known = (*packages, *(ALONE if packages is WATCHED else ()))
    return [name for name in list(sys.modules) if name in known or name.startswith(below)]


def _code_of(module: str) -> Iterator[tuple[Mapping[Any, object], Any, str, object]]:
    """Yield the functions and classes in `module`, its own classes and its tables: owner, key, name and value."""
    held = vars(sys.modules[module])
    for name, value in list(held.items()):
        if type(value) is dict:
            yield from ((value, key, f"{name}[{key!r}]", one) for key, one in list(value.items()) if _is_code(one))
        if not _is_code(value):
            continue
        yield held, name, name, value
        if issubclass(type(value), type) and value.__module__ == module:
            yield from (
                (vars(value), part, f"{name}.{part}", one) for part, one in list(vars(value).items()) if _is_code(one)
            )


def _is_code(value: object) -> bool:
    return issubclass(type(value), CODE)  # isinstance() would consult the object itself
