"""The README's table: the methods of one ranking at two budgets."""

from __future__ import annotations

from collections.abc import Iterator

from bench.core.errors import BenchError
from bench.reports.leaderboard import Board, BoardRow, cells_of
from bench.results.text import markdown_table, md

BEGIN, END = "<!-- board -->", "<!-- /board -->"
"""Marks around the table in the README."""

TARGETS = (1.0, 10.0)
SHOWN = ("accuracy", "proven", "audited", "claim")
MOST = 15
"""Number of methods in the table; the board lists all."""


def summary(board: Board, dataset: str = "mnist", unit: str = "record") -> str:
    """Return the best methods of `dataset` and `unit` at :data:`TARGETS` as Markdown, by accuracy at the last.

    Methods with a row at each target, or with one without a target, come first. If a method has several rows at a
    target, the table shows the most accurate. Raise :class:`BenchError` if there are no rows.
    """
    rows = board.tables().get((dataset, unit))
    if not rows:
        have = ", ".join(f"{name} ({of})" for name, of in board.tables()) or "none"
        raise BenchError(f"the board has no ranking of {dataset!r}, unit {unit!r}; it has: {have}.")
    best: dict[str, dict[float | None, BoardRow]] = {}
    for row in sorted(rows, key=lambda row: row.accuracy):
        if row.asked is None or row.asked in TARGETS:
            best.setdefault(row.method, {})[row.asked] = row

    def place(method: str) -> tuple[bool, list[float]]:
        found = [_accuracy(best[method], target) for target in reversed(TARGETS)]
        return min(found) < 0, [-accuracy for accuracy in found]

    order = sorted(best, key=place)
    columns = [name for target in TARGETS for name in (f"accuracy at {target:g}", *SHOWN[1:])]
    table = markdown_table(["method", *columns], ([method, *_cells(best[method])] for method in order[:MOST]))
    return table + (f"\nFurther methods on the board: {', '.join(map(md, order[MOST:]))}.\n" if order[MOST:] else "")


def _accuracy(rows: dict[float | None, BoardRow], target: float) -> float:
    row = rows.get(target) or rows.get(None)
    return row.accuracy if row else -1.0


def _cells(rows: dict[float | None, BoardRow]) -> Iterator[str]:
    for target in TARGETS:
        row = rows.get(target) or rows.get(None)
        for name in SHOWN:
            text = "–" if row is None else cells_of(row)[name]
            yield f"**{text}**" if row is not None and name == "claim" and row.claim.bad else text


def put(text: str, page: str) -> str:
    """Return `page` with `text` between its marks; raise :class:`BenchError` unless it has one of each, in order."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in tail:
        raise BenchError(f"the page has no section for the board: it needs one line {BEGIN} and, below it, one {END}.")
    return f"{head}{BEGIN}\n{text}{END}{tail}"
