"""Count how much of the papers' tables and figures the records fill, and explain why the rest is empty."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from bench.core.errors import UnknownNameError
from bench.data.datasets import get_dataset
from bench.reports.papers.evidence import read_evidence
from bench.reports.papers.notes import commands_of
from bench.reports.papers.spec import (
    PAPERS,
    Attacked,
    Entry,
    Material,
    Missing,
    Ours,
    Picture,
    Spec,
    TableSpec,
    entries_of,
    load_paper,
)
from bench.reports.reported.numbers import Reported
from bench.results.text import markdown_table, md

Cell = Ours | Attacked | Picture


class Reason(StrEnum):
    """Why a cell is empty."""

    DATA = "no data"
    RUN = "not run"
    BUILT = "not built"
    FAILED = "failed"
    OTHER = "not kept"


MEANING = {
    Reason.DATA: "the data set was not available, so the catalogue does not pin a revision of it. With the data, the "
    "command fills the cell.",
    Reason.RUN: "the data set is available; the command fills the cell.",
    Reason.BUILT: "no command fills it.",
    Reason.FAILED: "the run failed.",
    Reason.OTHER: "the cell ran, but the committed record does not contain what the table or figure shows.",
}


def cells_of_item(entries: Iterable[Entry | Picture], material: Material) -> dict[Cell, Missing | None]:
    """Return our cells in a table or figure, each once, with what is missing for it."""
    there: dict[object, Cell] = {}
    for entry in entries:
        if isinstance(entry, Ours | Attacked | Picture):
            there.setdefault((entry.cell, entry.measure) if isinstance(entry, Ours) else entry, entry)
    return {cell: material.missing(cell) for cell in there.values()}


def reason_of(cell: Cell, missing: Missing) -> Reason:
    """Return why `cell` is empty."""
    if cell.cell.cannot:
        return Reason.BUILT
    if missing.short == "failed":
        return Reason.FAILED
    if missing.short != "not run":
        return Reason.OTHER
    try:
        return Reason.RUN if get_dataset(cell.cell.dataset).revision else Reason.DATA
    except UnknownNameError:
        return Reason.DATA


def coverage_page(folder: Path, reported: Sequence[Reported]) -> str:
    """Return the page for the board in `folder` and its ablations."""
    places = [path for path in (folder, folder / "ablations") if (path / "records").is_dir()]
    evidence = read_evidence(places)
    items: dict[str, tuple[Spec, Mapping[Cell, Missing | None]]] = {}
    for paper in map(load_paper, PAPERS):
        material = Material(evidence, [number for number in reported if number.paper == paper.name], paper.plain)
        specs: list[Spec] = [*paper.tables, *paper.figures]
        for spec in specs:
            parts = spec.rows(material) if isinstance(spec, TableSpec) else spec.panels(material)
            name = f"{paper.name} {'table' if isinstance(spec, TableSpec) else 'figure'} {spec.number}"
            items[name] = spec, cells_of_item(entries_of(parts), material)
    lines = [(name, *_counts(cells)) for name, (_, cells) in items.items()]
    total = [sum(column) for column in zip(*(_counts(cells) for _, cells in items.values()), strict=True)]
    return "\n".join(
        [
            "# How much of the papers' tables and figures is filled\n",
            "As in `python -m bench report --all`, a cell is one of our numbers or pictures, and counts once in its "
            "table or figure. Accuracies are cells too. `python -m bench leaderboard leaderboards` writes this page.\n",
            f"**{total[1]:,} of {total[0]:,} cells are filled, {total[3]:,} of {total[2]:,} accuracies.**\n",
            markdown_table(COLUMNS, [tuple(map(_text, line)) for line in (*lines, ("all", *total))]),
            "Why cells are empty:\n",
            *(
                f"- **{reason}** ({count:,}): {MEANING[reason]}"
                for reason, count in zip(Reason, total[4:], strict=True)
                if count
            ),
            "",
            *(_empty(name, spec, cells) for name, (spec, cells) in items.items() if any(cells.values())),
        ]
    )


COLUMNS = ("table or figure", "cells", "filled", "accuracies", "filled", *Reason)


def _text(value: str | int) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def _counts(cells: Mapping[Cell, Missing | None]) -> list[int]:
    """Return the counts in the order of :data:`COLUMNS`."""
    accuracies = [missing for cell, missing in cells.items() if isinstance(cell, Ours) and cell.measure == "accuracy"]
    why = Counter(reason_of(cell, missing) for cell, missing in cells.items() if missing is not None)
    filled = [len(cells), list(cells.values()).count(None), len(accuracies), accuracies.count(None)]
    return [*filled, *(why[reason] for reason in Reason)]


def _empty(name: str, spec: Spec, cells: Mapping[Cell, Missing | None]) -> str:
    """Return the empty cells of a table or figure by reason, with the commands that fill them."""
    found: dict[Reason, list[tuple[Cell, Missing]]] = defaultdict(list)
    for cell, missing in cells.items():
        if missing is not None:
            found[reason_of(cell, missing)].append((cell, missing))
    parts = [f"## {md(name)}: {md(spec.title.rstrip('.'))}\n"]
    for reason in filter(found.get, Reason):
        empty = found[reason]
        commands = commands_of(missing for _, missing in empty)
        named = dict.fromkeys(cell.cell.dataset if reason is Reason.DATA else missing.why for cell, missing in empty)
        told = "" if reason is Reason.RUN else f": {md('; '.join(filter(None, named)))}"
        parts.append(f"{len(empty)} {reason}{told}.\n")
        parts += ["```", *commands, "```\n"] if commands else []
    return "\n".join(parts)
