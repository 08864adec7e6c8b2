"""``bench data``: which data sets there are, and how they come here."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.core.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.data.spec import DatasetSpec, Progress

app = typer.Typer(
    name="data",
    help="List, fetch and verify data sets. They lie under $BENCH_DATA, or else in the user's cache folder.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Names = Annotated[list[str], typer.Argument(help="Data sets by name; folder:PATH for your own.", show_default=False)]
Name = Annotated[str, typer.Argument(help="A data set by name; folder:PATH for your own.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]


@app.command(name="list")
def list_(json_: Json = False) -> None:
    """List every data set: classes, shape, records, whether it is here, its licence and source."""
    from bench.data.datasets import PLUGIN_ERRORS, all_datasets, data_root

    root = data_root()
    rows = [_row(spec, root) for spec in all_datasets().values()]
    if json_:
        print(json.dumps({"root": str(root), "datasets": rows, "broken_plugins": PLUGIN_ERRORS}, indent=1))
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, right in (("name", 0), ("classes", 1), ("shape", 0), ("train", 1), ("test", 1), ("here", 1)):
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    table.add_column("revision", no_wrap=True)
    table.add_column("licence", overflow="fold")
    for row in rows:
        counts = [f"{n:,}" if n is not None else "?" for n in (row["train_records"], row["test_records"])]
        shape = "x".join(map(str, row["shape"]))
        here = _size(row["bytes_here"]) if row["here"] else "no"
        revision = row["revision"] or "not pinned"
        table.add_row(row["name"], str(row["classes"]), shape, *counts, here, revision, row["licence"])
    console = _console()
    console.print(table)
    console.print(f"Under {root}. Any folder of images: folder:PATH. Fetch one with: python -m bench data get NAME")
    for name, reason in PLUGIN_ERRORS.items():
        console.print(f"plug-in {name} could not be used: {reason}", markup=False)


def _row(spec: DatasetSpec, root: Path) -> dict[str, Any]:
    folder = root / spec.store
    here = (folder / "manifest.json").is_file() or (root / "raw" / spec.store).is_dir()
    return {
        "name": spec.name,
        "classes": spec.classes,
        "shape": list(spec.shape),
        "train_records": spec.train_records,
        "test_records": spec.test_records,
        "here": here,
        "bytes_here": sum(path.stat().st_size for path in folder.glob("*") if path.is_file()) if here else 0,
        "download_bytes": spec.download_bytes,
        "revision": spec.revision,
        "split_rule": spec.split_rule,
        "licence": spec.licence,
        "source": spec.source,
        "citation": spec.citation,
        "resolution": spec.resolution,
        "labelled_source": None
        if spec.labelled is None
        else {"name": spec.labelled.name, "records": spec.labelled.records, "overlap": spec.labelled.overlap},
    }


@app.command()
def get(names: Names, quiet: Quiet = False, json_: Json = False) -> None:
    """Fetch data sets that are not here; one that fails does not stop the others."""
    from bench.data.datasets import get_dataset, load

    # A misspelt name is noticed before the first byte is fetched.
    for name in names:
        get_dataset(name)
    failures: list[str] = []
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(names):
        try:
            with progress_display(quiet) as progress:
                loaded = load(name, progress=progress)
        except BenchError as error:
            failures.append(name)
            print(f"error: {error}", file=sys.stderr)
            continue
        row = {"name": name, "revision": loaded.revision, "route": loaded.route, "path": str(loaded.paths[0])}
        rows.append({**row, "train_records": len(loaded.train), "test_records": len(loaded.test)})
        if not json_:
            counted = f"{len(loaded.train):,} + {len(loaded.test):,} records"
            print(f"{name}: {counted}, {loaded.revision}, from {loaded.route}, in {loaded.paths[0]}")
    if json_:
        print(json.dumps({"datasets": rows, "failed": failures}, indent=1))
    if failures:
        raise typer.Exit(1)


@app.command()
def verify(name: Name, quiet: Quiet = False) -> None:
    """Read every byte of a stored data set and compare it with its manifest; a damaged file is set aside."""
    from bench.data.array_store import DamagedError, locked, set_aside, verify_store
    from bench.data.datasets import data_root, get_dataset

    spec, root = get_dataset(name), data_root()
    if name.startswith("folder:"):
        raise BenchError(f"{name} is read from its own files and not stored: there is nothing to verify it against.")
    with progress_display(quiet) as progress:
        try:
            verify_store(root, spec.store, progress)
        except DamagedError as error:
            with locked(root, spec.store, progress):
                target = set_aside(root, spec.store, error)
            raise BenchError(
                f"{error} It was set aside as {target}. Fetch it anew with: python -m bench data get {name}"
            ) from error
    print(f"{name}: every byte under {root / spec.store} is as it was stored")


@app.command()
def path(name: Name) -> None:
    """Print where a data set lies, or would lie."""
    from bench.data.datasets import data_root, get_dataset

    spec = get_dataset(name)
    print(spec.source if name.startswith("folder:") else data_root() / spec.store)


def _console() -> Any:
    from bench.core.progress import make_console

    return make_console()


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


@contextmanager
def progress_display(quiet: bool) -> Iterator[Progress]:
    """Give a progress hook: a bar with an estimate where a terminal is, else a line whenever the work changes."""
    if quiet:
        yield lambda what, done, total: None
        return
    if not sys.stderr.isatty():
        last = [""]

        def line(what: str, done: int, total: int | None) -> None:
            if what != last[0]:
                last[0] = what
                print(what, file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Bars(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bars:
        task = bars.add_task("", total=None)

        def bar(what: str, done: int, total: int | None) -> None:
            nonlocal task
            if bars.tasks[0].description != what:
                bars.remove_task(task)
                task = bars.add_task(what, total=total)
            bars.update(task, completed=done, total=total)

        yield bar
