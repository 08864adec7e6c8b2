"""Functions and classes of this package, of torch and of NumPy that a method replaces while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

WATCHED = ("bench", "torch.nn", "torch.autograd", "torch.optim", "numpy.random")
ALONE = ("torch", "torch._tensor", "torch.random", "numpy")  # without what is below
AT_CALLS = ("bench.privacy",)
"""What is compared at each call of the ledger; the rest is after a run."""


class Originals:
    """The functions and classes of modules as they were when this was made."""

    def __init__(self) -> None:
        # Held, so that no other object takes the identity of one that is gone.
        self._before = {module: list(_code_of(module)) for module in _modules(WATCHED)}

    def replaced(self, packages: tuple[str, ...] = WATCHED) -> str:
        """Return the name of the first function or class that is another now, empty if none is."""
        for module in _modules(packages):
            for owner, name, value in self._before.get(module, ()):  # none for what was imported since
                if owner.get(name) is not value:
                    return f"{module}.{name}"
        return ""


def _modules(packages: tuple[str, ...]) -> list[str]:
    below = tuple(f"{package}." for package in packages)
    known = (*packages, *(ALONE if packages is WATCHED else ()))
    return [name for name in list(sys.modules) if name in known or name.startswith(below)]


def _code_of(module: str) -> Iterator[tuple[Mapping[str, object], str, object]]:
    """Yield the functions and classes that `module` holds, and what its own classes hold: owner, name and value."""
    held = vars(sys.modules[module])
    for name, value in list(held.items()):
        if not _is_code(value):
            continue
        yield held, name, value
        if issubclass(type(value), type) and value.__module__ == module:
            yield from ((vars(value), part, one) for part, one in list(vars(value).items()) if _is_code(one))


def _is_code(value: object) -> bool:
    kind = type(value)
    return hasattr(kind, "__call__") or hasattr(kind, "__get__")  # noqa: B004 (callable() asks the object itself)
