"""The one exception base of the project, and the helper that words an unknown name.

A mistake of the user is a :class:`BenchError`: the command line prints its message and no traceback. Anything else is
a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BenchError(Exception):
    """A mistake that the user can mend: the message says what is wrong, what is accepted and what to do."""


class UnknownNameError(BenchError):
    """A name that no registry, option or file knows."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        """Word the error for `name`, nearest of the `known` names first."""
        self.kind, self.name = kind, name
        names = sorted(known)
        near = nearest_names(name, names)
        rest = [n for n in names if n not in near]
        listed = [*near, *rest]
        shown = ", ".join(listed[:12]) + (f", ... ({len(listed)} in all)" if len(listed) > 12 else "")
        guess = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind} {name!r}.{guess} Accepted: {shown or 'none'}.{' ' + hint if hint else ''}")


def nearest_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return at most `most` of the `known` names that are spelt like `name`, the nearest first."""
    return difflib.get_close_matches(name, list(known), n=most, cutoff=0.5)
