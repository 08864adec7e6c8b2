"""The rows of all rankings as JSON for the page's table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from bench.reports.site.rows import GOALS, GROUPS, Figure, Ranking, RowView, interval
from bench.reports.site.terms import TERMS

DETAILS = (
    "claimed", "claim", "proven, own adjacency", "audit", "whole test set", "drop", "public data", "preset", *GOALS,
    "seed", "time", "remarks", "printed in", "paper", "code",
)  # fmt: skip
"""Labels of a row's details, in order."""


Cell = str | list[list[str]]
"""A text, or a list with one [text, address]."""


def table_data(rankings: Iterable[Ranking]) -> Markup:
    """Return all rows as JSON for a script element; infinite numbers are the string "Infinity"."""
    rankings = list(rankings)
    return script_json(
        {
            "details": DETAILS,
            "terms": TERMS,
            "groups": GROUPS,
            "rankings": {
                ranking.id: [ranking.title, ranking.dataset, ranking.unit, ranking.resolutions] for ranking in rankings
            },
            "rows": [_values(ranking, row) for ranking in rankings for row in ranking.rows],
        }
    )


def _values(ranking: Ranking, row: RowView) -> dict[str, Any]:
    return {
        "id": row.id, "ranking": ranking.id, "group": GROUPS.index(row.group), "ours": row.ours,
        "method": row.name, "label": row.method, "href": row.method_href, "where": row.where, "claim": row.claim,
        "fails": row.fails, "place": row.place, "unranked": row.unranked, "cautions": row.cautions, "basis": row.basis,
        "budget": _number(row.asked), "budgetText": row.asked.text,
        "proven": _number(row.replaced), "provenCell": _short(row.replaced),
        "audited": _number(row.audited), "auditedCell": _short(row.audited), "weak": row.audited.powerless,
        "risk": _number(row.risk), "riskCell": _short(row.risk),
        "accuracy": row.accuracy.sort, "accuracyCell": _short(row.accuracy),
        "low": round(row.point.low, 2), "high": round(row.point.high, 2), "interval": interval(row),
        "public": row.public,
        "seeds": row.ran, "preset": row.preset,
        "details": _details(row),
    }  # fmt: skip


def _details(row: RowView) -> list[Any]:
    """Return the cells of :data:`DETAILS`, with None for missing ones."""
    claim = f"{row.claim}: {row.why}" if row.claim and row.why else row.claim or row.why
    audit = f"{row.audited.text} ({row.audited.note})" if row.audited.note else ""
    found = (
        _cell(row.claimed), claim, _cell(row.proven), audit, _cell(row.whole), _cell(row.drop), row.public_words,
        row.preset, *map(_cell, row.attacks), [[seed.text, seed.href] for seed in row.seeds], _cell(row.cost),
        [*row.remarks, *([f"no rank: {row.unranked}"] if row.unranked else [])],
        row.where, _cell(row.paper), _cell(row.code),
    )  # fmt: skip
    return [cell if cell and cell != "–" else None for cell in found]


def _cell(figure: Figure) -> Cell:
    """Return a number with its remarks."""
    text = " ".join(filter(None, (figure.text, figure.more, figure.note and f"({figure.note})")))
    return _short(replace(figure, text=text))


def _short(figure: Figure) -> Cell:
    return [[figure.text, figure.href]] if figure.href else figure.text


def _number(figure: Figure) -> float | str | None:
    return "Infinity" if figure.sort is not None and math.isinf(figure.sort) else figure.sort


def script_json(data: Any) -> Markup:
    """Return `data` as JSON that cannot end a script element or begin a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
