"""Detects functions and classes of this package, torch and NumPy that a method replaces while it runs."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.optim import Optimizer

WATCHED = ("bench", "torch.nn", "torch.autograd", "torch.optim", "torch.func", "numpy.random", "opacus")
ALONE = ("torch", "torch._tensor", "torch.random", "numpy")  # without submodules
AT_CALLS = ("bench.privacy", "opacus")
"""Compared at each call of the ledger; the rest is compared after a run."""
CODE = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, type, property, classmethod, staticmethod, functools.partial,
    type(functools.cache(len)),
)  # fmt: skip


class Originals:
    """The functions and classes of modules at the time of creation."""

    def __init__(self) -> None:
        for kind in _below(Optimizer):  # torch replaces `step` when an optimiser of a class is first created
            if f"{kind.__module__}.".startswith(("bench.", "torch.optim.")) and not hasattr(kind.step, "hooked"):
                hooked = Optimizer.profile_hook_step(kind.step)
                setattr(hooked, "hooked", True)  # noqa: B010 (functions have no such attribute for mypy)
                setattr(kind, "step", hooked)  # noqa: B010
        # Keep references, so that no new object reuses a deleted one's identity.
        self._before = {module: list(_tables_of(module)) for module in _modules(list(sys.modules), WATCHED)}
        self._at_calls = _modules(self._before, AT_CALLS)

    def replaced(self, *, at_call: bool = False) -> str:
        """Return the name of the first function or class that was replaced, or ""; `at_call` compares fewer of them."""
        for module in self._at_calls if at_call else self._before:
            for owner, name, held in self._before[module]:
                for key, value in held.items():
                    if owner.get(key) is not value:
                        return f"{module}.{name.format(key)}"
        return ""


def _below(kind: type[Optimizer]) -> Iterator[type[Optimizer]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


def _modules(names: Iterable[str], packages: tuple[str, ...]) -> list[str]:
    below = tuple(f"{package}." for package in packages)
    known = (*packages, *(ALONE if packages is WATCHED else ()))
    return [name for name in names if name in known or name.startswith(below)]


def _tables_of(module: str) -> Iterator[tuple[Mapping[Any, object], str, dict[Any, object]]]:
    """Yield `module`, its own classes and its tables: each with a pattern of names, and the functions and classes."""
    held = vars(sys.modules[module])
    yield held, "{}", _code_in(held)
    for name, value in list(held.items()):
        if type(value) is dict:
            yield value, f"{name}[{{!r}}]", _code_in(value)
        elif issubclass(type(value), type) and value.__module__ == module:
            yield vars(value), f"{name}.{{}}", _code_in(vars(value))
            for key, table in list(vars(value).items()):
                if type(table) is dict:
                    yield table, f"{name}.{key}[{{!r}}]", _code_in(table)


def _code_in(held: Mapping[Any, object]) -> dict[Any, object]:
    # isinstance() would consult the object itself.
    return {key: value for key, value in list(held.items()) if issubclass(type(value), CODE)}
