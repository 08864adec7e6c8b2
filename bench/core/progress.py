"""Progress of a grid: a live tree of cells and stages on a terminal, plain lines in a log."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from bench.core.lazy_libraries import progress as rich_progress
from bench.core.lazy_libraries import rich
from bench.core.printable import printable

T = TypeVar("T")


def open_streams() -> None:
    """Make standard output and error accept any text: replace closed streams, and print ``?`` for unencodable text."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def close_stdout() -> None:
    """Discard the rest of standard output, which cannot be written; otherwise Python would fail when it exits."""
    with suppress(OSError, ValueError), open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def make_console(*, stderr: bool = False) -> rich.console.Console:
    """Return a console, with 160 columns if there is neither a terminal nor $COLUMNS."""

    class Quiet(rich.console.Console):
        """A console that lets :func:`bench.cli.main.main` handle a closed pipe, for instance from `head`."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 160
    return Quiet(stderr=stderr, width=width, highlight=False)


def echo(text: object, *, err: bool = False) -> None:
    """Print a sanitised line to standard output or error; see :func:`bench.core.printable.printable`."""
    print(printable(str(text)), file=sys.stderr if err else sys.stdout, flush=err)


def print_text(text: str) -> None:
    """Print sanitised text to standard output immediately, without adding a line break."""
    print(printable(text), end="", flush=True)


NARROW = 100
"""On narrower terminals, a table that does not fit without folding is printed as blocks."""


def print_table(
    title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, folded: bool = False
) -> None:  # fmt: skip
    """Print a table, or "column: value" blocks if a word would break; texts are not interpreted as markup.

    On narrow terminals, blocks also replace tables of several columns that would fold, unless `folded` allows it.
    """
    if not rows:
        echo(f"{title}: none")
        return
    console = make_console()
    head, *cells = [[printable(str(cell)) for cell in row] for row in (columns, *rows)]
    widths = _column_widths([head, *cells], console.width, folded)
    echo(title)
    if widths is None:
        for row in cells:
            if len(row) == 2:
                print_fields(": ".join(row))
            else:
                first = f"{head[0]}: {row[0]}" if head[0] else row[0]
                print_fields(first, zip(head[1:], row[1:], strict=True))
        return
    table = rich.table.Table()
    for column, width in zip(head, widths, strict=True):
        table.add_column(rich.text.Text(column), width=width)
    for row in cells:
        table.add_row(*map(rich.text.Text, row))
    console.print(table)


def fits_unfolded(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a table fits the console with each cell, except for headers, on one line."""
    words = [max(map(rich.cells.cell_len, ["", *column.split()])) for column in columns]
    texts = [max(map(rich.cells.cell_len, column), default=0) for column in zip(*rows, strict=True)]
    return sum(map(max, words, texts)) <= make_console().width - 3 * len(columns) - 1


def _column_widths(rows: Sequence[Sequence[str]], width: int, folded: bool) -> list[int] | None:
    """Return widths that break no word; None if there are none, or for three columns that would fold if not `folded`.

    Only narrow terminals need `folded`.
    """
    cell_len = rich.cells.cell_len
    room = width - 3 * len(rows[0]) - 1
    by_column = list(zip(*rows, strict=True))
    least = [max(cell_len(word) for text in texts for word in ["", *text.split()]) for texts in by_column]
    longest = [max(cell_len(line) for text in texts for line in ["", *text.splitlines()]) for texts in by_column]
    cells = [max(cell_len(line) for text in texts[1:] for line in ["", *text.splitlines()]) for texts in by_column]
    blocks = width < NARROW and len(least) > 2 and not folded
    if sum(least) > room or (blocks and sum(map(max, least, cells)) > room):
        return None  # headers may wrap
    widths = [max(1, low, min(high, room)) for low, high in zip(least, longest, strict=True)]
    while sum(widths) > room:  # shrink the column that is widest relative to its longest word, headers first
        widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i] > cells[i], widths[i]))
        widths[widest] -= 1
    return widths


def print_fields(head: str, fields: Iterable[tuple[str, str]] = ()) -> None:
    """Print `head`, and below it a line "name: value" for each non-empty field, folded between words."""
    width = make_console().width
    fold = textwrap.TextWrapper(width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    for line in [head, *(f"  {name}: {value}" for name, value in fields if value not in ("", "–"))]:
        echo(fold.fill(line))


def print_json(value: Any) -> None:
    """Print `value` as JSON."""
    print(json.dumps(value, indent=1, default=str))


class Stage:
    """A running stage of known length, which calls `advanced` with each number of steps done."""

    def __init__(self, advanced: Callable[[int], object]) -> None:
        self._advanced = advanced

    def advance(self, steps: int = 1) -> None:
        """Mark `steps` more steps as done."""
        self._advanced(steps)


SILENT = Stage(lambda steps: None)
"""A stage that shows nothing."""


class Progress:
    """Silent base class, used by tests and checks."""

    @contextmanager
    def stage(self, name: str, total: int, seconds: float = math.inf) -> Iterator[Stage]:
        """Open a stage of `total` steps below the current stage; it ends after `seconds` at the latest."""
        yield SILENT

    def each(self, name: str, items: Collection[T]) -> Iterator[T]:
        """Yield `items` in a stage that advances after each."""
        with self.stage(name, len(items)) as stage:
            for item in items:
                yield item
                stage.advance()

    def say(self, text: str) -> None:
        """Print a permanent line."""

    def doing(self, rows: Sequence[tuple[str, int, int]]) -> None:
        """Show the state of other processes as (text, steps done, total steps)."""


class LineProgress(Progress):
    """Log the start of outermost stages, the end of each stage, and its state after 5 s and every `every` seconds."""

    def __init__(self, every: float = 15.0) -> None:
        self._every, self._depth = every, 0

    @contextmanager
    def stage(self, name: str, total: int, seconds: float = math.inf) -> Iterator[Stage]:
        """Open a stage; see :meth:`Progress.stage`."""
        if self._depth == 0:
            self.say(f"{name}: 0/{total}")
        self._depth += 1
        running = _Line(self, name, total, self._every, seconds)
        try:
            yield Stage(running.advance)
        finally:
            self._depth -= 1
        self.say(f"{'  ' * self._depth}{name}: done in {time.monotonic() - running.begin:.1f} s")

    def say(self, text: str) -> None:
        """Print a line to standard error."""
        echo(text, err=True)


class _Line:
    def __init__(self, parent: LineProgress, name: str, total: int, every: float, longest: float) -> None:
        self.begin = time.monotonic()
        self._longest = longest
        self._last = self.begin - max(0.0, every - 5)
        self._parent, self._name, self._total, self._every, self._done = parent, name, total, every, 0
        self._since: tuple[float, int] | None = None

    def advance(self, steps: int) -> None:
        self._done += steps
        now = time.monotonic()
        # Exclude the first step, which includes one-time work, from the rate.
        self._since = self._since or (now, self._done)
        if now - self._last >= self._every and 0 < self._done < self._total:
            self._last = now
            seconds, steps, left = now - self._since[0], self._done - self._since[1], ""
            if steps and seconds > 2:
                expected = seconds / steps * (self._total - self._done)
                left = f", about {min(expected, max(0.0, self.begin + self._longest - now)):.0f} s left"
                # The next rate starts here: later steps may reuse what earlier ones put in the cache.
                self._since = now, self._done
            self._parent.say(f"  {self._name}: {self._done}/{self._total}{left}")


class TreeProgress(Progress):
    """A live tree of bars with time estimates, one bar per open stage."""

    def __init__(self, console: rich.console.Console) -> None:
        self._depth = 0
        self._others: dict[str, rich_progress.TaskID] = {}
        self.bars = rich_progress.Progress(
            rich_progress.SpinnerColumn(),
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(bar_width=24),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TextColumn("left"),
            rich_progress.TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )

    @contextmanager
    def stage(self, name: str, total: int, seconds: float = math.inf) -> Iterator[Stage]:
        """Open a stage; see :meth:`Progress.stage`."""
        limit = f", {seconds:.0f} s at most" if math.isfinite(seconds) else ""
        task = self.bars.add_task("  " * self._depth + printable(name) + limit, total=max(total, 1))
        self._depth += 1
        try:
            yield Stage(partial(self.bars.advance, task))
        finally:
            self._depth -= 1
            self.bars.remove_task(task)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.bars.console.print(printable(text), markup=False, emoji=False)

    def doing(self, rows: Sequence[tuple[str, int, int]]) -> None:
        """Show a bar for each of `rows`; see :meth:`Progress.doing`."""
        for gone in set(self._others) - {text for text, _, _ in rows}:
            self.bars.remove_task(self._others.pop(gone))
        for text, done, total in rows:
            if text not in self._others:
                self._others[text] = self.bars.add_task("  " * self._depth + printable(text), total=max(total, 1))
            self.bars.update(self._others[text], completed=done, total=max(total, 1))


@contextmanager
def open_progress(*, quiet: bool = False) -> Iterator[Progress]:
    """Open a tree on a terminal, log lines elsewhere, or no display if `quiet`."""
    if quiet:
        yield Progress()
    elif sys.stderr.isatty():
        tree = TreeProgress(make_console(stderr=True))
        with tree.bars:
            yield tree
    else:
        yield LineProgress()


@contextmanager
def starting(*, quiet: bool = False) -> Iterator[None]:
    """Show that a command has started while its imports, which take seconds, run."""
    with open_progress(quiet=quiet) as progress, progress.stage("starting", 1):
        yield
