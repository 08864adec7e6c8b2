"""The short table that README shows: one ranking of the board, its three epsilons and its accuracies."""

from __future__ import annotations

from bench.core.errors import BenchError
from bench.results.text import markdown_table
from reports.leaderboard import Board, BoardRow, cells_of

BEGIN, END = "<!-- board -->", "<!-- /board -->"
"""What README has before and after the table."""

COLUMNS = ("method", "asked", "claimed", "proven", "is the claim covered?", "audited", "accuracy", "seeds")


def summary(board: Board, dataset: str = "mnist", unit: str = "record") -> str:
    """Return the ranking of `dataset` and `unit` as a Markdown table of :data:`COLUMNS`.

    Raises :class:`BenchError` where the board has no such ranking.
    """
    rows = board.tables().get((dataset, unit))
    if not rows:
        have = ", ".join(f"{name} ({of})" for name, of in board.tables()) or "none"
        raise BenchError(f"the board has no ranking of {dataset!r}, unit {unit!r}; it has: {have}.")
    return "\n".join(markdown_table(COLUMNS, map(_cells, rows))) + "\n"


def _cells(row: BoardRow) -> tuple[str, ...]:
    method, asked, claimed, proven, audited, accuracy, _, seeds, *_ = cells_of(row)
    return (method, asked, claimed, proven, _covered(row), audited, accuracy, seeds)


def _covered(row: BoardRow) -> str:
    if row.asked is None:
        return "nothing is claimed"
    return "yes" if row.proven <= row.claimed else "**no**"


def put(text: str, page: str) -> str:
    """Return `page` with `text` between its two marks.

    Raises :class:`BenchError` where it has not exactly one of each, in order.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in tail:
        raise BenchError(f"the page has no place for the board: it needs one line {BEGIN} and, below it, one {END}.")
    return f"{head}{BEGIN}\n{text}{END}{tail}"
