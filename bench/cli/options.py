"""Options shared by several commands, and commands whose options are the fields of dataclasses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from bench.core.config import Reuse
from bench.core.options import hints_of, where

records = partial(typer.Option, rich_help_panel="Records")

Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="Run directories; leaderboards, the default, is the published board.", show_default=False),
]
Out = Annotated[Path, records("--out", "-o", help="Run directory.")]
ReuseOption = Annotated[Reuse, records("--reuse", help="Which existing records count as done.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CREW = where("--workers", help="Processes for teachers; 0: one per core.", min=0)


def with_options(**changes: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's dataclass parameters by one option per field.

    `changes` maps field names to another default, another option, (default, option), or ``...``: no such option.
    """

    def dressed(command: Callable[..., None]) -> Callable[..., None]:
        hints, shown = get_type_hints(command, include_extras=True), list[inspect.Parameter]()
        kinds = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
        for name, parameter in inspect.signature(command).parameters.items():
            given = _parameters(kinds[name], changes) if name in kinds else [parameter.replace(annotation=hints[name])]
            shown += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in given]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            built = {name: _built(kind, values) for name, kind in kinds.items()}
            command(**built, **values)

        vars(run)["__signature__"] = inspect.Signature(shown)
        run.__annotations__ = {one.name: one.annotation for one in shown}
        return run

    return dressed


def _parameters(kind: Any, changes: dict[str, Any]) -> Iterator[inspect.Parameter]:
    of = {field.name: field for field in fields(kind)}
    for name, hint in hints_of(kind).items():
        if is_dataclass(hint):
            yield from _parameters(hint, changes)
            continue
        change = changes.get(name, of[name].default)
        if change is ... or not hasattr(hint, "__metadata__"):
            continue
        (*_, word, option), default = get_args(hint), change
        if isinstance(change, OptionInfo):
            option, default = change, of[name].default
        if isinstance(change, tuple):
            default, option = change
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[word, option],
            default=inspect.Parameter.empty if default is MISSING else default,
        )  # fmt: skip


def _built(kind: Any, values: dict[str, Any]) -> Any:
    """Return an instance of `kind`, removing its fields from `values`."""
    hints = hints_of(kind)
    inner = {name: _built(hint, values) for name, hint in hints.items() if is_dataclass(hint)}
    return kind(**inner, **{name: values.pop(name) for name in hints if name in values})
