"""``bench publish``: adds records of run directories to the published board. Parsing and printing only."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.options import Json
from bench.core.errors import BenchError
from bench.core.printable import counted
from bench.core.progress import echo, open_progress, print_json, print_table
from bench.storage.interrupts import Stopped, stopping_signals

if TYPE_CHECKING:
    from bench.publishing.publish import Publication

Runs = Annotated[list[Path] | None, typer.Argument(help="Run directories; none with --all.", show_default=False)]
Into = Annotated[Path, typer.Option("--into", help="The board: a folder with records, audits and attacks.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only vet the records (seconds); do not write, check or rerun anything.")
]
Rerun = Annotated[
    list[str] | None,
    typer.Option("--rerun", help="Key of a cell to rerun; default: the fastest of each method. Repeatable."),
]
NoRerun = Annotated[bool, typer.Option("--no-rerun", help="Do not rerun any cell; say so in the pull request.")]
All = Annotated[
    bool,
    typer.Option("--all", help="Validate the whole board by today's rules: records that fail move to its ablations."),
]
Minutes = Annotated[
    float,
    typer.Option(
        "--minutes",
        min=0,
        show_default="no limit",
        help="With --all: start no further check or replay after this time.",
    ),
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace published records that have the same key.")]


def publish(
    runs: Runs = None, into: Into = Path("leaderboards"), dry_run: DryRun = False, replace: Replace = False,
    rerun: Rerun = None, no_rerun: NoRerun = False, all_: All = False, minutes: Minutes = math.inf, json_: Json = False,
) -> None:  # fmt: skip
    """Add records, with their audits and attacks, to the board and rebuild its pages. Adds all records or none.

    First repeats the planning and the accounting of each record, checks its method, and reruns and replays one cell of
    each method. If stopped, the same command continues. docs/submitting.md lists the reasons for refusal. With --all,
    the board's own records are validated again, and the cheapest run of each method and data set is replayed.
    """
    from bench.publishing.outcomes import Outcomes
    from bench.publishing.publish import Fate, examine, opened, rebuild, write
    from bench.publishing.revalidate import revalidate
    from bench.publishing.verify import demand_audits, verify

    if rerun and no_rerun:
        raise BenchError("--rerun and --no-rerun contradict each other: give only one.")
    if all_ == bool(runs):
        raise BenchError("name the run directories to publish, or give --all to validate the board: one of the two.")
    if all_ and (rerun or replace):
        raise BenchError("--all reruns and replaces no record: give neither --rerun nor --replace with it.")
    if not all_ and minutes < math.inf:
        raise BenchError("--minutes belongs to --all.")
    pages: list[Path] = []
    try:
        with opened(into), open_progress(quiet=json_) as progress, stopping_signals():
            kept = Outcomes(into)
            if all_:
                found = revalidate(into, kept, progress, minutes=minutes, rerun=not (no_rerun or dry_run))
            else:
                # Plan from scratch: calibrations in someone else's run directory are untrusted.
                found = examine(runs or [], into, replace=replace, progress=progress)
                demand_audits(found)
                if not (found.refused or dry_run):
                    verify(found, kept, progress, rerun=rerun or (), skip_rerun=no_rerun)
            if not (found.refused or dry_run):
                write(found, into)
                if not all_:
                    kept.forget()
                pages = rebuild(into)
    except Stopped as stop:
        echo("stopped. Give the same command again.", err=True)
        raise typer.Exit(128 + stop.number) from None
    _print(found, pages, json_=json_)
    moved = [item for item in found.items if item.fate is Fate.MOVED]
    if moved:
        would = "would move" if dry_run else "moved"
        echo(f"{counted(len(moved), 'record')} {would} to {into / 'ablations'}, with the reasons above.", err=True)
        raise typer.Exit(1)
    if found.refused:
        count = len(found.refused)
        echo(f"nothing was written: {count} problem{'s' if count > 1 else ''}, listed above.", err=True)
        raise typer.Exit(1)
    if dry_run:
        echo("nothing was written, checked or rerun: --dry-run.", err=True)
    elif not json_:
        echo(f"wrote {', '.join(str(page) for page in pages)}. Commit {into}, and see docs/submitting.md.")


def _print(found: Publication, pages: list[Path], *, json_: bool) -> None:
    from bench.publishing.publish import Fate

    if json_:
        items = [{"kind": i.kind, "file": i.name, "fate": i.fate.value, "why": i.why} for i in found.items]
        unchecked = [{"what": what, "records": count} for what, count in found.unchecked.items()]
        print_json({"items": items, "unchecked": unchecked, "pages": [str(page) for page in pages]})
        return
    written = {Fate.ADDED, Fate.REPLACED, Fate.REMOVED}
    quiet = {Fate.SKIPPED, Fate.COMPLETED, *(written if found.refused else ())}
    refused = {item.name for item in found.refused}
    rows = [
        (item.fate.value, item.kind, item.name, item.why)
        for item in found.items
        if item.fate not in quiet and (item.fate is Fate.REFUSED or item.name not in refused)
    ]
    many = Counter(
        ("not written" if item.fate in written else item.fate.value, item.kind, item.why)
        for item in found.items
        if item.fate in quiet and item.name not in refused
    )
    rows += [(fate, kind, counted(count, "file"), why) for (fate, kind, why), count in sorted(many.items())]
    print_table("publication", ("what", "kind", "file", "why"), rows)
    for what, count in sorted(found.unchecked.items()):
        echo(f"not checked for {count} records: {what}")
