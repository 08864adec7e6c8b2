"""The README's table: the methods of one ranking at two budgets, by their ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bench.core.errors import BenchError
from bench.reports.board_row import BoardRow
from bench.reports.leaderboard import Board, cells_of
from bench.reports.order import BUDGETS as BANDS
from bench.reports.order import LEGEND
from bench.reports.ranks import resolution
from bench.results.text import markdown_table, md

BEGIN, END = "<!-- board -->", "<!-- /board -->"
"""Marks around the table in the README."""

BUDGETS = (1.0, 10.0)
"""Bands of proven epsilon in the table."""

SHOWN = ("accuracy", "proven, replace-one", "claim")
MOST = 15
"""Number of methods in the table; the board lists all."""


def summary(board: Board, dataset: str = "mnist", unit: str = "record") -> str:
    """Return the best methods of `dataset` and `unit` within :data:`BUDGETS` as Markdown, by rank at the first.

    A method's row is the one that holds its rank in the band, or else its most accurate. Raise :class:`BenchError` if
    there are no rows.
    """
    rows = board.tables().get((dataset, unit))
    if not rows:
        have = ", ".join(f"{name} ({of})" for name, of in board.tables()) or "none"
        raise BenchError(f"the board has no ranking of {dataset!r}, unit {unit!r}; it has: {have}.")
    best: dict[str, dict[float | None, BoardRow]] = {}
    for row in rows:  # within a band, the ranked row of a method comes first
        if row.budget is None or row.budget in BUDGETS:
            best.setdefault(row.method, {}).setdefault(row.budget, row)

    def key(method: str) -> list[float]:
        return [value for budget in BUDGETS for value in _standing(best[method].get(budget))]

    order = sorted((method for method in best if not best[method].keys().isdisjoint(BUDGETS)), key=key)
    columns = [name for budget in BUDGETS for name in (_rank_title(budget), "accuracy", "proven", "claim", "audited")]
    lines = ([method, *_cells(best[method])] for method in order[:MOST])
    parts = [markdown_table(["method", *columns], lines)]
    for budget in BUDGETS:
        if said := resolution(row for row in rows if row.budget == budget):
            parts.append(f"Proven epsilon up to {budget:g}: {said[0].lower()}{said[1:]}")
    parts.append(LEGEND)
    if without := [row for row in rows if row.budget is None]:
        first = max(without, key=lambda row: row.accuracy)
        parts.append(f"Without privacy: {md(first.method)}, {cells_of(first)['accuracy']}.")
    further = dict.fromkeys([*order[MOST:], *(row.method for row in rows if row.method not in order[:MOST])])
    if further:
        parts.append(f"Further methods on the board: {', '.join(map(md, further))}.")
    return parts[0] + "".join(f"\n{part}\n" for part in parts[1:])


def _rank_title(budget: float) -> str:
    lower = max((other for other in BANDS if other < budget), default=0.0)
    return f"rank, {lower:g} < ε ≤ {budget:g}" if lower else f"rank, ε ≤ {budget:g}"


def _standing(row: BoardRow | None) -> tuple[float, float]:
    if row is None:
        return math.inf, 0.0
    return math.inf if row.place is None else row.place, -row.accuracy


def _cells(rows: dict[float | None, BoardRow]) -> Iterator[str]:
    for budget in BUDGETS:
        row = rows.get(budget)
        texts = {} if row is None else cells_of(row)
        yield texts.get("rank", "–")
        for name in SHOWN:
            text = texts.get(name, "–")
            yield f"**{text}**" if row is not None and name == "claim" and row.claim.bad else text
        yield "–" if row is None else row.audited_against


def put(text: str, page: str) -> str:
    """Return `page` with `text` between its marks; raise :class:`BenchError` unless it has one of each, in order."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in tail:
        raise BenchError(f"the page has no section for the board: it needs one line {BEGIN} and, below it, one {END}.")
    return f"{head}{BEGIN}\n{text}{END}{tail}"
