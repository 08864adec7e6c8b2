"""``bench report`` and ``reported``: the papers' tables and figures from records, and the numbers that they print."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.options import Json, Quiet, with_options
from bench.core.errors import BenchError, UnknownNameError
from bench.core.options import LaunchOptions
from bench.core.printable import page
from bench.core.progress import echo, print_json
from bench.storage.files import write_atomic

Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="Run directories; default: the published records and ablations.", show_default=False),
]
Paper = Annotated[str, typer.Option("--paper", help="dgd, dpsd, trpate or pate; default: all.")]
Figure = Annotated[list[str] | None, typer.Option("--figure", help="Number of a figure in the paper; repeatable.")]
Table = Annotated[list[str] | None, typer.Option("--table", help="Number of a table in the paper; repeatable.")]
All = Annotated[bool, typer.Option("--all", help="All tables and figures.")]
Missing = Annotated[bool, typer.Option("--missing", help="Only list the empty cells, with reasons and commands.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Run directory for results of --launcher; default: runs.")
]
Into = Annotated[Path, typer.Option("--into", help="Output folder.")]


@with_options(detach=...)
def report(
    runs: Runs = None, *, paper: Paper = "", figure: Figure = None, table: Table = None, all_: All = False,
    missing_: Missing = False, out: Out = None, launch: LaunchOptions, into: Into = Path("reports-out"),
    quiet: Quiet = False, json_: Json = False,
) -> None:  # fmt: skip
    """Draw the papers' tables and figures from records, ours next to theirs, with the commands for missing records.

    --missing --launcher runs these commands: all runs in one launch, then attacks and audits.
    """
    from bench.cli.report_output import chosen_items, draw, evidence_of, fill, print_missing

    chosen = chosen_items(paper, figure or [], table or [], all_ or (missing_ and not (figure or table)))
    by_launcher = launch.launcher is not None or launch.cluster is not None
    if by_launcher and (not missing_ or json_):
        raise BenchError("--launcher makes what --missing lists: give both, without --json.")
    if out is not None and not by_launcher:
        raise BenchError(f"--out is the run directory for results of --launcher. Write the report by --into {out}.")
    out = out or Path("runs")
    made = [out] if by_launcher and out.is_dir() and out not in (runs or ()) else []
    evidence = evidence_of(runs, made)
    if not missing_:
        draw(chosen, evidence, into, quiet=quiet or json_, json=json_)
        return
    if by_launcher:
        fill(chosen, evidence, out, launch, quiet=quiet)
    else:
        print_missing(chosen, evidence, json=json_)


Folder = Annotated[
    Path | None, typer.Argument(help="Folder of numbers.csv and systems.yaml; default: the committed ones.")
]
Systems = Annotated[str, typer.Option("--systems", "-s", help="Only these, comma-separated, such as PATE,DPSD.")]
PageOut = Annotated[Path | None, typer.Option("--out", "-o", help="Write the page to this file.")]


def reported(folder: Folder = None, systems: Systems = "", out: PageOut = None, json_: Json = False) -> None:
    """Print the numbers of the papers' tables, each with a verdict on its epsilon, as a Markdown page."""
    from bench.reports.reported.numbers import read_reported
    from bench.reports.reported.page import to_markdown

    rows = read_reported(folder)
    if wanted := {name.strip().casefold() for name in systems.split(",") if name.strip()}:
        for name in wanted - {row.system.casefold() for row in rows}:
            raise UnknownNameError("system", name, {row.system for row in rows})
        rows = [row for row in rows if row.system.casefold() in wanted]
    if json_:
        # JSON has no infinity.
        numbers = [dataclasses.asdict(row) for row in rows]
        print_json({"numbers": [{**n, "epsilon": "inf"} if n["epsilon"] == math.inf else n for n in numbers]})
        return
    text = to_markdown(rows)
    if out is None:
        echo(text.removesuffix("\n"))
        return
    write_atomic(out, page(text))
    echo(f"wrote {out}", err=True)
