"""``bench export``: released students as folders that timm loads. Parsing and printing only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.core.errors import BenchError
from bench.core.progress import echo, print_table

Keys = Annotated[list[str] | None, typer.Argument(help="Keys of records; unique prefixes are enough.")]
Board = Annotated[Path | None, typer.Option("--board", help="Export all students of this board that are in --out.")]
Into = Annotated[Path, typer.Option("--into", help="Folder to write to, with one subfolder per student.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Run directory with the released students.")]


def export(keys: Keys = None, board: Board = None, out: Out = Path("runs"), into: Into = Path("students")) -> None:
    """Write released students in timm's format, each with a card that states its three epsilons."""
    from bench.cli.record_pages import find_record
    from bench.results.audited import with_audits
    from bench.results.run_dir import RunDir

    if bool(keys) == bool(board):
        raise BenchError("name the keys of records (`python -m bench ls -o RUNS` lists them), or give only --board.")
    source = RunDir(out)
    if board is not None:
        read = RunDir(board).read_records(set_aside=False)
        every = with_audits(read.found, RunDir(board).read_audits()[0])
        records = [r for r in every if r.student is not None and (source.path / r.student.file).is_file()]
        if not records:
            raise BenchError(f"no student of {board} is in {out}. Give its run directory with --out.")
        echo(f"{len(every) - len(records)} of {len(every)} students are not in {out}", err=True)
    else:
        records = [find_record([out], key)[0] for key in dict.fromkeys(keys or ())]
    from bench.experiments.device import prepare_device
    from bench.publishing.export import export_student  # imports timm, so errors in keys come first

    prepare_device()
    rows, failed = [], 0
    for record in records:
        try:
            rows.append((record.key, "written", str(export_student(record, source, into))))
        except BenchError as error:
            failed += 1
            rows.append((record.key, "not written", str(error)))
    print_table("students", ("key", "what", "where, or why not"), rows)
    if failed:
        raise typer.Exit(1)
