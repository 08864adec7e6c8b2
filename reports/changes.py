"""What changed between two boards, each as its leaderboard.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping

from bench.core.errors import BenchError
from bench.results.text import Toward, epsilon_text, markdown_table

Line = Mapping[str, str]
Rows = Mapping[tuple[str, ...], Line]
NAMED = ("dataset", "unit", "method", "asked", "basis", "target_adjacency", "preset", "delta", "noise", "config")
"""Columns that identify a row."""
SHOWN = ("dataset", "unit", "method", "target", "preset")
FIGURES = ("accuracy", "claimed", "proven", "replace-one", "audited", "claim", "rank", "seeds")


def changes(before: str, after: str) -> str:
    """Return the rows added to, removed from and changed in the board `after`, as Markdown.

    Raises :class:`BenchError` if either is not the CSV of a board.
    """
    old, new = _rows(before), _rows(after)
    both = [name for name in new if name in old]
    differ = [
        (*_shown(new[name]), what, was, now)
        for name in both
        for what, was, now in zip(FIGURES, _figures(old[name]), _figures(new[name]), strict=True)
        if was != now
    ]
    added, removed = ([rows[name] for name in rows if name not in others] for rows, others in ((new, old), (old, new)))
    parts = [
        f"{len(both)} rows are on both boards.\n",
        _table("Added", (*SHOWN, *FIGURES), [(*_shown(row), *_figures(row)) for row in added]),
        _table("Removed", (*SHOWN, *FIGURES), [(*_shown(row), *_figures(row)) for row in removed]),
        _table("Changed", (*SHOWN, "figure", "before", "after"), differ),
    ]
    return "\n".join(filter(None, parts))


def _rows(text: str) -> Rows:
    lines = list(csv.DictReader(io.StringIO(text)))
    lacks = [name for name in (*NAMED, "accuracy", "proven", "place", "seeds") if lines and name not in lines[0]]
    if not lines or lacks:
        raise BenchError(f"this is not a leaderboard.csv: it lacks {', '.join(lacks) or 'rows'}.")
    return {tuple(line[name] for name in NAMED): line for line in lines}


def _shown(row: Line) -> tuple[str, ...]:
    target = f"{row['asked']} ({row['basis']})" if row["asked"] else "–"
    return row["dataset"], row["unit"], row["method"], target, row["preset"]


_FIGURES: tuple[tuple[str, Toward], ...] = (
    ("claimed", "nearest"), ("proven", "up"), ("replace_one", "up"), ("audited", "down"),
)  # fmt: skip


def _figures(row: Line) -> tuple[str, ...]:
    first, last = row["place"], row.get("place_last", "")
    return (
        f"{float(row['accuracy']):.2f}",
        *(epsilon_text(float(row[name]) if row.get(name) else None, toward) for name, toward in _FIGURES),
        row.get("claim", "") or "–",
        "–" if not first else first if last in ("", first) else f"{first}-{last}",
        str(len(row["seeds"].split(";")) + int(row.get("collapsed") or 0)),
    )


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = sorted(rows)
    return f"## {title}: {len(lines)}\n\n{markdown_table(columns, lines)}" if lines else ""
