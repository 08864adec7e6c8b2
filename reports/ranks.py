"""Ranks of the board's rows within a band of proven epsilon, and the spread over seeds that they rest on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from bench.metrics.intervals import seed_spread
from bench.metrics.ranking import HALVES, Contender, rank_groups, steadiness
from bench.reports.board_row import BoardRow
from bench.reports.order import BUDGETS, FEWEST, Band
from bench.results.attack_record import above


def set_spreads(rows: Sequence[BoardRow]) -> None:
    """Set the rows' variance over seeds, borrowed from the method's other rows in the same band.

    A row with one seed borrows from all rows of the method on this data if its band has no other, since seeds of a
    larger epsilon differ less.
    """
    pools: dict[tuple[object, ...], list[BoardRow]] = defaultdict(list)
    for row in rows:
        kin = row.dataset, row.unit, row.method
        pools[kin].append(row)
        pools[*kin, row.band].append(row)
    for row in rows:
        kin = row.dataset, row.unit, row.method
        for pool in (pools[*kin, row.band], pools[kin]):
            row.seed_spread = seed_spread(row.shares, [other.shares for other in pool if other is not row])
            if row.seed_spread is not None:
                break


def set_ranks(rows: Iterable[BoardRow]) -> None:
    """Set the ranks of the rows of one band, given by descending accuracy, or the reason why a row has none."""
    ranked: dict[str, BoardRow] = {}
    contenders, bands = list[Contender](), list[Band]()
    for row in rows:
        if not row.band.private or math.isinf(row.band.limit):
            row.unranked = f"no epsilon up to {BUDGETS[-1]:g} is proven"
        elif row.violations or above(row.audited, row.proven):
            row.unranked = "an audit contradicts what is proven"
        elif len(row.seeds) + row.collapsed < FEWEST or row.contender is None:
            row.unranked = "fewer than three seeds"
        elif row.method in ranked:
            row.unranked = "another row of the method holds its rank"
            bands.append(row.band)
        else:
            ranked[row.method] = row
            contenders.append(row.contender)
            bands.append(row.band)
    # Any row in the first row's band could have held its method's rank; rows in lower bands hardly ever could.
    places, needed = rank_groups(contenders, bands.count(bands[0]) if bands else 0)
    for row, place in zip(ranked.values(), places, strict=True):
        row.place, row.place_last = place
    if len(ranked) > 1:
        next(iter(ranked.values())).gap = 100 * needed


def resolution(rows: Iterable[BoardRow]) -> str:
    """Return a text on the smallest lead that the ranking of `rows` resolves and on how steady its first row is.

    Return "" if fewer than two rows are ranked.
    """
    ranked = [row for row in rows if row.place is not None]
    gap = next((row.gap for row in ranked if row.gap is not None), None)
    if gap is None:
        return ""
    said = f"Methods within {gap:.1f} points of the first do not differ from it significantly"
    found = steadiness([row.contender for row in ranked if row.contender is not None])
    if found is None:
        return f"{said}."
    kept, known = found
    return (
        f"{said}, unless both have recorded answers. On {kept} of {HALVES} random halves of the test records, "
        f"{ranked[0].method} ranks first among the {known} of {len(ranked)} methods whose answers are on record."
    )
