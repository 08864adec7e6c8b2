"""``bench reported``: the papers' numbers, with a verdict on each epsilon."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.options import Json
from bench.core.printable import page
from bench.core.progress import echo, print_json
from bench.storage.files import write_atomic


def reported(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of numbers.csv and systems.yaml; default: the committed ones.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the page to this file.")] = None,
    json_: Json = False,
) -> None:
    """Print the numbers of the papers' tables, each with a verdict on its epsilon, as a Markdown page."""
    from bench.reports.reported.numbers import read_reported
    from bench.reports.reported.page import to_markdown

    rows = read_reported(folder)
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
