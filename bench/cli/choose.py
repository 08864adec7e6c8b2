"""``bench choose``: the best methods within a budget. Parsing and printing only."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.options import Json, Quiet
from bench.core.errors import BenchError, UnknownNameError
from bench.core.progress import echo, print_fields, print_json, print_table, starting
from bench.core.types import PrivacyUnit

if TYPE_CHECKING:
    from bench.reports.board_row import BoardRow
    from bench.reports.choose import Choice

SHOWN = 8
EXAMPLES = """\
python -m bench choose --eps 2
python -m bench choose --eps 2 --dataset mnist --public-data none --time 10m
python -m bench choose --eps 3 --dataset folder:photos"""


def choose(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Run directories to choose from; default: the published records.", show_default=False),
    ] = None,
    eps: Annotated[
        float, typer.Option("--eps", "-e", help="Largest proven epsilon, for replace-one neighbours.")
    ] = 1.0,
    dataset: Annotated[
        str, typer.Option("--dataset", "-d", help="Data set of the board, or folder:PATH for your own data.")
    ] = "mnist",
    unit: Annotated[PrivacyUnit, typer.Option("--unit", help="The unit that epsilon protects.")] = PrivacyUnit.RECORD,
    public_data: Annotated[
        str, typer.Option("--public-data", help="any, or none: only methods that use no public data.")
    ] = "any",
    time: Annotated[
        str, typer.Option("--time", "-t", help="Longest time of a run: 90s, 10m or 2h. Default: no limit.")
    ] = "",
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Rank the methods within a budget, with their commands, and show what a smaller budget costs in accuracy."""
    if public_data not in ("any", "none"):
        raise UnknownNameError("--public-data", public_data, ["any", "none"])
    seconds = seconds_of(time)
    with starting(quiet=quiet or json_):
        from bench.reports.choose import Wanted
        from bench.reports.choose import choose as chosen_from
        from bench.reports.leaderboard import build_board
        from bench.reports.runs import read_board

        wanted = Wanted(eps, dataset, unit.value, public_data == "any", seconds)
        found = read_board(runs)
        board = build_board(found.records.values(), found.audits.values())
        choice = chosen_from(board, wanted)
    if json_:
        print_json(choice.as_dict())
        return
    _print(choice)


def seconds_of(text: str) -> float:
    """Parse a time such as 10m into seconds ("" gives infinity); raise :class:`BenchError` if invalid."""
    if not text:
        return math.inf
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)", text)
    if match is None:
        raise BenchError(f"--time takes a number with a unit, for instance 90s, 10m or 2h, not {text!r}.")
    return float(match[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600}[match[2]]


def _print(choice: Choice) -> None:
    from bench.results.text import epsilon_text

    wanted, own = choice.wanted, choice.wanted.dataset != choice.measured_on
    if own:
        print_fields(
            f"The board's data set most like {wanted.dataset} in classes, image size and channels is "
            f"{choice.measured_on}. The figures below are of that; yours will differ."
        )
    print_table(
        f"{choice.measured_on}, unit {wanted.unit}, proven epsilon at most {wanted.eps:g} (replace-one); accuracy in %",
        ("rank", "method", "proven", "claim", "accuracy", "time"),
        [
            (f"{row.rank} {row.marks}".rstrip(), row.method, epsilon_text(row.replace_one, "up"), str(row.claim) or "–",
             f"{row.accuracy:.1f} ({row.low:.1f}–{row.high:.1f})", "–" if row.cost is None else f"{row.cost:.0f} s")
            for row in choice.rows[:SHOWN]
        ],
    )  # fmt: skip
    from bench.reports.order import LEGEND

    if any(row.marks for row in choice.rows[:SHOWN]):
        print_fields(LEGEND)
    if len(choice.rows) > SHOWN:
        echo(f"{len(choice.rows) - SHOWN} more methods rank below; --json lists them.")
    best = choice.best
    names = ", ".join(row.method for row in best)
    if len(best) > 1:
        print_fields(f"Take one of {names}: no test tells their accuracies apart.")
    else:
        print_fields(f"Take {names}: its lead is larger than the noise of seeds and test records.")
    from bench.reports.choose import CANDIDATES

    for row in choice.rows[:CANDIDATES] if own else best[:CANDIDATES]:
        print_fields(_why(row))
        echo(f"  {choice.commands[row.method]}")
    for less in choice.less:
        if less.row is None:
            print_fields(f"With {less.what}: no ranked method.")
        else:
            cost = f"{less.points:.1f} points less" if less.points >= 0.05 else "at no loss"
            print_fields(f"With {less.what}: {less.row.method}, {less.row.accuracy:.1f}%, {cost}.")
    if choice.untimed:
        print_fields(
            f"Left out, since every run reused cached parts and its time is unknown: {', '.join(choice.untimed)}."
        )


def _why(row: BoardRow) -> str:
    seeds = len(row.seeds) + row.collapsed
    public = "no public data" if row.public_data == "none" else f"public data: {row.public_data}"
    audited = (
        "not audited" if row.audit is None else f"audited {row.audited_text} of {row.proven:.2f} ({row.adjacency})"
    )
    return f"{row.method}: {audited}, {seeds} seeds, preset {row.preset}, {public}."
