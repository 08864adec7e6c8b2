"""Notes on our numbers: which settings behind them differ from the paper's, and what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from string import ascii_lowercase

from bench.core.config import Grid
from bench.core.grouping import grouped
from bench.reports.papers.evidence import WantedCell
from bench.reports.papers.spec import (
    Entry,
    Material,
    Missing,
    Ours,
    Panel,
    Picture,
    PicturePanel,
    Series,
    TableRow,
    Theirs,
    entries_of,
)
from bench.results.text import md

# --- settings that are not the paper's --------------------------------------------------------------------------------


def note(entry: Entry | Picture, material: Material) -> str:
    """Return the preset behind our number and how many settings differ, naming one or two; "" if none differ.

    Settings that the paper's table or figure varies do not count.
    """
    if isinstance(entry, str | float | int | Theirs) or material.missing(entry) is not None:
        return ""
    found = material.find(entry.cell)
    assert found is not None
    asked = {name for name, _ in entry.cell.settings}
    differ = [change.field for change in found.records[0].reduced if change.field not in asked]
    of_student = _told(found.row.preset, len(differ), differ)
    attack = "" if isinstance(entry, Ours) else entry.attack
    if not attack:
        return of_student
    run = material.evidence.attacks_on(found, attack)[0]
    of_attack = _told(run.preset, len(run.reduced))
    told = {"student": of_student, "attack": of_attack}
    return "; ".join(f"{what}: {text}" for what, text in told.items() if text)


def _told(preset: str, differ: int, names: Sequence[str] = ()) -> str:
    if preset == "paper" and not differ:
        return ""
    which = f" ({', '.join(names)})" if 0 < len(names) <= 2 else ""
    count = "1 setting differs" if differ == 1 else f"{differ or 'no'} settings differ"
    return f"{preset} preset, {count}{which}"


class Marks:
    """Letters for the notes of one table or figure, in order of use."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._letters: dict[str, str] = {}

    def of(self, *entries: Entry | Picture) -> str:
        """Return the marks of `entries` after a space, for instance `` [a]``, or "" without notes."""
        notes = dict.fromkeys(filter(None, (note(entry, self._material) for entry in entries)))
        letters = [self._letters.setdefault(text, _letter(len(self._letters))) for text in notes]
        return f" [{', '.join(letters)}]" if letters else ""

    @property
    def lines(self) -> list[str]:
        """The meaning of each letter."""
        return [f"[{letter}] {text}" for text, letter in self._letters.items()]


def _letter(number: int) -> str:
    return ascii_lowercase[number % 26] * (1 + number // 26)


# --- what is left out -------------------------------------------------------------------------------------------------

Left = tuple[str, Sequence[Entry | Picture]]
"""The name of a part that was left out, and its entries."""


def is_empty(entries: Iterable[Entry | Picture], material: Material) -> bool:
    """Return whether `entries` ask for our numbers, all of them are missing, and none is a printed number."""
    ours = False
    for entry in entries:
        if isinstance(entry, str):
            continue
        if isinstance(entry, float | int | Theirs):
            if material.value(entry) is not None:
                return False
        elif material.missing(entry) is None:
            return False
        else:
            ours = True
    return ours


def shown_table(
    columns: Sequence[str], rows: Sequence[TableRow], material: Material
) -> tuple[list[str], list[TableRow], list[Left]]:
    """Return the columns and rows that have a number, and what was left out."""
    left: list[Left] = []
    kept: list[TableRow] = []
    rule = False
    for row in rows:
        rule = rule or row.rule
        if is_empty(row.entries, material):
            left.append((f"row {row.entries[0]}", row.entries))
        else:
            kept.append(replace(row, rule=rule))
            rule = False
    full = []
    for place, name in enumerate(columns):
        entries = [row.entries[place] for row in rows]
        if is_empty(entries, material):
            left.append((f"column {name}", entries))
        else:
            full.append(place)
    kept = [replace(row, entries=tuple(row.entries[place] for place in full)) for row in kept]
    return [columns[place] for place in full], kept, left


def shown_panels(
    panels: Sequence[Panel | PicturePanel], material: Material
) -> tuple[list[Panel | PicturePanel], list[Left]]:
    """Return the panels with one of our numbers or pictures, or a computed curve, and what was left out."""
    left: list[Left] = []
    kept: list[Panel | PicturePanel] = []
    for panel in panels:
        name = panel.title or "the figure"
        if isinstance(panel, PicturePanel):
            name = panel.title or ", ".join(one.title for one in panel.pictures)
            pictures = tuple(one for one in panel.pictures if material.picture(one) is not None)
            gone: list[Left] = [(f"{name}: {one.title}", [one]) for one in panel.pictures if one not in pictures]
            shown: Panel | PicturePanel | None = replace(panel, pictures=pictures) if pictures else None
        else:
            series = tuple(one for one in panel.series if one.whose != "ours" or not is_empty(_in(one), material))
            gone = [(f"{name}: {one.label}", _in(one)) for one in panel.series if one not in series]
            # Panels with only printed numbers stay in the file of points.
            shown = replace(panel, series=series) if any(one.whose != "theirs" for one in series) else None
        if shown is None:
            left.append((name, list(entries_of([panel]))))
        else:
            kept.append(shown)
            left += gone
    return kept, left


def _in(series: Series) -> list[Entry | Picture]:
    return list(entries_of([Panel("", "", "", (series,))]))


def marked_panels(panels: Sequence[Panel | PicturePanel], marks: Marks) -> list[Panel | PicturePanel]:
    """Return the panels with marks after the names of pictures and series, or of bar categories if they differ."""
    marked: list[Panel | PicturePanel] = []
    for panel in panels:
        if isinstance(panel, PicturePanel):
            pictures = tuple(replace(one, title=one.title + marks.of(one)) for one in panel.pictures)
            marked.append(replace(panel, pictures=pictures))
        elif panel.form == "bars" and any("," in marks.of(*_in(one)) for one in panel.series):
            marked.append(_marked_categories(panel, marks))
        else:
            series = tuple(replace(one, label=one.label + marks.of(*_in(one))) for one in panel.series)
            marked.append(replace(panel, series=series))
    return marked


def _marked_categories(panel: Panel, marks: Marks) -> Panel:
    within = grouped((point.x, point.y) for series in panel.series for point in series.points)

    def named(x: float | str | Ours) -> float | str | Ours:
        # Below the name, because marks next to it would overlap.
        return x + marks.of(*within[x]).replace(" [", "\n[") if isinstance(x, str) else x

    return replace(panel, series=tuple(
        replace(one, points=tuple(replace(point, x=named(point.x)) for point in one.points)) for one in panel.series
    ))  # fmt: skip


def left_out(left: Iterable[Left], material: Material) -> list[str]:
    """Return a line of Markdown for each part that was left out, with the command to fill it."""
    return [f"{md(name)}: {_why(entries, material)}" for name, entries in left]


def _why(entries: Iterable[Entry | Picture], material: Material) -> str:
    missing = [one for one in map(material.missing, entries) if one is not None]
    commands = commands_of(missing)
    reasons = dict.fromkeys(one.short for one in missing if one.commands or not commands)
    why = md("; ".join(reasons))
    if not commands:
        return f"{why}; no command fills it."
    more = f" and {len(commands) - 1} more, below" if len(commands) > 1 else ""
    return f"{why}. Filled by `{commands[0]}`{more}"


def commands_of(missing: Iterable[Missing]) -> list[str]:
    """Return the commands that fill `missing`: runs first, and one command for runs that differ only in epsilon."""
    missing = list(missing)
    runs = [cell.command_at(epsilons) for cell, epsilons in _runs(missing)]
    return list(dict.fromkeys([*runs, *(one.then for one in missing if one.then)]))


def grids_of(missing: Iterable[Missing]) -> list[Grid]:
    """Return the grids of the runs of those commands."""
    return [cell.grid_at(epsilons) for cell, epsilons in _runs(missing) if not cell.cannot]


def _runs(missing: Iterable[Missing]) -> list[tuple[WantedCell, list[float]]]:
    grids: dict[tuple[WantedCell, bool], set[float]] = {}
    for one in missing:
        if one.run is not None:
            grid = replace(one.run, epsilon=None), one.run.epsilon is None
            grids.setdefault(grid, set()).update(() if one.run.epsilon is None else (one.run.epsilon,))
    return [(cell, sorted(epsilons)) for (cell, _), epsilons in grids.items()]
