"""The first table of the site: for each ranking with rows of ours, the best row within each of a few budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.site.rows import Ranking, RowView

BUDGETS = (1.0, 3.0, 10.0)
"""Proven epsilons that most papers and their readers ask for."""


@dataclass(frozen=True, slots=True)
class Best:
    """The row that stands in a cell; `small` is what else has to be known to compare it."""

    row: RowView
    small: str


@dataclass(frozen=True, slots=True)
class Line:
    """A ranking in one line: its best row within each of :data:`BUDGETS`, and the best one without privacy."""

    ranking: Ranking
    cells: tuple[Best | None, ...]
    reported: int


def glance(every: Iterable[Ranking]) -> list[Line]:
    """Return a line for each ranking that has rows of ours, in their order."""
    return [_line(ranking) for ranking in every if ranking.ours]


def _line(ranking: Ranking) -> Line:
    # A row whose audit is above what is proven has a bug somewhere: it is nobody's best.
    ours = [row for row in ranking.rows if row.ours and not (row.audited.sort or 0.0) > _proven(row)]
    return Line(
        ranking,
        (
            *(_best([row for row in ours if _proven(row) <= budget]) for budget in BUDGETS),
            _best([row for row in ours if row.claimed.sort == math.inf]),
        ),
        len(ranking.rows) - ranking.ours,
    )


def _proven(row: RowView) -> float:
    return math.inf if row.proven.sort is None else row.proven.sort


def _best(rows: Sequence[RowView]) -> Best | None:
    """Return the row of the highest accuracy; of equal ones that of the lowest proven epsilon, then by name."""
    if not rows:
        return None
    row = min(rows, key=lambda row: (-(row.accuracy.sort or 0.0), _proven(row), row.id))
    seeds = "1 seed" if len(row.seeds) == 1 else f"{len(row.seeds)} seeds"
    told = [seeds] if math.isinf(_proven(row)) else [f"proven {row.proven.text}", seeds]
    public = "no public data" if row.public == "none" else f"public: {row.public}"
    return Best(row, ", ".join([*told, public]))
