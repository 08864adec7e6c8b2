"""The start page: the answer in a sentence, the best row of each band, and the claims that fail."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from bench.core.grouping import grouped
from bench.core.margins import covered
from bench.reports.claims import Claim
from bench.reports.order import BUDGETS, FEWEST
from bench.reports.site.rows import GROUPS, Ranking, RowView


def answer(every: Iterable[Ranking]) -> tuple[RowView, str, str] | None:
    """Return the first ranking's best row in its lowest band, and the sentence before and after its name.

    The sentence also names the methods of the same rank, and the most accurate row whose epsilon is for add-remove
    neighbours. None if no row of ours has a proven epsilon within the budgets.
    """
    for ranking, cells in glance(every):
        for budget, row in zip(BUDGETS, cells, strict=False):
            if row is None:
                continue
            data = ranking.title.upper() if ranking.title == "mnist" else ranking.title
            equal = [
                other.name for other in ranking.rows
                if other.ours and other.group == row.group and other.place == row.place != "–" and other.id != row.id
            ]  # fmt: skip
            looser = [
                other for other in ranking.rows
                if other.ours and other.ran >= FEWEST and other.point.ranked and "add-remove" in other.proven.text
                and covered(other.proven.sort or 0.0, budget)
            ]  # fmt: skip
            said = f"{row.accuracy.text}% for replace-one neighbours"
            other = max(looser, key=lambda other: other.point.accuracy, default=row)
            if other.point.accuracy > row.point.accuracy:
                named = f"{other.name}: " * (other.name != row.name)
                said += f" ({named}{other.accuracy.text}% for add-remove)"
            audited, missing = row.audited.text.partition(" of ")[0], row.audited.sort is None
            said += ". It is not audited" if missing else f". Its audit: at least {audited} of {row.proven.text}"
            said += f". Not significantly worse: {', '.join(equal)}" * bool(equal)
            return row, f"At a proven epsilon of {budget:g} on {data}, the most accurate student is that of ", said
    return None


def glance(every: Iterable[Ranking]) -> list[tuple[Ranking, list[RowView | None]]]:
    """Return each ranking with our rows, and the best row in each band of :data:`BUDGETS` and without privacy."""
    lines: list[tuple[Ranking, list[RowView | None]]] = []
    for ranking in every:
        # An audited epsilon above the proven one reveals a bug: leave the row out.
        ours = [row for row in ranking.rows if row.ours and row.point.ranked]
        within = [[row for row in ours if row.group == heading] for heading in GROUPS[: len(BUDGETS)]]
        without = [row for row in ours if row.group == GROUPS[-1]]
        if ranking.ours:
            lines.append((ranking, [_best(rows) for rows in (*within, without)]))
    return lines


def _best(rows: Sequence[RowView]) -> RowView | None:
    """Return the most accurate row with a rank, or of all rows if none has one."""
    rated = [row for row in rows if not row.unranked] or rows
    return min(rated, key=lambda row: (-row.point.accuracy, row.point.proven, row.id), default=None)


def small_print(row: RowView) -> str:
    """Return the facts that a reader needs to compare a best row with others."""
    epsilons = (("proven", row.replaced), ("claimed", row.claimed))
    costs = [f"{name} {figure.text}" for name, figure in epsilons if math.isfinite(figure.sort or 0.0)]
    seeds = "1 seed" if len(row.seeds) == 1 else f"{len(row.seeds)} seeds"
    public = "no public data" if row.public == ("none",) else f"public: {' + '.join(row.public)}"
    return ", ".join([*costs, seeds, public, *row.cautions])


CONTRADICTED = (Claim.REFUTED, Claim.IMPOSSIBLE)
"""Marks of claims that an experiment contradicts, which is stronger than a missing proof."""


def failing(every: Iterable[Ranking]) -> list[tuple[RowView, int]]:
    """For each method with failing claims in our rows, return the worst row and the number of failing rows."""
    found = grouped((row.name, row) for ranking in every for row in ranking.rows if row.ours and row.fails)

    def off(row: RowView) -> tuple[bool, float]:
        return row.claim in CONTRADICTED, row.point.proven / row.point.claimed if row.point.claimed else math.inf

    worst = [(max(rows, key=off), len(rows)) for rows in found.values()]
    return sorted(worst, key=lambda pair: (pair[0].claim not in CONTRADICTED, pair[0].name))
