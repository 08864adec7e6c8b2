"""Specs of papers' tables (rows of entries) and figures (panels of series or pictures), as data.

A paper's module has its :class:`Paper` as ``PAPER``. An entry is a text, a number, :class:`Theirs` (printed),
:class:`Ours` (from records) or :class:`Attacked` (from records of attacks).
"""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.core.errors import BenchError, UnknownNameError
from bench.reports.papers.evidence import Evidence, Found, Plain, Value, WantedCell
from bench.reports.reported.numbers import Reported


@dataclass(frozen=True, slots=True)
class Theirs:
    """A printed number (None: not printed) and which of its fields to show: "value", "epsilon", ..."""

    number: Reported | None
    show: str = "value"
    digits: int = 2

    @property
    def text(self) -> str:
        """Return the entry as printed in a table."""
        value = None if self.number is None else getattr(self.number, self.show)
        if value is None:
            return "–"
        return number_text(value, self.digits) if isinstance(value, int | float) else str(value)


@dataclass(frozen=True, slots=True)
class Ours:
    """A number from the records of `cell`; `measure` comes from ``evidence``, and `beside` is the printed number."""

    cell: WantedCell
    measure: str = "accuracy"
    digits: int = 2
    beside: Reported | None = None


@dataclass(frozen=True, slots=True)
class Attacked:
    """A metric of an attack on the students of `cell`, for the target in `role`, times `scale`."""

    cell: WantedCell
    attack: str
    metric: str
    role: str = "student"
    scale: float = 100.0
    digits: int = 1


Entry = str | float | Theirs | Ours | Attacked


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table; `rule` draws a line above it."""

    entries: tuple[Entry, ...]
    rule: bool = False


@dataclass(frozen=True, slots=True)
class PaperPoint:
    """A point of a series; `x` is a number or a category."""

    x: float | str | Ours
    y: float | Theirs | Ours | Attacked


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one line; `slot` sets colour and marker (shared by ours and theirs), `whose` fill and line style."""

    label: str
    points: tuple[PaperPoint, ...]
    slot: int
    whose: Literal["ours", "theirs", "formula"] = "ours"
    dashed: bool = False


Plotted = float | WantedCell | Reported | Theirs | Attacked | None


def curve(
    label: str, slot: int, points: Iterable[tuple[float | str | Ours, Plotted]],
    whose: Literal["ours", "theirs", "formula"] = "ours", *, measure: str = "accuracy", dashed: bool = False,
) -> Series:  # fmt: skip
    """Return a series of pairs (x, y); for a cell, y is its `measure`, and for a reported number the number itself."""

    def entry(y: Plotted) -> float | Theirs | Ours | Attacked:
        if isinstance(y, WantedCell):
            return Ours(y, measure)
        return Theirs(y) if y is None or isinstance(y, Reported) else y

    return Series(label, tuple(PaperPoint(x, entry(y)) for x, y in points), slot, whose, dashed)


def curves(
    points: Mapping[str, Iterable[tuple[float | str | Ours, Plotted]]],
    whose: Literal["ours", "theirs", "formula"] = "ours", *, measure: str = "accuracy",
) -> tuple[Series, ...]:  # fmt: skip
    """Return one series per label, each in its own slot."""
    return tuple(curve(label, slot, each, whose, measure=measure) for slot, (label, each) in enumerate(points.items()))


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of a figure: lines, or bars grouped by the categories of their points."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    form: Literal["lines", "bars"] = "lines"
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    y_limits: tuple[float, float] | None = None
    x_limits: tuple[float, float] | None = None
    x_ticks: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """The image grid of a record of `cell`, or of `attack`; `crop` is (left, top, right, bottom) as fractions."""

    title: str
    cell: WantedCell
    attack: str = ""
    crop: tuple[float, float, float, float] | None = None
    square: bool = False
    """Whether the crop is square."""


@dataclass(frozen=True, slots=True)
class PicturePanel:
    """Pictures side by side."""

    title: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table: title, the paper's statement, columns, and a function for its rows."""

    number: str
    title: str
    says: str
    columns: tuple[str, ...]
    rows: Rows
    shows: Callable[[Material], Sequence[str]] = lambda material: ()
    """Sentences on our results, in addition to the comparison in every caption."""


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """A figure: title, the paper's statement, and a function for its panels, `columns` per row (0: all)."""

    number: str
    title: str
    says: str
    panels: Panels
    shows: Callable[[Material], Sequence[str]] = lambda material: ()
    columns: int = 0
    height: float = 2.3
    """Inches per row of panels."""
    wide: bool | None = None
    """Whether it spans two columns of a paper; None: if it has more than one panel."""


Spec = TableSpec | FigureSpec
Rows = Callable[["Material"], Sequence[TableRow]]
Panels = Callable[["Material"], Sequence[Panel | PicturePanel]]


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper's tables and figures; `plain` gives the usual values of the settings that its ablations change."""

    name: str
    title: str
    tables: tuple[TableSpec, ...]
    figures: tuple[FigureSpec, ...]
    plain: Plain = field(default_factory=dict)

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The tables, then the figures."""
        return (*self.tables, *self.figures)


@dataclass(frozen=True, slots=True)
class Missing:
    """A missing number, with a short and a detailed reason; `run` is its cell, `then` a command on its student."""

    label: str
    short: str
    detail: str = ""
    run: WantedCell | None = None
    then: str = ""

    @property
    def why(self) -> str:
        """Return the short reason with the detail."""
        return f"{self.short}: {self.detail}" if self.detail else self.short

    @property
    def commands(self) -> tuple[str, ...]:
        """Return the commands that fill it, in order."""
        return tuple(filter(None, (self.run.command if self.run is not None else "", self.then)))


@dataclass(slots=True)
class Material:
    """The data behind one paper's specs: our records and the printed numbers."""

    evidence: Evidence
    reported: Sequence[Reported]
    plain: Plain = field(default_factory=dict)

    def find(self, cell: WantedCell) -> Found | None:
        """Return the records of `cell`."""
        return self.evidence.find(cell, self.plain)

    def printed(self, **wanted: Any) -> list[Reported]:
        """Return the numbers whose fields equal `wanted`, in file order."""
        return [number for number in self.reported if all(_fits(number, *item) for item in wanted.items())]

    def one(self, **wanted: Any) -> Reported | None:
        """Return the only number whose fields equal `wanted`, or None; raise :class:`BenchError` if several match."""
        found = self.printed(**wanted)
        if len(found) > 1:
            told = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
            raise BenchError(f"{len(found)} reported numbers match {told}; add fields to select one.")
        return found[0] if found else None

    def value(self, entry: Entry) -> Value | None:
        """Return the number of an entry, or None for a text or a missing number."""
        if isinstance(entry, str):
            return None
        if isinstance(entry, int | float):
            return Value(float(entry))
        if isinstance(entry, Theirs):
            value = None if entry.number is None else getattr(entry.number, entry.show)
            return Value(float(value)) if isinstance(value, int | float) else None
        found = self.find(entry.cell)
        if found is None:
            return None
        return found.value(entry.measure) if isinstance(entry, Ours) else self._attacked(entry, found)

    def _attacked(self, entry: Attacked, found: Found) -> Value | None:
        targets = [attack.targets.get(entry.role) for attack in self.evidence.attacks_on(found, entry.attack)]
        each = [scores.metrics[entry.metric] for scores in targets if scores and entry.metric in scores.metrics]
        if not each:
            return None
        mean = entry.scale * statistics.fmean(one.value for one in each)
        if len(each) > 1:
            return Value(mean, entry.scale * statistics.stdev(one.value for one in each), len(each))
        low, high = (None if end is None else entry.scale * end for end in (each[0].low, each[0].high))
        return Value(mean, None, 1, low, high)

    def powerless(self, entry: Attacked) -> str:
        """Return why an attack on the entry's cell has no power, or "" if it has."""
        found = self.find(entry.cell)
        struck = [] if found is None else self.evidence.attacks_on(found, entry.attack)
        return next((attack.no_power for attack in struck if attack.no_power), "")

    def picture(self, picture: Picture) -> Path | None:
        """Return the file of a picture, or None if it does not exist."""
        found = self.find(picture.cell)
        if found is None:
            return None
        wanted: list[tuple[str, str]] = []
        if picture.attack:
            wanted = [(a.key, file) for a in self.evidence.attacks_on(found, picture.attack) for file in a.pictures]
        else:
            wanted = [(record.key, record.image_grid.file) for record in found.records if record.image_grid is not None]
        for key, file in wanted:
            place = self.evidence.places.get(key)
            # File names in records are untrusted: read only inside the run directory.
            inside = place is not None and (place / file).resolve().is_relative_to(place.resolve())
            if place is not None and inside and (place / file).is_file():
                return place / file
        return None

    def missing(self, entry: Entry | Picture) -> Missing | None:
        """Return what is missing for an entry, or None if it is complete or not ours."""
        if isinstance(entry, str | float | int | Theirs):
            return None
        cell, found = entry.cell, self.find(entry.cell)
        attack = "" if isinstance(entry, Ours) else entry.attack
        what = f"{attack} on {cell.label}" if attack else cell.label
        then = f"python -m bench attack --attacks {attack} --methods {cell.method}" if attack else ""
        run = None if cell.cannot else cell
        if isinstance(entry, Picture):
            if self.picture(entry) is not None:
                return None
            why = "the file is not stored with its record; give the run directory that has it"
            not_run = found is None or bool(cell.cannot)
            return Missing(f"picture of {what}", cell.cannot or "not run" if not_run else why, run=run, then=then)
        if self.value(entry) is not None:
            return None
        if isinstance(entry, Attacked):
            if found is not None and self.evidence.attacks_on(found, attack):
                return Missing(f"{what}: {entry.metric} of {entry.role}", "the attack's record does not hold it")
            return Missing(what, "not run", run=run, then=then)
        if found is None:
            failed = "" if cell.cannot else self.evidence.failure(cell, self.plain)
            return Missing(what, cell.cannot or ("failed" if failed else "not run"), failed, run)
        if entry.measure == "audited":
            audit = f"python -m bench audit --methods {cell.method}"
            why = "not audited" if found.row.audit is None else found.row.audited_text
            return Missing(f"{what}: audited", why, then=audit)
        return Missing(f"{what}: {entry.measure}", f"the records do not hold the measure {entry.measure!r}")


def _fits(number: Reported, name: str, value: Any) -> bool:
    held = getattr(number, name)
    if isinstance(held, float) and isinstance(value, int | float):
        return held == value or math.isclose(held, value, rel_tol=1e-9)
    return bool(held == value)


def number_text(value: float, digits: int = 2) -> str:
    """Return a number as tables print it."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value and abs(value) >= 1e5:
        return f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.{digits}f}"


def entries_of(parts: Sequence[TableRow | Panel | PicturePanel]) -> Iterator[Entry | Picture]:
    """Yield all entries of rows or panels, in order."""
    for one in parts:
        if isinstance(one, TableRow):
            yield from one.entries
        elif isinstance(one, PicturePanel):
            yield from one.pictures
        else:
            for series in one.series:
                for point in series.points:
                    if isinstance(point.x, Ours):
                        yield point.x
                    yield point.y


PAPERS = {
    "dgd": "bench.reports.papers.dgd_tables", "dpsd": "bench.reports.papers.dpsd_tables",
    "trpate": "bench.reports.papers.trpate_tables", "pate": "bench.reports.papers.pate",
}  # fmt: skip
"""The module with the ``PAPER`` of each paper, in index order."""


def load_paper(name: str) -> Paper:
    """Return a paper by name; raise :class:`UnknownNameError` for an unknown name."""
    if name not in PAPERS:
        raise UnknownNameError("paper", name, PAPERS)
    paper = importlib.import_module(PAPERS[name]).PAPER
    assert isinstance(paper, Paper)
    return paper


_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii")


def plain_number(number: str) -> str:
    """Return a number in lower case with Roman numerals as digits: "II" and "2" are the same table."""
    low = number.strip().lower()
    return str(_ROMAN.index(low) + 1) if low in _ROMAN else low


def choose(specs: Sequence[Spec], number: str, kind: str, paper: str) -> Spec:
    """Return the spec with that number; raise :class:`BenchError`, which lists the existing ones, if there is none."""
    for spec in specs:
        if plain_number(spec.number) == plain_number(number):
            return spec
    there = ", ".join(spec.number for spec in specs) or "none"
    raise BenchError(f"there is no drawing for {kind} {number!r} of {paper}. Accepted: {there}.")
