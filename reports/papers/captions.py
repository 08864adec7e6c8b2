"""Sentences for captions that the reported numbers themselves hold: verdicts on epsilons, notes on single numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.results.text import md
from reports.papers.spec import Material
from reports.reported.numbers import Reported


def systems(numbers: Iterable[Reported]) -> list[tuple[str, list[Reported]]]:
    """Return the numbers by the row of the printed table, rows in printed order."""
    rows: dict[str, list[Reported]] = {}
    for number in numbers:
        rows.setdefault(number.row, []).append(number)
    return list(rows.items())


def verdict_lines(material: Material, **wanted: Any) -> list[str]:
    """Return a sentence for each system of a table: the verdict on its epsilon, and why."""
    told: dict[str, str] = {}
    for number in material.printed(**wanted):
        if number.reason:
            told.setdefault(
                f"{md(number.system)}: {number.verdict.value}", f"{md(number.reason)} ({md(number.source)})"
            )
    if not told:
        return []
    return ["Verdicts on the printed epsilons:", "\n".join(f"- {name}. {why}" for name, why in told.items())]


def note_lines(material: Material, **wanted: Any) -> list[str]:
    """Return what a reader of single numbers should know; nothing where there is no such note."""
    told: dict[str, list[str]] = {}
    for number in material.printed(**wanted):
        if number.note:
            told.setdefault(number.note, []).append(f"{number.row}, {number.column}")
    if not told:
        return []
    lines = (f"- {'; '.join(map(md, where))}: {md(note)}." for note, where in told.items())
    return ["On single printed numbers:", "\n".join(lines)]
