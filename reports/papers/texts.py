"""Captions and columns of tables from ``texts/PAPER.yaml``; the captions are filled with values and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from bench.core.grouping import grouped
from bench.reports.papers.spec import FigureSpec, Material, Panels, Rows, TableSpec
from bench.reports.reported.numbers import Reported
from bench.results.text import md

Fill = Callable[[Material], Mapping[str, str]]
"""Returns the values of the {names} in a caption; an empty value drops its sentence."""


class Texts:
    """The captions of one paper; builds specs from the functions that fill them."""

    def __init__(self, paper: str, fill: Fill = lambda material: {}) -> None:
        """Read the captions of `paper`; `fill` provides values shared by all of them."""
        path = Path(__file__).parent / "texts" / f"{paper}.yaml"
        self._entries: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        self._fill = fill

    def table(self, number: str, rows: Rows, fill: Fill = lambda material: {}) -> TableSpec:
        """Return the spec of a table."""
        entry = self._entries[f"table {number}"]
        columns = tuple(entry["columns"])
        return TableSpec(number, entry["title"], entry["says"], columns, rows, partial(self._says, entry, number, fill))

    def figure(self, number: str, panels: Panels, fill: Fill = lambda material: {}, **layout: Any) -> FigureSpec:
        """Return the spec of a figure; `layout` has its columns, height and width."""
        entry = self._entries[f"figure {number}"]
        return FigureSpec(number, entry["title"], entry["says"], panels, partial(self._says, entry, "", fill), **layout)

    def _says(self, entry: Mapping[str, Any], table: str, fill: Fill, material: Material) -> list[str]:
        printed = material.printed(table=table)
        values = {"notes": _notes(printed), "verdicts": _verdicts(printed), **self._fill(material), **fill(material)}
        empty = [f"{{{name}}}" for name, value in values.items() if not value]
        sentences = [text for text in entry.get("shows", []) if not any(name in text for name in empty)]
        return [text.format_map(values) for text in sentences]


def _verdicts(printed: Iterable[Reported]) -> str:
    lines: dict[str, str] = {}
    for number in printed:
        if number.reason:
            name = f"{md(number.system)}: {number.verdicts}"
            lines.setdefault(name, f"- {name}. {md(number.reasons())}")
    return "Verdicts on the printed epsilons:\n\n" + "\n".join(lines.values()) if lines else ""


def _notes(printed: Iterable[Reported]) -> str:
    places = grouped((number.note, md(f"{number.row}, {number.column}")) for number in printed if number.note)
    lines = [f"- {'; '.join(where)}: {md(note)}." for note, where in places.items()]
    return "On single printed numbers:\n\n" + "\n".join(lines) if lines else ""
