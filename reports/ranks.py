"""Ranks of the board's rows within a band of proven epsilon, and the deviation over seeds that they rest on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.metrics.intervals import seed_spread
from bench.metrics.ranking import Contender, rank_groups
from bench.reports.board_row import BoardRow
from bench.reports.order import BUDGETS, FEWEST, Band
from bench.results.attack_record import above


def with_spread(table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with their variance over seeds, borrowed from the method's other rows in the same band.

    A row with one seed borrows from all rows of the method on this data if its band has no other: seeds of a larger
    epsilon differ less.
    """

    def kin(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return row["dataset"], row["unit"], row["method"]

    def near(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return *kin(row), Band.of(row["replace_one"], None if math.isnan(row["target"]) else row["claimed"])

    pools: dict[tuple[Any, ...], list[tuple[int, list[float]]]] = defaultdict(list)
    for number, row in enumerate(table):
        shares = [accuracy / 100 for accuracy in row["accuracies"]]
        for key in (kin(row), near(row)):
            pools[key].append((number, shares))
    found = []
    for number, row in enumerate(table):
        own = [accuracy / 100 for accuracy in row["accuracies"]]
        spread = seed_spread(own, [shares for other, shares in pools[near(row)] if other != number])
        if spread is None:
            spread = seed_spread(own, [shares for other, shares in pools[kin(row)] if other != number])
        found.append({**row, "seed_spread": spread})
    return found


def placed(rows: Sequence[BoardRow]) -> list[BoardRow]:
    """Return the rows of one band, by descending accuracy, with their ranks or why they hold none."""
    best: dict[str, tuple[int, Contender]] = {}
    reasons: dict[int, str] = {}
    for number, row in enumerate(rows):
        seeds = len(row.seeds) + row.collapsed
        if not row.band.private or math.isinf(row.band.limit):
            reasons[number] = f"no epsilon up to {BUDGETS[-1]:g} is proven"
        elif above(row.audited, row.proven):
            reasons[number] = "audited above proven"
        elif seeds < FEWEST or row.seed_spread is None:
            reasons[number] = "fewer than three seeds"
        elif row.method in best:
            reasons[number] = "another row of the method holds its rank"
        else:
            found = Contender(row.accuracy / 100, seeds, row.seed_spread, row.test_records)
            best[row.method] = number, found
    contenders = [contender for _, contender in best.values()]
    places, ends = rank_groups(contenders)
    ranks = dict(zip((number for number, _ in best.values()), places, strict=True))
    gaps = {number: 100 * (contender.mean - ends[0]) for number, contender in [*best.values()][:1] if len(best) > 1}
    return [
        replace(row, unranked=reasons[number]) if number in reasons
        else replace(row, place=ranks[number][0], place_last=ranks[number][1], gap=gaps.get(number))
        for number, row in enumerate(rows)
    ]  # fmt: skip


def resolution(rows: Iterable[BoardRow]) -> str:
    """Return a sentence with the smallest lead that the ranking of `rows` resolves, "" if fewer than two are ranked."""
    gap = next((row.gap for row in rows if row.gap is not None), None)
    if gap is None:
        return ""
    return f"Methods less than {gap:.1f} points below the first cannot be told from it."
