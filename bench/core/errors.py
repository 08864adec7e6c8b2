"""User errors. The command line prints a :class:`BenchError` without a traceback; any other exception is a bug."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class BenchError(Exception):
    """A user error whose message states the problem, the accepted values and the fix."""

    told = ""
    """The part of the message that reveals nothing about private records; records on private data store only this."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error by its message, whatever arguments its class takes."""
        return BaseException.__new__, (type(self), *self.args), vars(self)


@contextmanager
def telling(words: str = "") -> Iterator[None]:
    """Mark the public part of a :class:`BenchError` raised inside the block: `words`, by default the whole message."""
    try:
        yield
    except BenchError as error:
        error.told = words or str(error)
        raise


@contextmanager
def no_exit(who: str) -> Iterator[None]:
    """Convert `sys.exit` inside the block, which runs plug-in code, to a :class:`BenchError` that names the caller."""
    try:
        yield
    except SystemExit as error:
        raise BenchError(
            f"{who} calls sys.exit({'' if error.code is None else repr(error.code)}), which would end the whole "
            "program. Raise an exception instead."
        ) from error


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return where the first problem of a pydantic `error` is, and what is wrong there, in words."""
    first = error.errors()[0]
    said = first["msg"].removeprefix("Value error, ").partition(", unable to parse")[0]
    return ".".join(map(str, first["loc"])), said.replace("Input should be", "it must be")


class UnknownNameError(BenchError):
    """An unknown registry member, option or file."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "", meant: str = "") -> None:
        self.kind, self.name = kind, name
        names = sorted(known)
        near = [meant] if meant in names else nearest_names(name, names)
        rest = [n for n in names if n not in near]
        # The alphabetically first names of a long list, such as timm's models, do not help.
        listed = near if len(names) > 100 else [*near, *rest][:12]
        shown = ", ".join(listed) + (f", ... ({len(names):,} in all)" if len(names) > len(listed) else "")
        shown = shown if listed or not names else f"one of {len(names):,} names, none of them similar"
        guess = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind} {name!r}.{guess} Accepted: {shown or 'none'}.{' ' + hint if hint else ''}")


def nearest_names(name: str, known: Iterable[str], most: int = 3, *, cutoff: float = 0.5) -> list[str]:
    """Return up to `most` of the `known` names: similar spellings, closest first, then names that contain `name`.

    `cutoff` is the least similarity of two spellings, from 0 to 1 (:func:`difflib.get_close_matches`).
    """
    spelled, wanted = {each.casefold(): each for each in known}, name.casefold()
    near = difflib.get_close_matches(wanted, spelled, n=most, cutoff=cutoff)
    near += [each for each in spelled if len(wanted) > 2 and wanted in each and each not in near]
    return [spelled[each] for each in near[:most]]
