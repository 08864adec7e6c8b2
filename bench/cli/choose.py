"""``bench choose``: the best methods within a budget. Parsing only."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.options import Json, Quiet
from bench.core.errors import BenchError, UnknownNameError
from bench.core.progress import print_json, starting
from bench.core.types import PrivacyUnit

EXAMPLES = """\
python -m bench choose --eps 2
python -m bench choose --eps 2 --dataset mnist --public-data none --time 10m
python -m bench choose --eps 3 --dataset folder:photos"""


Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="Run directories to choose from; default: the published records.", show_default=False),
]
Eps = Annotated[float, typer.Option("--eps", "-e", help="Largest proven epsilon, for replace-one neighbours.")]
Dataset = Annotated[
    str, typer.Option("--dataset", "-d", help="Data set of the board, or folder:PATH for your own images.")
]
Unit = Annotated[PrivacyUnit, typer.Option("--unit", help="The unit that epsilon protects.")]
PublicData = Annotated[str, typer.Option("--public-data", help="any, or none: only methods that use no public data.")]
Time = Annotated[str, typer.Option("--time", "-t", help="Longest running time: 90s, 10m or 2h. Default: no limit.")]


def choose(
    runs: Runs = None, eps: Eps = 1.0, dataset: Dataset = "mnist", unit: Unit = PrivacyUnit.RECORD,
    public_data: PublicData = "any", time: Time = "", quiet: Quiet = False, json_: Json = False,
) -> None:  # fmt: skip
    """Rank the methods within a budget, with their commands, and show what a smaller budget costs in accuracy."""
    if public_data not in ("any", "none"):
        raise UnknownNameError("--public-data", public_data, ["any", "none"])
    seconds = seconds_of(time)
    with starting(quiet=quiet or json_):
        from bench.api.boards import choose as chosen
        from bench.cli.choose_output import print_choice

        choice = chosen(eps, dataset=dataset, unit=unit, public_data=public_data, seconds=seconds, runs=runs)
    if json_:
        print_json(choice.as_dict())
    else:
        print_choice(choice)


def seconds_of(text: str) -> float:
    """Parse a time such as 10m into seconds ("" gives infinity); raise :class:`BenchError` if invalid."""
    if not text:
        return math.inf
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)", text)
    if match is None:
        raise BenchError(f"--time takes a number with a unit, for instance 90s, 10m or 2h, not {text!r}.")
    return float(match[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600}[match[2]]
