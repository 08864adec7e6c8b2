"""The README's table: one ranking of the board with its three epsilons and accuracies."""

from __future__ import annotations

from bench.core.errors import BenchError
from bench.results.text import markdown_table
from reports.leaderboard import Board, BoardRow, cells_of

BEGIN, END = "<!-- board -->", "<!-- /board -->"
"""Marks around the table in the README."""

COLUMNS = (
    "method", "target epsilon (basis)", "claimed", "proven", "proven, replace-one", "does the claim hold?", "audited",
    "accuracy", "seeds",
)  # fmt: skip


def summary(board: Board, dataset: str = "mnist", unit: str = "record") -> str:
    """Return the ranking of `dataset` and `unit` as Markdown; raise :class:`BenchError` if the board has none."""
    rows = board.tables().get((dataset, unit))
    if not rows:
        have = ", ".join(f"{name} ({of})" for name, of in board.tables()) or "none"
        raise BenchError(f"the board has no ranking of {dataset!r}, unit {unit!r}; it has: {have}.")
    return markdown_table(COLUMNS, map(_cells, rows))


def _cells(row: BoardRow) -> tuple[str, ...]:
    method, asked, claimed, proven, replaced, audited, accuracy, _, seeds, *_ = cells_of(row)
    return (method, asked, claimed, proven, replaced, _covered(row), audited, accuracy, seeds)


def _covered(row: BoardRow) -> str:
    if row.asked is None:
        return "nothing is claimed"
    if row.mark:
        return f"**{row.mark}**"
    return "yes" if row.proven <= row.claimed else "**no**"


def put(text: str, page: str) -> str:
    """Return `page` with `text` between its marks; raise :class:`BenchError` without exactly one of each, in order."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in tail:
        raise BenchError(f"the page has no place for the board: it needs one line {BEGIN} and, below it, one {END}.")
    return f"{head}{BEGIN}\n{text}{END}{tail}"
