"""``bench report --missing``: the empty cells of the papers' tables and figures, listed, or filled by a launcher."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import typer

from bench.core.options import LaunchOptions, flag_of, words_of
from bench.core.printable import counted
from bench.core.progress import echo, open_progress, print_fields, print_json
from bench.reports.papers.coverage import Reason, items_of, told
from bench.reports.papers.evidence import Evidence
from bench.reports.papers.notes import commands_of, grids_of
from bench.reports.papers.spec import Paper, Spec
from bench.reports.reported.numbers import read_reported

Chosen = Sequence[tuple[Paper, Spec]]


def print_missing(chosen: Chosen, evidence: Evidence, *, json: bool) -> None:
    """Print why each empty cell of the `chosen` tables and figures is empty, and the commands that fill it."""
    items = items_of(chosen, evidence, read_reported())
    if json:
        listed = [
            {
                "item": item.name, "cell": missing.label, "reason": reason, "why": missing.why,
                "commands": missing.commands,
            }
            for item in items
            for reason, empty in item.missing().items()
            for _, missing in empty
        ]  # fmt: skip
        print_json({"missing": listed, "filled": sum(list(item.cells.values()).count(None) for item in items)})
        return
    for item in items:
        for reason, empty in item.missing().items():
            print_fields(f"{item.name}: {told(reason, empty)}")
            if reason is not Reason.DATA:
                for command in commands_of(missing for _, missing in empty):
                    echo(f"  {command}")
    cells = [missing for item in items for missing in item.cells.values()]
    echo(f"{cells.count(None):,} of {len(cells):,} cells are filled")


def fill(chosen: Chosen, evidence: Evidence, out: Path, launch: LaunchOptions, *, quiet: bool) -> None:
    """Fill the empty cells of the `chosen` tables and figures whose data is here.

    Makes all runs in one launch, then attacks and audits. Raises :class:`typer.Exit` with a status other than 0 if a
    run failed or was stopped.
    """
    from bench.cli.run import leave, print_board
    from bench.launchers.grid import run_grid
    from bench.launchers.settings import launch_settings

    empty = [
        missing
        for item in items_of(chosen, evidence, read_reported())
        for reason, some in item.missing().items()
        if reason is not Reason.DATA
        for _, missing in some
    ]
    settings, grids = launch_settings(launch), grids_of(empty)
    then = list(dict.fromkeys(missing.then for missing in empty if missing.then))
    if not grids and not then:
        echo("nothing is missing that a command fills")
        return
    failed = False
    if grids:
        with open_progress(quiet=quiet) as progress:
            ran = run_grid(grids, out, progress, settings, launch.resources)
        print_board(ran.records, ran.audits, json_=False, out=out)
        leave(ran.outcome, settings, out, detach=False)
        for line in ran.unread:
            echo(f"error: {line}", err=True)
        failed = bool(ran.unread) or any(record.failure for record in ran.records)
    for command in then:
        words = [*shlex.split(command)[1:], "--out", str(out), *_words(launch), *(["--quiet"] if quiet else [])]
        echo(shlex.join(["python", *words]))
        status = subprocess.run([sys.executable, *words], check=False).returncode
        if status >= 128 or status < 0:
            raise typer.Exit(abs(status))
        failed = failed or status != 0
    if failed:
        some = counted(len(grids), "grid") + (f" and {counted(len(then), 'command')}" if then else "")
        echo(f"not all of {some} ended well; the same command repeats what failed", err=True)
        raise typer.Exit(1)


def _words(launch: LaunchOptions) -> list[str]:
    """Return the options of `launch` that runs, attacks and audits share."""
    given = words_of(launch.resources)
    for one in fields(launch):
        value = getattr(launch, one.name)
        if value is not None and one.name not in ("slurm", "detach", "resources", "shards", "retries", "gpus", "pack"):
            given += [flag_of(LaunchOptions, one.name), str(value)]
    return [*given, *(word for line in launch.slurm or () for word in ("--slurm", line))]
