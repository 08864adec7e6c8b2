"""Find the records (one row of the board) for a cell of a paper's table or figure, or the command to make them."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.core.config import Grid
from bench.core.grouping import grouped
from bench.core.options import GridOptions, grid_words
from bench.core.types import Basis
from bench.reports.board_row import BoardRow
from bench.reports.leaderboard import build_board
from bench.reports.reported.numbers import Reported
from bench.reports.runs import read_runs
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.record import Record, Status

Setting = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Usual:
    """Usual value of a setting by preset (`quick` None: as `paper`); if `calibrated`, preferred but not required."""

    paper: Setting
    quick: Setting | None = None
    calibrated: bool = False

    def held(self, name: str, record: Record) -> bool | None:
        """Return whether `record` has the usual value; None if the field or the preset's value is unknown."""
        quick = self.paper if self.quick is None else self.quick
        value = {"paper": self.paper, "quick": quick}.get(record.preset)
        return None if value is None or name not in record.config else _same(record.config[name], value)


Check = Callable[[Record], bool]
Plain = Mapping[str, Mapping[str, Usual | Check]]
"""By method: the usual values of the settings that a paper's ablations change."""

_PRESETS = ("tiny", "quick", "paper")


@dataclass(frozen=True, slots=True)
class WantedCell:
    """The cell of a grid, over all seeds, behind one of our numbers; `epsilon` is the target, None without privacy.

    The record's config must have these `settings`; others are as in the preset and the paper's `plain`. `cannot`
    states why no command makes the cell.
    """

    method: str
    dataset: str
    epsilon: float | None = None
    basis: Basis = Basis.CLAIMED
    settings: tuple[tuple[str, Setting], ...] = ()
    preset: str = ""
    """Empty: prefer the paper's preset, else take any."""
    seeds: tuple[int, ...] = (0, 1, 2)
    cannot: str = ""
    delta: float | None = None
    """None: the default on the command line, and any value in a record."""

    @property
    def label(self) -> str:
        """Return a short text on the cell."""
        budget = "no privacy" if self.epsilon is None else f"eps {self.epsilon:g} {self.basis.value}"
        told = "".join(f", {name}={_text(value)}" for name, value in self.settings)
        return f"{self.method} on {self.dataset}, {budget}{told}"

    @property
    def command(self) -> str:
        """Return the command that makes the cell's records, or "" if `cannot` is set."""
        return self.command_at([] if self.epsilon is None else [self.epsilon])

    def command_at(self, epsilons: Sequence[float]) -> str:
        """Return the command that makes the cell's records at several epsilons."""
        if self.cannot:
            return ""
        words = grid_words(**self._asked(epsilons))
        for text in self._set:
            words += ["--set", text]
        return "python -m bench run " + " ".join(map(shlex.quote, words))

    def grid_at(self, epsilons: Sequence[float]) -> Grid:
        """Return the grid of that command."""
        given = {name: value for name, value in self._asked(epsilons).items() if value is not None}
        return GridOptions(**given, set_=self._set).grid()

    def _asked(self, epsilons: Sequence[float]) -> dict[str, Any]:
        return {
            "methods": self.method, "datasets": self.dataset,
            "eps": ",".join(f"{epsilon:g}" for epsilon in epsilons) or None, "seeds": ",".join(map(str, self.seeds)),
            "basis": self.basis, "delta": self.delta, "preset": self.preset or None,
        }  # fmt: skip

    @property
    def _set(self) -> list[str]:
        return [f"{name}={_text(value)}" for name, value in self.settings]


def cell(
    method: str, dataset: str, epsilon: float | None = None, *, preset: str = "", cannot: str = "", **settings: Setting
) -> WantedCell:
    """Return the cell of `method` on `dataset` at a claimed `epsilon` with these settings."""
    return WantedCell(method, dataset, epsilon, settings=tuple(settings.items()), preset=preset, cannot=cannot)


def proven_cell(method: str, dataset: str, epsilon: float | None) -> WantedCell:
    """Return the cell of `method` on `dataset` at a proven `epsilon`."""
    return WantedCell(method, dataset, epsilon, Basis.PROVEN)


OWN = frozenset(
    {"nonprivate", "pate", "pate-gnmax", "trpate", "dgd", "dgd-plus", "dpsd", "dpsd-t", "fed-dpsd", "dp-sgd"}
)
"""Methods that have their own rows in the tables."""


def elsewhere(number: Reported) -> Iterator[tuple[str, str, Basis]]:
    """Yield label, method and basis of our versions of another paper's system: as claimed, and as proven."""
    if number.method is not None and number.method not in OWN:
        yield f"{number.system} here, ε claimed", number.method, Basis.CLAIMED
        yield f"{number.system} here, ε proven", number.method, Basis.PROVEN
        if number.corrected:
            yield f"{number.system} corrected ({number.corrected}) here, ε proven", number.corrected, Basis.PROVEN


def _text(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Value:
    """One of our numbers: mean and standard deviation over `n` seeds (None with one), or an attack's interval."""

    mean: float
    spread: float | None = None
    n: int = 1
    low: float | None = None
    high: float | None = None


MEASURES: dict[str, Callable[[Record], float | None]] = {
    "accuracy": lambda record: None if record.utility is None else 100 * record.utility.accuracy,
    "labels": lambda record: (
        None if record.queries is None or record.queries.label_accuracy is None else 100 * record.queries.label_accuracy
    ),
    "queries": lambda record: None if record.queries is None else float(record.queries.asked),
    "private": lambda record: float(record.private_records),
    "public": lambda record: float(record.public_records),
    "test": lambda record: None if record.utility is None else float(record.utility.test_records),
}
COUNTS = ("queries", "private", "public", "test")
"""Measures whose spread is shown only if seeds differ."""
OF_ROW = ("claimed", "proven", "replace_one", "audited")
"""The epsilons of a board row: the worst over its seeds."""


@dataclass(frozen=True, slots=True)
class Found:
    """A cell and its row of the board."""

    cell: WantedCell
    row: BoardRow

    @property
    def records(self) -> tuple[Record, ...]:
        """The row's records, sorted by seed."""
        return self.row.records

    def value(self, measure: str = "accuracy") -> Value | None:
        """Return the `measure` (one of :data:`MEASURES` or :data:`OF_ROW`), or None if the records lack it."""
        if measure in OF_ROW:
            one: float | None = getattr(self.row, measure)
            return None if one is None else Value(one, n=len(self.records))
        read = MEASURES[measure]
        each = [value for value in map(read, self.records) if value is not None]
        if not each:
            return None
        alone = len(each) < 2 or (measure in COUNTS and len(set(each)) == 1)
        return Value(statistics.fmean(each), None if alone else statistics.stdev(each), len(each))


@dataclass(slots=True)
class Evidence:
    """Everything that was read, searchable by cell."""

    records: list[Record] = field(default_factory=list)
    audits: list[AuditRecord] = field(default_factory=list)
    attacks: list[AttackRecord] = field(default_factory=list)
    places: dict[str, Path] = field(default_factory=dict)
    """Run directory of each record or attack, by key."""
    warnings: list[str] = field(default_factory=list)
    _rows: dict[tuple[str, str], list[BoardRow]] = field(init=False)
    _failed: dict[tuple[str, str], list[Record]] = field(init=False)

    def __post_init__(self) -> None:
        board = build_board(self.records, self.audits)
        self._rows = grouped(((row.method, row.dataset), row) for row in board.rows)
        self._failed = grouped(((r.method, r.dataset), r) for r in self.records if r.status is Status.FAILED)

    def find(self, wanted: WantedCell, plain: Plain | None = None) -> Found | None:
        """Return the best row for `wanted`, or None: paper preset, then usual settings, most seeds, fewest changes."""
        usual = (plain or {}).get(wanted.method, {})
        known = self._rows.get((wanted.method, wanted.dataset), [])
        best = max(
            (row for row in known if answers(row.records[0], wanted, usual)),
            default=None,
            key=lambda row: (
                _PRESETS.index(row.preset) if row.preset in _PRESETS else -1,
                _calibrated(row.records[0], wanted, usual),
                row.noise == "seeded" and row.precision == "float32",
                len(row.records),
                -len(row.reduced),
                row.keys[0],
            ),
        )
        return None if best is None else Found(wanted, best)

    def nearest(self, wanted: WantedCell, plain: Plain) -> WantedCell | None:
        """Return `wanted` at the epsilon, nearest in ratio, for which there are records, or None."""
        target = wanted.epsilon
        if target is None:
            return None
        known = {row.asked for row in self._rows.get((wanted.method, wanted.dataset), [])}
        there = [e for e in known if e and self.find(replace(wanted, epsilon=e), plain) is not None]
        near = min(there, key=lambda e: (abs(math.log(e / target)), e), default=None)
        return None if near is None else replace(wanted, epsilon=near)

    def failure(self, wanted: WantedCell, plain: Plain | None = None) -> str:
        """Return why the cell's run failed, or "" if none did."""
        usual = (plain or {}).get(wanted.method, {})
        for record in self._failed.get((wanted.method, wanted.dataset), []):
            if answers(record, wanted, usual) and record.failure is not None:
                return record.failure.reason
        return ""

    def attacks_on(self, found: Found, attack: str) -> list[AttackRecord]:
        """Return the finished runs of `attack` on the students of `found`, for the best available preset."""
        keys = {record.key for record in found.records}
        mine = [a for a in self.attacks if a.student in keys and a.attack == attack and a.status is Status.DONE]
        presets = [preset for preset in reversed(_PRESETS) if any(a.preset == preset for a in mine)]
        return sorted((a for a in mine if presets and a.preset == presets[0]), key=lambda a: a.key)


def as_preset(name: str, **values: Setting | None) -> Check:
    """Return a check that setting `name` has its preset's value: the one in `values`, or the paper's."""

    def usual(record: Record) -> bool:
        if record.preset in values:
            return name in record.config and _same(record.config[name], values[record.preset])
        return not any(change.field == name for change in record.reduced)

    return usual


def answers(record: Record, wanted: WantedCell, plain: Mapping[str, Usual | Check]) -> bool:
    """Return whether `record` belongs to the cell `wanted`."""
    if (record.method, record.dataset) != (wanted.method, wanted.dataset):
        return False
    if record.epsilon is None or wanted.epsilon is None:
        if record.epsilon is not wanted.epsilon:
            return False
    elif record.basis is not wanted.basis or not math.isclose(record.epsilon, wanted.epsilon, rel_tol=1e-4):
        return False
    if wanted.preset and record.preset != wanted.preset:
        return False
    if wanted.delta is not None and not math.isclose(record.delta, wanted.delta, rel_tol=1e-6):
        return False
    asked = dict(wanted.settings)
    # Records that predate a field have its usual value.
    alike = {name: u.paper for name, u in plain.items() if isinstance(u, Usual) and u.quick is None}
    held = alike | record.config
    if any(name not in held or not _same(held[name], value) for name, value in asked.items()):
        return False
    for name, usual in plain.items():
        if name in asked:
            continue
        # A record without the field predates its ablation.
        if not usual(record) if callable(usual) else not usual.calibrated and usual.held(name, record) is False:
            return False
    return True


def _calibrated(record: Record, wanted: WantedCell, plain: Mapping[str, Usual | Check]) -> int:
    """Return how many calibrated settings that `wanted` leaves open have their usual value."""
    asked = dict(wanted.settings)
    usual = ((name, u) for name, u in plain.items() if name not in asked and isinstance(u, Usual) and u.calibrated)
    return sum(u.held(name, record) is True for name, u in usual)


def _same(one: object, other: Setting | None) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if not isinstance(one, int | float):
        return one == other
    return isinstance(other, int | float) and math.isclose(one, other, rel_tol=1e-6)


def read_evidence(runs: Sequence[Path]) -> Evidence:
    """Return the contents of the run directories. Unreadable files become warnings.

    Raise :class:`BenchError` if a directory does not exist, no record can be read, or two results of one key differ.
    """
    advice = (
        f"no records in {', '.join(map(str, runs))}. Make some with `python -m bench run --methods pate --out runs`, "
        "or read the committed ones with `python -m bench report leaderboards`."
    )
    read = read_runs(runs, advice)
    places: dict[str, Path] = {}
    for path, records, attacks in read.each:
        # Prefer a directory that has the images; committed records come without.
        for key, file in _files(records, attacks):
            if key not in places or (path / file).is_file():
                places[key] = path
    return Evidence(
        [record for _, record in sorted(read.records.items())], [audit for _, audit in sorted(read.audits.items())],
        [attack for _, attack in sorted(read.attacks.items())], places, read.warnings,
    )  # fmt: skip


def _files(records: Iterable[Record], attacks: Iterable[AttackRecord]) -> Iterable[tuple[str, str]]:
    for record in records:
        yield record.key, record.image_grid.file if record.image_grid is not None else ""
    for attack in attacks:
        yield attack.key, attack.pictures[0] if attack.pictures else ""
