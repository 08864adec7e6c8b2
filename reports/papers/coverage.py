"""Count how many cells of the papers' tables and figures the records fill, and explain why the others are empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bench.core.errors import UnknownNameError
from bench.data.datasets import get_dataset
from bench.reports.papers.evidence import Evidence, read_evidence
from bench.reports.papers.notes import commands_of
from bench.reports.papers.spec import (
    PAPERS,
    Attacked,
    Entry,
    Material,
    Missing,
    Ours,
    Paper,
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


@dataclass(frozen=True, slots=True)
class Item:
    """One of the papers' tables or figures with our cells in it, each with what is missing for it."""

    name: str
    title: str
    cells: Mapping[Cell, Missing | None]

    def missing(self) -> dict[Reason, list[tuple[Cell, Missing]]]:
        """Return the empty cells by reason."""
        found: dict[Reason, list[tuple[Cell, Missing]]] = {reason: [] for reason in Reason}
        for cell, missing in self.cells.items():
            if missing is not None:
                found[reason_of(cell, missing)].append((cell, missing))
        return {reason: cells for reason, cells in found.items() if cells}


def items_of(chosen: Iterable[tuple[Paper, Spec]], evidence: Evidence, reported: Sequence[Reported]) -> list[Item]:
    """Return the `chosen` tables and figures, filled from `evidence`."""
    found = []
    for paper, spec in chosen:
        material = Material(evidence, [number for number in reported if number.paper == paper.name], paper.plain)
        parts = spec.rows(material) if isinstance(spec, TableSpec) else spec.panels(material)
        name = f"{paper.name} {'table' if isinstance(spec, TableSpec) else 'figure'} {spec.number}"
        found.append(Item(name, spec.title, cells_of_item(entries_of(parts), material)))
    return found


def coverage_page(folder: Path, reported: Sequence[Reported]) -> str:
    """Return the page for the board in `folder` and its ablations."""
    evidence = read_evidence([path for path in (folder, folder / "ablations") if (path / "records").is_dir()])
    chosen = ((paper, spec) for paper in map(load_paper, PAPERS) for spec in paper.specs)
    items = items_of(chosen, evidence, reported)
    counts = {item.name: _counts(item.cells) for item in items}
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    lines = [(name, *(f"{n:,}" for n in row)) for name, row in {**counts, "all": total}.items()]
    return "\n".join(
        [
            "# How much of the papers' tables and figures is filled\n",
            "As in `python -m bench report --all`, a cell is one of our numbers or pictures, and counts once in its "
            "table or figure. Accuracies are cells too. `python -m bench leaderboard leaderboards` writes this page.\n",
            f"**{total[1]:,} of {total[0]:,} cells are filled, {total[3]:,} of {total[2]:,} accuracies.**\n",
            markdown_table(COLUMNS, lines),
            "Why cells are empty:\n",
            *(
                f"- **{reason}** ({count:,}): {MEANING[reason]}"
                for reason, count in zip(Reason, total[4:], strict=True)
                if count
            ),
            "",
            *(_empty(item) for item in items if any(item.cells.values())),
        ]
    )


COLUMNS = ("table or figure", "cells", "filled", "accuracies", "filled", *Reason)


def _counts(cells: Mapping[Cell, Missing | None]) -> list[int]:
    """Return the counts in the order of :data:`COLUMNS`."""
    accuracies = [missing for cell, missing in cells.items() if isinstance(cell, Ours) and cell.measure == "accuracy"]
    why = Counter(reason_of(cell, missing) for cell, missing in cells.items() if missing is not None)
    filled = [len(cells), list(cells.values()).count(None), len(accuracies), accuracies.count(None)]
    return [*filled, *(why[reason] for reason in Reason)]


def told(reason: Reason, empty: Sequence[tuple[Cell, Missing]]) -> str:
    """Return how many cells are `empty` for one reason, and its details: ``134 no data: celeba-g; celeba-h.``."""
    whys = (missing.why.removeprefix("failed: ").removesuffix(".") for _, missing in empty)
    named = dict.fromkeys([cell.cell.dataset for cell, _ in empty] if reason is Reason.DATA else whys)
    details = "" if reason is Reason.RUN else f": {'; '.join(filter(None, named))}"
    return f"{len(empty)} {reason}{details}."


def _empty(item: Item) -> str:
    """Return the empty cells of a table or figure by reason, with the commands that fill them."""
    parts = [f"## {md(item.name)}: {md(item.title)}\n"]
    for reason, empty in item.missing().items():
        commands = commands_of(missing for _, missing in empty)
        parts.append(f"{md(told(reason, empty))}\n")
        parts += ["```", *commands, "```\n"] if commands else []
    return "\n".join(parts)
