"""The tables and figures that ``bench report`` draws, what it prints about them, and what is missing in them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import typer

from bench.core.errors import BenchError
from bench.core.options import LaunchOptions, flags_of, words_of
from bench.core.printable import counted, page
from bench.core.progress import echo, open_progress, print_fields, print_json, print_table
from bench.reports.papers.build import index_text, make_artefact
from bench.reports.papers.coverage import Reason, items_of, told
from bench.reports.papers.evidence import Evidence, read_evidence
from bench.reports.papers.notes import commands_of, grids_of
from bench.reports.papers.spec import PAPERS, Paper, Spec, choose, load_paper
from bench.reports.reported.numbers import read_reported
from bench.results.published import need_published
from bench.storage.files import write_atomic

_SHOWN = 8
Chosen = Sequence[tuple[Paper, Spec]]


def evidence_of(runs: Sequence[Path] | None, made: Sequence[Path]) -> Evidence:
    """Return the results in `runs` (default: the published ones) and `made`; print warnings."""
    if not runs:
        board = need_published()
        runs = [board, *filter(Path.is_dir, [board / "ablations"])]
    evidence = read_evidence([*runs, *made])
    for line in evidence.warnings:
        echo(f"warning: {line}", err=True)
    return evidence


def chosen_items(paper: str, figures: list[str], tables: list[str], all_: bool) -> list[tuple[Paper, Spec]]:
    """Return the papers' tables and figures that the options name; raise :class:`BenchError` if they contradict."""
    if paper:
        load_paper(paper)
    if not (figures or tables or all_):
        raise BenchError("say what to draw: --figure N, --table N or --all.")
    if all_ and (figures or tables):
        raise BenchError("give either --all, or --figure and --table, not both.")
    if (figures or tables) and not paper:
        raise BenchError(f"--figure and --table need --paper, one of: {', '.join(PAPERS)}.")
    if all_:
        return [(of, spec) for of in map(load_paper, [paper] if paper else PAPERS) for spec in of.specs]
    of = load_paper(paper)
    chosen: list[Spec] = [choose(of.tables, number, "table", paper) for number in tables]
    chosen += [choose(of.figures, number, "figure", paper) for number in figures]
    return [(of, spec) for spec in chosen]


def draw(chosen: Chosen, evidence: Evidence, into: Path, *, quiet: bool, json: bool) -> None:
    """Draw tables and figures into `into`, and print a table of them and the commands for missing results."""
    reported = read_reported()
    with open_progress(quiet=quiet) as progress:
        each = progress.each("tables and figures", chosen)
        artefacts = [make_artefact(of, spec, evidence, reported, into) for of, spec in each]
    index = into / "index.md"
    write_atomic(index, page(index_text(artefacts, evidence.warnings)))
    missing = [one for artefact in artefacts for one in artefact.missing]
    if json:
        print_json(
            {
                "index": str(index),
                "artefacts": [
                    {
                        "paper": a.paper, "kind": a.kind, "number": a.number, "title": a.title, "filled": a.filled,
                        "wanted": a.wanted, "files": [str(path) for path in a.files],
                        "missing": [{"what": m.label, "why": m.why, "commands": m.commands} for m in a.missing],
                    }
                    for a in artefacts
                ],
                "commands": commands_of(missing),
                "warnings": evidence.warnings,
            }
        )  # fmt: skip
        return
    print_table(
        "tables and figures",
        ("paper", "what", "title", "filled", "files"),
        [
            (a.paper, f"{a.kind} {a.number}", a.title, f"{a.filled} of {a.wanted}" if a.wanted else "no cells",
             f"{a.files[0].parent / a.files[0].stem}.*")
            for a in artefacts
        ],
    )  # fmt: skip
    if commands := commands_of(missing):
        echo(f"{len(commands)} commands produce the missing results; {index} lists them under each table and figure:")
        more = [f"... and {len(commands) - _SHOWN} more"] if len(commands) > _SHOWN else []
        echo("\n".join(f"  {line}" for line in [*commands[:_SHOWN], *more]))
    echo(f"wrote {index}", err=True)
    echo(f"{sum(a.filled for a in artefacts)} of {sum(a.wanted for a in artefacts)} cells are filled")


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
        echo("no command fills a missing cell")
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
        echo(f"some of {some} failed; the same command repeats them", err=True)
        raise typer.Exit(1)


def _words(launch: LaunchOptions) -> list[str]:
    """Return the options of `launch` that runs, attacks and audits share."""
    given = words_of(launch.resources)
    for one in fields(launch):
        value = getattr(launch, one.name)
        if value is not None and one.name not in ("slurm", "detach", "resources", "shards", "retries", "gpus", "pack"):
            given += [flags_of(LaunchOptions)[one.name], str(value)]
    return [*given, *(word for line in launch.slurm or () for word in ("--slurm", line))]
