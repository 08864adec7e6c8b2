"""``bench bundle`` and ``merge``: grids on machines without a network. Parsing and printing only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli.options import Json, Quiet, with_options
from bench.cli.run import grid_of
from bench.core.options import GridOptions
from bench.core.printable import counted
from bench.core.progress import echo, open_progress, print_json


@with_options()
def bundle(
    options: GridOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("bundle.zip"),
    wheels: Annotated[bool, typer.Option("--wheels", help="Also pack this program and its dependencies.")] = False,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Pack what a grid needs into one file, for `bench run --bundle FILE` on machines without a network."""
    grid = grid_of(options)
    with open_progress(quiet=quiet or json_) as progress:
        with progress.stage("starting", 1):
            from bench.launchers.bundle import pack
        packed = pack(grid, out, progress, wheels=wheels)
    size, count = out.stat().st_size, len(packed.cells)
    if json_:
        print_json({"file": str(out), "bytes": size, **packed.model_dump(mode="json")})
        return
    echo(f"{out}: {counted(count, 'cell')}, {counted(len(packed.files), 'file')}, {size / 1e6:.1f} MB")
    echo(f"On the other machine: python -m bench run --bundle {out.name} --out runs; then, back here, `bench merge`.")


def merge(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, for instance from other machines.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Run directory that receives their results.")] = Path("runs"),
    json_: Json = False,
) -> None:
    """Copy records, students, attacks and audits of run directories into one. Exits with 1 if any is left out."""
    from bench.results.merge import merge as merge_runs
    from bench.results.run_dir import RunDir

    done = merge_runs([RunDir(path) for path in runs], RunDir(out))
    if json_:
        print_json({"added": done.added, "there": done.there, "left_out": done.left_out})
    else:
        echo(f"{len(done.added)} added to {out}, {len(done.there)} already there, {len(done.left_out)} left out")
        for line in done.left_out:
            echo(f"left out: {line}", err=True)
    if done.left_out:
        raise typer.Exit(1)
