"""Two rows of the board side by side: settings, epsilons, accuracy, and the difference with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.errors import BenchError, UnknownNameError
from bench.core.lazy_libraries import pandas
from bench.core.margins import covered
from bench.metrics.ranking import difference
from bench.reports.board_row import BoardRow
from bench.reports.leaderboard import Board, cells_of
from bench.results.text import epsilon_text


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows `one` and `other` of the board. Accuracies and the interval `low` to `high` of their difference are in %."""

    one: BoardRow
    other: BoardRow
    difference: float
    """The accuracy of `one` minus that of `other`, in points: on the same test records where `paired` is not 0."""
    paired: int
    """Number of test records on which the answers of both rows are known, 0 where the interval does not pair them."""
    low: float | None
    """Lower end of the 95% interval of `one`'s accuracy minus `other`'s; None on different data, or with one seed."""
    high: float | None
    lines: tuple[tuple[str, str, str], ...]
    """What is compared, and its value in either row."""
    notes: tuple[str, ...] = ()
    """Why a row with a larger proven epsilon than the limit stands for its method."""

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "keys": [list(self.one.keys), list(self.other.keys)], "difference": self.difference,
            "paired": self.paired, "low": self.low, "high": self.high,
            "lines": [{"what": what, "one": one, "other": other} for what, one, other in self.lines],
            "notes": list(self.notes),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        head = ["", self.one.method, self.other.method]
        return str(pandas.DataFrame(self.lines, columns=head).to_html(index=False))


LIMIT = 10.0
"""Proven epsilon up to which methods are compared by default."""
COMPARED = (
    "target epsilon (basis)", "claimed", "proven", "proven, replace-one", "claim", "audited", "accuracy",
    "whole test set", "drop", "seeds", "public data", "preset", "time", "rank",
)  # fmt: skip


def compare(
    board: Board, one: str, other: str, dataset: str = "mnist", unit: str = "record",
    eps: float | None = None,
) -> Comparison:  # fmt: skip
    """Return the comparison of two rows, each named by a record's key or its prefix, or by a method.

    Two methods are compared on `dataset` at `eps`: by their most accurate rows with at most that proven epsilon for
    replace-one neighbours. Raise :class:`BenchError` if there is no such row. Without `eps` the limit is
    :data:`LIMIT`, and a method without such a row is compared by the one whose target epsilon is nearest to it.
    """
    rows = [_row(board, name, dataset, unit, eps) for name in (one, other)]
    notes = tuple(
        f"{name} proves no epsilon up to {LIMIT:g} on {row.dataset}: its row with the nearest target is shown."
        for name, row in zip((one, other), rows, strict=True)
        if row.method == name and eps is None and not covered(row.replace_one, LIMIT)
    )
    first, second = rows
    if first is second:
        raise BenchError(f"{one} and {other} select the same row of the board. Give two different rows.")
    low = high = None
    apart, paired = first.accuracy - second.accuracy, 0
    mine, theirs = first.contender, second.contender
    if (first.dataset, first.unit) == (second.dataset, second.unit) and mine is not None and theirs is not None:
        found = difference(mine, theirs)
        apart, paired = 100 * found.mean, found.paired
        low, high = apart - 100 * found.half, apart + 100 * found.half
    cells = [cells_of(row) for row in rows]
    lines = [("data set", first.dataset, second.dataset), ("unit", first.unit, second.unit)]
    lines += [(name, cells[0][name], cells[1][name]) for name in COMPARED]
    lines += _settings(first.records[0].config, second.records[0].config)
    shown = tuple(line for line in lines if set(line[1:]) != {"–"})
    return Comparison(first, second, apart, paired, low, high, shown, notes)


def _settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> Sequence[tuple[str, str, str]]:
    """Return the settings that differ; "–" if a method lacks the setting."""
    names = dict.fromkeys([*one, *other])
    texts = [(name, str(one.get(name, "–")), str(other.get(name, "–"))) for name in names]
    return [line for line in texts if line[1] != line[2]]


def _row(board: Board, name: str, dataset: str, unit: str, eps: float | None) -> BoardRow:
    found = [row for row in board.rows if any(key.startswith(name) for key in row.keys)]
    exact = [row for row in board.rows if row.method == name]
    if not exact:
        if len(found) == 1:
            return found[0]
        if found:
            keys = ", ".join(row.keys[0] for row in found[:4])
            raise BenchError(f"{len(found)} rows begin with {name!r}: {keys}. Give a longer prefix.")
        more = "Run directories may follow the names; `runs leaderboards` means your rows and the published ones."
        raise UnknownNameError("method or record", name, dict.fromkeys(row.method for row in board.rows), more)
    here = [row for row in exact if (row.dataset, row.unit) == (dataset, unit)]
    if not here:
        places = ", ".join(dict.fromkeys(f"{row.dataset} ({row.unit})" for row in exact))
        raise BenchError(f"{name} has no row on {dataset}, unit {unit}. It has rows on: {places}.")
    within = [row for row in here if covered(row.replace_one, LIMIT if eps is None else eps)]
    if within:
        return max(within, key=lambda row: (row.place is not None, row.accuracy))
    if eps is not None:
        least = epsilon_text(min(row.replace_one for row in here), "up")
        raise BenchError(f"{name} proves at least {least} on {dataset}: give a larger --eps, or a record's key.")
    return min(here, key=lambda row: (abs((row.asked or 0.0) - LIMIT), len(row.seeds) < 3, -row.accuracy))
