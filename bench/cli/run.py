"""``bench run``, ``status`` and ``cancel``: grids of cells. Parsing and printing only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.options import Json, Out, Quiet, ReuseOption, records, with_options
from bench.core.config import Grid, Reuse, check_overrides
from bench.core.errors import BenchError
from bench.core.options import GridOptions, LaunchOptions, hints_of, what
from bench.core.printable import counted
from bench.core.progress import echo, fits_unfolded, open_progress, print_fields, print_json, print_table, print_text
from bench.core.types import PrivacyUnit

if TYPE_CHECKING:
    from bench.launchers.settings import Cluster
    from bench.launchers.worker import Outcome
    from bench.reports.leaderboard import Board
    from bench.results.attack_record import AuditRecord
    from bench.results.record import Record

EXAMPLES = """\
python -m bench run -m pate,dp-sgd -d digits -p tiny
python -m bench run -m pate-gnmax -d digits -e 1,3,10 -s 0,1,2 --set student_epochs=50 --dry-run
python -m bench run -m nonprivate -d digits -p tiny --student small_cnn --launcher local --jobs 2"""


NoiseSalt = Annotated[
    str, what("--noise-salt", help="random; to repeat a record, give its noise_salt, or none if it has none.")
]
Bundle = Annotated[Path | None, what("--bundle", help="The grid, its data and weights, from `bench bundle`.")]
Config = Annotated[Path | None, what("--config", "-c", help="YAML file with the grid, as printed by --dry-run --yaml.")]
DryRun = Annotated[
    bool, records("--dry-run", help="Print states, settings, claims, order, jobs and times without training.")
]
AsYaml = Annotated[bool, records("--yaml", help="With --dry-run: print the grid as a file for --config.")]


@with_options(methods="")
def run(
    context: typer.Context, *, options: GridOptions, noise_salt: NoiseSalt = "random", bundle: Bundle = None,
    config: Config = None, out: Out = Path("runs"), reuse: ReuseOption = Reuse.DONE, dry_run: DryRun = False,
    yaml: AsYaml = False, launch: LaunchOptions, quiet: Quiet = False, json_: Json = False,
) -> None:  # fmt: skip
    """Run or resume a grid of methods, data sets, epsilons and seeds; print the board.

    Several of these commands may share one directory; each cell runs once.
    """
    sources = {name: context.get_parameter_source(name) for name in hints_of(GridOptions)}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if bundle is not None and given:
        names = ", ".join(f"--{name.rstrip('_')}" for name in given)
        raise BenchError(f"--bundle holds the grid. Leave out {names}, or pack another bundle with them.")
    if config is not None and (given or bundle is not None):
        names = ", ".join([*(f"--{name.rstrip('_')}" for name in given), *(["--bundle"] if bundle else [])])
        raise BenchError(f"--config holds the grid. Leave out {names}, or write it into {config}.")
    if yaml and (not dry_run or bundle is not None):
        raise BenchError("--yaml only prints the grid: use it with --dry-run and without --bundle.")
    if config is not None:
        from bench.launchers.grid_file import read_grid

        options = read_grid(config)
    elif bundle is None and "methods" not in given:
        raise BenchError(
            "give the methods to run, for instance --methods pate,dp-sgd; or a file by --config or --bundle."
        )
    grid = grid_of(options) if bundle is None else None
    if yaml:
        from bench.launchers.grid_file import grid_text

        echo(grid_text(options).removesuffix("\n"))
        return
    with open_progress(quiet=quiet or json_) as progress:
        with progress.stage("starting", 1):  # show the grid before the imports, which take seconds
            from bench.launchers.grid import forecast_grid, run_grid
            from bench.launchers.settings import launch_settings

            settings = launch_settings(launch)
        packed = None
        if bundle is not None:
            from bench.launchers.bundle import unpack

            held = unpack(bundle, out / "bundle", progress)
            grid, packed = held.grid, held.cells
        assert grid is not None
        if dry_run:
            seen = forecast_grid(grid, out, progress, settings, reuse=reuse, noise_salt=noise_salt)
        else:
            ran = run_grid(
                grid, out, progress, settings, launch.resources, reuse=reuse, noise_salt=noise_salt,
                detach=launch.detach, packed=packed,
            )  # fmt: skip
    if dry_run:
        if json_:
            print_json(seen.as_dict())
            return
        print_table(*seen.table())
        for line in seen.notes:
            echo(line)
        return
    print_board(ran.records, ran.audits, json_=json_, out=out)
    leave(ran.outcome, settings, out, detach=launch.detach, reuse=reuse)
    for line in ran.unread:
        echo(f"error: {line}", err=True)
    if ran.unread or any(record.failure for record in ran.records):
        raise typer.Exit(1)


def grid_of(options: GridOptions) -> Grid:
    """Return the grid of a command; raise :class:`BenchError` on wrong names, as planning does, but import no file.

    This reports errors before anything is printed.
    """
    from bench.data.datasets import get_dataset
    from bench.interface.registry import METHODS, methods_named

    grid = options.grid()
    names = methods_named(grid.methods)
    methods = [METHODS.get(name) for name in names if not name.endswith(".py")]
    if len(methods) == len(names):
        check_overrides(methods, grid.overrides)
    for name in grid.datasets:
        get_dataset(name)
    return grid


def leave(outcome: Outcome, settings: Cluster, out: Path, *, detach: bool, reuse: Reuse = Reuse.DONE) -> None:
    """Print what is left of a launch, and end the command if a signal stopped it."""
    if not outcome.left:
        return
    left = counted(outcome.left, "cell is", "cells are")
    if settings.launcher == "slurm" and not outcome.cancelled and (detach or outcome.stopped is not None):
        echo(
            f"{left} left to the jobs, which keep running. `python -m bench status -o {out}` shows them, "
            f"`python -m bench cancel -o {out}` ends them; the same command again waits for them.",
            err=True,
        )
    elif outcome.stopped is not None and reuse is Reuse.NONE:
        echo(f"stopped; {left} left. With --reuse none, the same command runs all cells again.", err=True)
    elif outcome.stopped is not None:
        echo(f"stopped; {left} left. Give the same command again to resume.", err=True)
    elif not outcome.cancelled:
        echo(f"{left} left without a readable record. Give the same command again to run the rest.", err=True)
        raise typer.Exit(1)
    if outcome.stopped is not None:
        raise typer.Exit(128 + outcome.stopped)


ESSENTIAL = {"method", "target epsilon (basis)", "proven", "proven, replace-one", "claim", "accuracy"}
"""Columns of a board's table that remain on a narrow terminal; of two proven epsilons the one that orders the rows."""


def print_board(
    records: list[Record], audits: list[AuditRecord], *, json_: bool, board: Board | None = None,
    units: Collection[PrivacyUnit] | None = None, out: Path | None = None, most: int = 0,
) -> None:  # fmt: skip
    """Print the board of `records` and `audits`, or a prebuilt `board`, as tables or JSON.

    `units` restricts the rows, and `most`, if positive, those of each band of a long table. Failed cells have no unit
    and are always printed, with their logs if they are in `out`.
    """
    from bench.reports.leaderboard import COLUMNS, build_board, cells_of, newest_sources
    from bench.results.audited import with_audits

    if json_:
        if units is not None:
            records = [record for record in records if record.privacy is None or record.privacy.unit in units]
        filled = with_audits(records, audits)
        print_json({"records": [record.model_dump(mode="json") for record in filled]})
        return
    board = build_board(records, audits) if board is None else board
    for (dataset, unit), rows in board.tables().items():
        if units is not None and unit not in units:
            continue
        every = len(rows)
        if 0 < 3 * most < every:
            rows = [row for _, band in groupby(rows, lambda row: row.band) for row in islice(band, most)]
        deltas = ", ".join(f"{delta:g}" for delta in sorted({row.delta for row in rows}))
        title = f"{dataset}, unit {unit}, delta {deltas}; accuracy in %"
        lines = [cells_of(row) for row in rows]
        # Hide columns that carry no information here; otherwise the terminal wraps the rest.
        idle = {name for name in ("whole test set", "drop") if all(line[name] == "–" for line in lines)}
        if all(line["proven"] == line["proven, replace-one"] for line in lines):
            idle.add("proven, replace-one")
        shown = [name for name in COLUMNS if name not in idle | {"rank", "public data"}]
        notes: dict[str, int] = {}
        hidden: list[str] = []
        if not fits_unfolded(shown, [[line[name] for name in shown] for line in lines]):
            same = [name for name in ("seeds", "preset") if len({line[name] for line in lines}) == 1]
            title += "".join(f"; {name}: {lines[0][name]}" for name in same)
            shown = [name for name in shown if name not in {"drop", "1 in 100", *same}]
            for line, row in zip(lines, rows, strict=True):
                line["proven"] = line["proven"].replace(" (add-remove)", "*")
                line["claim"] = line["claim"].removesuffix(" by experiment")
                line["remarks"] = ", ".join(str(notes.setdefault(text, len(notes) + 1)) for text in row.remarks)
            least = ESSENTIAL - ({"proven"} if "proven, replace-one" in shown else set())
            if len({line["preset"] for line in lines}) > 1:
                least = least | {"preset"}
            kept = (shown, [name for name in shown if name != "time"], [name for name in shown if name in least])
            fits = (few for few in kept if fits_unfolded(few, [[line[name] for name in few] for line in lines]))
            few = next(fits, kept[-1])
            shown, hidden = few, [name for name in shown if name not in few and name != "remarks"]
        print_table(title, tuple(shown), [tuple(line[name] for name in shown) for line in lines], folded=True)
        if "proven" in shown and any("*" in line["proven"] for line in lines):
            echo("*: add-remove neighbours")
        if len({row.band for row in rows}) > 1:
            echo("order: proven epsilon (replace-one) up to 1, 3, 10 or above; then accuracy")
        if hidden:
            print_fields(f"not shown at this width: {'; '.join(hidden)}. --json has them.")
        for text, number in notes.items():
            some = {row.method for row in rows if text not in row.remarks}
            of = dict.fromkeys(
                f"{row.method} at {cells_of(row)['target epsilon (basis)']}" if row.method in some else row.method
                for row in rows if text in row.remarks
            )  # fmt: skip
            print_fields(f"{number if 'remarks' in shown else ', '.join(of)}: {text}")
        if len(rows) < every:
            print_fields(f"{every - len(rows)} more rows: see the pages, or --json.")
    newest = newest_sources(records)
    old = [one for one in board.failures if one.cell.plugin and newest.get(one.method) != one.cell.plugin.source_sha256]
    for record in board.failures:
        if record not in old:
            echo(f"failed: {record.key}: {record.failure.words(out) if record.failure else ''}")
    if old:
        echo(f"not shown: {counted(len(old), 'failed cell')} of earlier versions of a method's file")
    for key, why in board.refused:
        echo(f"not shown: {key}: {why}")


Former = Annotated[Path | None, typer.Argument(metavar="[RUNS]", help="The same as --out.", show_default=False)]


def status(former: Former = None, out: Out = Path("runs"), json_: Json = False) -> None:
    """Show the launches of a run directory from any terminal: cells done, running (and where), failed and left."""
    from bench.launchers.status import overview

    seen = overview(former or out)
    if json_:
        print_json(asdict(seen))
        return
    for title, columns, rows in seen.tables():
        print_table(title, columns, rows)
    for note in seen.notes:
        echo(note)


def cancel(former: Former = None, out: Out = Path("runs")) -> None:
    """Stop all launchers, workers and Slurm jobs of a run directory. Records remain."""
    from bench.launchers.status import cancel_all

    for line in cancel_all(former or out):
        echo(line)


Key = Annotated[str, typer.Argument(help="Key of a cell, audit or attack; a prefix is enough.")]
Attempt = Annotated[
    int | None, typer.Option("--attempt", "-n", help="Number of the attempt, from 1; default: the last.")
]
ListThem = Annotated[bool, typer.Option("--list", "-l", help="List the attempts: job, node, end, memory.")]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow", "-f", help="Keep printing new output, including later attempts, until the result is written."
    ),
]


def logs(
    key: Key, out: Out = Path("runs"), attempt: Attempt = None, list_: ListThem = False, follow: Follow = False,
) -> None:  # fmt: skip
    """Print the output of a cell, audit or attack that a launcher ran, from any terminal."""
    from bench.launchers.logs import Attempts

    found = Attempts(out, key)
    if list_:
        for one in found.all() or [found.chosen(None)]:
            echo(f"{one.number}: {one.attempt.words}")
        return
    if follow:
        for text in found.followed(attempt):
            print_text(text)
        return
    chosen = found.chosen(attempt)
    echo(found.heading(chosen), err=True)
    for path in chosen.logs:
        with path.open(errors="replace") as lines:
            for line in lines:
                echo(line.removesuffix("\n"))
