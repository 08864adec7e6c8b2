"""``bench leaderboard``: the board of run directories as Markdown, CSV and a static site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli.options import Json, Quiet, Runs
from bench.cli.run import print_board
from bench.core.errors import BenchError
from bench.core.options import member
from bench.core.plain_files import read_plain
from bench.core.progress import echo
from bench.core.types import PrivacyUnit

Into = Annotated[
    Path | None,
    typer.Option("--into", help="Folder for leaderboard.md, .csv and site/; default: the first RUNS, or leaderboards."),
]
Readme = Annotated[
    Path | None, typer.Option("--readme", help="Markdown file whose marked section receives MNIST's table.")
]
Unit = Annotated[
    str | None, typer.Option("--unit", help="Print the rows of these units: record, label, query-label, client.")
]
Since = Annotated[
    Path | None, typer.Option("--since", help="Earlier leaderboard.csv: print what changed since, instead of the rows.")
]


MOST = 8
"""Rows printed of each band of a long ranking."""


def leaderboard(
    runs: Runs = None, into: Into = None, readme: Readme = None, unit: Unit = None, since: Since = None,
    quiet: Quiet = False, json_: Json = False,
) -> None:  # fmt: skip
    """Write the leaderboard of one or more run directories as Markdown, CSV and a site, and print it."""
    units = None if unit is None else frozenset(member(PrivacyUnit, "--unit", name.strip()) for name in unit.split(","))
    from bench.reports.changes import changes
    from bench.reports.leaderboard import to_csv
    from bench.reports.pages import gather, write_pages
    from bench.results.published import named, need_published  # imports numpy

    folders = list(map(named, runs)) if runs else [need_published()]
    target = into or (runs[0] if runs else Path("leaderboards"))  # do not write into an installed package
    if target.is_file():  # fail before minutes of accounting
        raise BenchError(f"{target} is a file, not a directory. Choose another path.")
    earlier = None if since is None else _text(since)
    found = gather(folders)
    for line in found.warnings:
        echo(f"warning: {line}", err=True)
    pages = write_pages(target, found, readme=readme)
    for key, why in found.board.refused:
        echo(f"warning: {key} is not shown: {why}", err=True)
    if earlier is not None:
        echo(changes(earlier, to_csv(found.board)))
    else:
        print_board(found.shown(), found.audits, json_=json_, board=found.board, units=units, most=MOST)
    for page in () if quiet else pages:
        echo(f"wrote {page}", err=True)


def _text(path: Path) -> str:
    try:
        return read_plain(path, links=True).decode()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BenchError(f"{path} cannot be read: {why}. Give the leaderboard.csv of an earlier board.") from None
