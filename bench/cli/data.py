"""``bench data``: list, fetch and verify data sets."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.cli.options import Json, Quiet
from bench.core.errors import BenchError
from bench.core.lazy_libraries import progress as rich
from bench.core.progress import echo, make_console, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.core.fetch_progress import Progress
    from bench.data.spec import DatasetSpec

app = typer.Typer(
    name="data",
    help="List, fetch and verify data sets. They are stored in $BENCH_DATA, by default in the user's cache folder.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Names = Annotated[list[str], typer.Argument(help="Data sets by name; folder:PATH for your own.", show_default=False)]
Name = Annotated[str, typer.Argument(help="A data set by name; folder:PATH for your own.", show_default=False)]

FACTS = ("name", "classes", "shape", "train_records", "test_records", "download_bytes", "revision", "split_rule",
         "licence", "source", "citation", "resolution")  # fmt: skip


@app.command(name="list")
def list_(json_: Json = False) -> None:
    """List every data set: classes, shape, records, size on disk, revision and licence."""
    from bench.data.datasets import PLUGIN_ERRORS, all_datasets, data_root

    root = data_root()
    rows = [_row(spec, root) for spec in all_datasets().values()]
    if json_:
        print_json({"root": str(root), "datasets": rows, "broken_plugins": PLUGIN_ERRORS})
        return
    cells = []
    for row in rows:
        counts = [f"{n:,}" if n is not None else "?" for n in (row["train_records"], row["test_records"])]
        here = _size(row["bytes_here"]) if row["here"] else "no"
        shape, revision = "x".join(map(str, row["shape"])), row["revision"] or "not pinned"
        cells.append((row["name"], str(row["classes"]), shape, *counts, here, revision, row["licence"]))
    columns = ("name", "classes", "shape", "train", "test", "here", "revision", "licence")
    print_table(f"data sets under {root}", columns, cells)
    echo("Your own data: folder:PATH. Fetch a data set with: python -m bench data get NAME")
    for name, reason in PLUGIN_ERRORS.items():
        echo(f"plug-in {name} could not be used: {reason}")


def _row(spec: DatasetSpec, root: Path) -> dict[str, Any]:
    folder, labelled = root / spec.store, spec.labelled
    here = (folder / "manifest.json").is_file() or (root / "raw" / spec.store).is_dir()
    source = labelled and {"name": labelled.name, "records": labelled.records, "overlap": labelled.overlap}
    return {
        **{name: getattr(spec, name) for name in FACTS},
        "here": here,
        "bytes_here": sum(path.stat().st_size for path in folder.glob("*") if path.is_file()) if here else 0,
        "labelled_source": source,
    }


@app.command()
def get(names: Names, quiet: Quiet = False, json_: Json = False) -> None:
    """Fetch missing data sets and decode image folders; if one fails, continue with the others."""
    from bench.data.datasets import get_dataset, load
    from bench.data.splits import map_images

    for name in names:
        get_dataset(name)

    def fetch(name: str, progress: Progress) -> tuple[dict[str, Any], str]:
        loaded = map_images(load(name, progress=progress), progress)
        train, test, path = len(loaded.train), len(loaded.test), loaded.paths[0]
        row = {"name": name, "revision": loaded.revision, "route": loaded.route, "path": str(path)}
        line = f"{name}: {train:,} + {test:,} records, {loaded.revision}, from {loaded.route}, in {path}"
        return {**row, "train_records": train, "test_records": test}, line

    fetch_each(names, fetch, "datasets", quiet, json_)


def fetch_each(
    names: list[str], fetch: Callable[[str, Progress], tuple[dict[str, Any], str]], kind: str, quiet: bool, json_: bool
) -> None:
    """Call `fetch` for each name; print its line, or all rows under `kind` as JSON. Exit with 1 if any failed."""
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    for name in dict.fromkeys(names):
        try:
            with progress_display(quiet) as progress:
                row, line = fetch(name, progress)
        except BenchError as error:
            failures.append(name)
            echo(f"error: {error}", err=True)
            continue
        rows.append(row)
        if not json_:
            echo(line)
    if json_:
        print_json({kind: rows, "failed": failures})
    if failures:
        raise typer.Exit(1)


@app.command()
def verify(name: Name, quiet: Quiet = False) -> None:
    """Compare every byte of a stored data set with its manifest; move damaged files aside."""
    from bench.data.datasets import verify_stored

    with progress_display(quiet) as progress:
        compared = verify_stored(name, progress)
    echo(f"{name}: {compared} is unchanged")


@app.command()
def path(name: Name) -> None:
    """Print the path of a data set, whether it is stored or not."""
    from bench.data.datasets import data_root, get_dataset

    spec = get_dataset(name)
    echo(spec.source if name.startswith("folder:") else data_root() / spec.store)


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


@contextmanager
def progress_display(quiet: bool) -> Iterator[Progress]:
    """Open a progress display: a bar with an estimate on a terminal, otherwise a line per step."""
    if quiet:
        yield lambda what, done, total: None
        return
    last = ""
    if not sys.stderr.isatty():

        def line(what: str, done: int, total: int | None) -> None:
            nonlocal last
            if what != last:
                last = what
                echo(what, err=True)

        yield line
        return
    text = rich.TextColumn("{task.description}", markup=False)
    columns = (rich.SpinnerColumn(), text, rich.BarColumn(), rich.DownloadColumn(), rich.TimeElapsedColumn(),
               rich.TimeRemainingColumn())  # fmt: skip
    with rich.Progress(*columns, console=make_console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)

        def bar(what: str, done: int, total: int | None) -> None:
            if bars.tasks[0].description != what:
                bars.reset(task, total=total, description=what)
            bars.update(task, completed=done, total=total)

        yield bar
