"""``bench epsilon``: the privacy cost of a mechanism by every accountant that applies.

The commands are generated from the functions behind `bench.epsilon`, with --delta, --json and files of votes.
Data-dependent accountants read votes, which are private.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from inspect import Parameter, Signature
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bench.cli.epsilon_output import load_votes, report
from bench.core.errors import BenchError
from bench.core.types import Budget
from bench.privacy.accounting.described import Described, Option, described, settings_of
from bench.privacy.accounting.mechanism_costs import MECHANISMS
from bench.privacy.accounting.paper_costs import PAPERS, PROVEN


class _Mechanisms(TyperGroup):
    """Points from a paper's name to the group that has it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        for group in ("claimed", "proven") if name not in self.commands else ():
            if name in getattr(self.commands[group], "commands", {}):
                ctx.fail(f"{name} is a paper's method. Try: python -m bench epsilon {group} {name}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="epsilon",
    cls=_Mechanisms,
    no_args_is_help=True,
    help="Compute the privacy cost of a mechanism by every accountant that applies. Needs no data or training.",
)
claimed = typer.Typer(
    no_args_is_help=True, help="A paper's claim for its setting, next to the figures of sound accountants."
)
proven = typer.Typer(no_args_is_help=True, help="What is proven for a paper's method as described.")
app.add_typer(claimed, name="claimed")
app.add_typer(proven, name="proven")

_DELTA = Option("The delta of (epsilon, delta), strictly between 0 and 1.")
_JSON = Option('Print one JSON object; an infinite epsilon is the string "inf".')
_GROUP = Option("Number of records per person, for the bounds on an attacker.")
_PRINTED = Option("The epsilon that a paper prints for this setting; adds whether it is proven.")
_LAST: Mapping[str, tuple[Any, Option, Any]] = {
    "delta": (float, _DELTA, 1e-5),
    "printed": (float | None, _PRINTED, None),
    "group": (int, _GROUP, 1),
    "json": (bool, _JSON, False),
}
_ROWS = {
    "first": (int | None, Option("Use only the first N rows of the votes.", panel="Votes")),
    "indices": (Path | None, Option(".npy file with the rows of the votes to use.", panel="Votes")),
}


def _parameter(name: str, kind: Any, option: Option, default: Any) -> Parameter:
    words = [f"--{word.replace('_', '-')}" for word in (name, option.second) if word]
    shown = typer.Option(*words, help=option.help, rich_help_panel=option.panel)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown])


def _command(make: Callable[..., Described], text: str | None, *, without_claim: bool = False) -> Callable[..., None]:
    """Turn `make` into a command with the same parameters that prints its result, with or without the claim."""
    parameters, unused = [], {}
    for name, (kind, option, default) in settings_of(make).items():
        if without_claim and option.unused:
            unused[name] = kind(1)  # required by `make` but unused
            parameters.append(_parameter(name, kind | None, replace(option, help=option.unused), None))
        elif name != "votes":
            parameters.append(_parameter(name, kind, option, default))
        else:
            parameters.append(_parameter(name, Path if default is Parameter.empty else Path | None, option, default))
            parameters += [_parameter(more, *declared, None) for more, declared in _ROWS.items()]
    grouped = any(option.panel for _, option, _ in settings_of(make).values())
    panel = "Result" if len(parameters) + len(_LAST) > 8 and not grouped else None
    parameters += [
        _parameter(name, kind, replace(option, panel=panel), default) for name, (kind, option, default) in _LAST.items()
    ]

    def command(delta: float, printed: float | None, json: bool, group: int, **given: Any) -> None:
        rows = {name: given.pop(name, None) for name in _ROWS}
        if given.get("votes") is None and any(value is not None for value in rows.values()):
            raise BenchError("--first and --indices choose rows of --votes: give --votes too, or leave them out.")
        if given.get("votes") is not None:
            given["votes"] = load_votes(given["votes"], **rows)
        found = described(make, delta, {**given, **unused})
        report(replace(found, rows=(), shown=None) if without_claim else found, delta, json, group, printed)

    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = text
    return command


for _name, _make in MECHANISMS.items():
    app.command(_name)(_command(_make, _make.__doc__))
for _name, _make in PAPERS.items():
    claimed.command(_name)(_command(_make, _make.__doc__))
for _name, _text in PROVEN.items():
    proven.command(_name)(_command(PAPERS[_name], _text, without_claim=True))


@app.command()
def impossible(
    eps: Annotated[float, typer.Option("--eps", help="The claimed epsilon, from a proof about one teacher's answers.")],
    accuracy: Annotated[float, typer.Option(help="The accuracy in percent, for instance 96.03.")],
    classes: Annotated[int, typer.Option(help="Number of classes, all with equally many test records.")] = 10,
    delta: Annotated[float, typer.Option(help=_DELTA.help)] = 1e-5,
    json: Annotated[bool, typer.Option("--json", help=_JSON.help)] = False,
) -> None:
    """Test whether a claim allows an accuracy, if its proof holds between any two teachers (not only ensembles)."""
    from bench.privacy.auditing.utility_bound import honest_tries, odds, probability_bound, remark

    Budget(eps, delta)
    if not 1 < accuracy <= 100:
        raise BenchError(f"--accuracy is in percent, above 1 and at most 100, not {accuracy:g}. Try 96.03.")
    if classes > 10_000:
        raise BenchError("--classes is at most 10,000, because the bound would take minutes for more.")
    bound = probability_bound(eps, delta, accuracy / 100, [1 / max(classes, 1)] * classes)
    verdict = remark([bound.probability]) or "not ruled out"
    if json:
        tries = honest_tries([bound.probability])
        found = {"verdict": verdict, "honest_tries": tries if math.isfinite(tries) else "inf", **asdict(bound)}
        typer.echo(dumps({"epsilon": eps, "delta": delta, "accuracy": accuracy, **found}))
        return
    typer.echo(f"accuracy {accuracy:g}% with {classes} classes at epsilon {eps:g}, delta {delta:g}: {verdict}")
    if bound.probability < 1:
        typer.echo(
            f"If the claim held between any two teachers: {odds([bound.probability])}. The bound is that of any "
            f"accuracy above {100 * bound.threshold:.2f}%, by {bound.permutations:.10g} permutations of the classes "
            f"({bound.code}), any two of which differ on {bound.distance} classes or more."
        )
