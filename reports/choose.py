"""Choice of a method: the board's rows within a budget, ranked by the board's own test."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from bench.core.config import default_delta
from bench.core.errors import BenchError, nearest_names
from bench.core.lazy_libraries import pandas
from bench.core.margins import covered
from bench.core.types import Basis, TargetAdjacency
from bench.data.datasets import DATASETS, all_datasets, get_dataset
from bench.data.own_arrays import is_features
from bench.data.own_name import PREFIX
from bench.data.spec import DatasetSpec
from bench.reports.board_row import BoardRow
from bench.reports.leaderboard import Board
from bench.reports.order import BUDGETS, dataset_order
from bench.reports.ranks import set_ranks
from bench.results.command import command_for
from bench.results.record import Record
from bench.results.text import epsilon_text

CANDIDATES = 3
"""Number of methods whose runs on a user's own data are printed."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Conditions on a row: `eps` bounds the proven epsilon for replace-one neighbours, `seconds` a cell's time."""

    eps: float
    dataset: str = "mnist"
    unit: str = "record"
    public: bool = True
    """Whether the method may use public data."""
    seconds: float = math.inf

    def __post_init__(self) -> None:
        if not 0 < self.eps < math.inf:
            raise BenchError(f"--eps takes a positive finite number, not {self.eps:g}. Try --eps 2.")
        if not self.seconds > 0:
            raise BenchError("--time takes a positive time, for instance 10m. Leave it out for no limit.")


@dataclass(frozen=True, slots=True)
class Less:
    """The best row with a smaller budget or fewer resources, and how many points it is below the chosen one."""

    what: str
    row: BoardRow | None
    points: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The ranked rows that satisfy `wanted`, best first, on the board's data set `measured_on`."""

    wanted: Wanted
    measured_on: str
    rows: tuple[BoardRow, ...]
    untimed: tuple[str, ...]
    """Methods left out because all their runs took parts from a cache, so that their time is not known."""
    less: tuple[Less, ...]
    commands: Mapping[str, str]
    """The command of each method in `rows`."""

    def as_dict(self) -> dict[str, Any]:
        """Return the choice as JSON values: the rows with their commands, and the points that tighter limits cost."""
        rows = [{**row_values(row), "command": self.commands[row.method]} for row in self.rows]
        less = [
            {"with": one.what, **({} if one.row is None else {**row_values(one.row), "points_less": one.points})}
            for one in self.less
        ]
        return {
            "dataset": self.wanted.dataset, "measured_on": self.measured_on, "unit": self.wanted.unit,
            "eps": self.wanted.eps, "rows": rows, "less": less, "without_time": list(self.untimed),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        return str(pandas.DataFrame([row_values(row) for row in self.rows]).to_html(index=False))

    @property
    def best(self) -> tuple[BoardRow, ...]:
        """The rows of the first rank group, without significant differences."""
        return tuple(row for row in self.rows if row.place == 1)


def row_values(row: BoardRow) -> dict[str, Any]:
    """Return the values that distinguish a row from others, as JSON values; `proven` is for replace-one neighbours."""
    return {
        "rank": row.rank, "method": row.method, "preset": row.preset, "target": row.asked, "proven": row.replace_one,
        "claimed": row.claimed, "claim": str(row.claim), "audited": row.audited, "accuracy": row.accuracy,
        "low": row.low, "high": row.high, "seeds": len(row.seeds) + row.collapsed, "seconds": row.cost,
        "public_data": row.public_data, "marks": row.marks, "key": row.keys[0],
    }  # fmt: skip


def choose(board: Board, wanted: Wanted) -> Choice:
    """Return the best rows of `board` under `wanted`.

    A row qualifies by its proven epsilon for replace-one neighbours, however much lower than ``wanted.eps`` it is. For
    a user's images, the rows are those of the most similar data set that has some. Raise :class:`BenchError` if there
    are none.
    """
    name = wanted.dataset
    tables = board.tables()
    if name.startswith(PREFIX):
        own = get_dataset(name)
        if is_features(own.shape):
            ranged = name if "@" in name else f"{name}@LOW..HIGH"
            where = "" if ranged == name else " (LOW and HIGH are the values' public range)"
            raise BenchError(
                f"{name} holds rows of features, and the board ranks methods on images. Try those that learn from "
                f"features{where}: python -m bench run -m dp-sgd,dp-fc,pate-bayes -d {shlex.quote(ranged)} "
                f"-e {wanted.eps:g} --basis proven"
            )
        of_unit = [of for of, unit in tables if unit == wanted.unit]
        with_rows = [of for of in of_unit if ranked(tables[of, wanted.unit], wanted)]
        name = nearest_dataset(own, with_rows or of_unit)
    every = tables.get((name, wanted.unit), [])
    if not every:
        have = ", ".join(f"{of} ({unit})" for of, unit in tables) or "none"
        near = nearest_names(name, [of for of, unit in tables if unit == wanted.unit], 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise BenchError(f"the board has no rows of {name}, unit {wanted.unit}.{meant} It has: {have}.")
    rows = ranked(every, wanted)
    if not rows:
        raise BenchError(_nothing(every, wanted, name))
    timed = {row.method for row in rows}
    anytime = ranked(every, replace(wanted, seconds=math.inf)) if wanted.seconds < math.inf else ()
    unknown = dict.fromkeys(row.method for row in anytime if row.method not in timed and row.cost is None)
    return Choice(
        wanted, name, tuple(rows), tuple(unknown), tuple(_with_less(every, wanted, rows[0])),
        {row.method: command_on(row.records[0], wanted) for row in rows},
    )  # fmt: skip


def ranked(every: Iterable[BoardRow], wanted: Wanted) -> list[BoardRow]:
    """Return the rows of one ranking that qualify and are ranked among each other, best first.

    For a budget of the board, these are the ranks of its rows and of those of lower budgets.
    """
    allowed = [
        copy(row)
        for row in every
        if row.band.private
        and covered(row.replace_one, wanted.eps)
        and (wanted.public or set(row.records[0].public_kinds) == {"none"})
        and (wanted.seconds == math.inf or (row.cost is not None and row.cost <= wanted.seconds))
    ]
    allowed.sort(key=lambda row: (-row.accuracy, row.method, row.config))
    for row in allowed:
        row.place, row.place_last, row.unranked, row.gap = None, None, "", None
    set_ranks(allowed)
    return [row for row in allowed if row.place is not None]


def _with_less(every: Sequence[BoardRow], wanted: Wanted, first: BoardRow) -> Iterator[Less]:
    lower = [budget for budget in BUDGETS if budget < min(wanted.eps, first.replace_one)]
    tries = [(f"epsilon at most {budget:g}", replace(wanted, eps=budget)) for budget in reversed(lower)]
    if wanted.public:
        tries.append(("no public data", replace(wanted, public=False)))
    if first.cost is not None:
        tries.append((f"half the time ({first.cost / 2:.0f} s)", replace(wanted, seconds=first.cost / 2)))
    for what, less in tries:
        row = next(iter(ranked(every, less)), None)
        if row is None or row.keys != first.keys:
            yield Less(what, row, math.nan if row is None else first.accuracy - row.accuracy)


def _nothing(every: Sequence[BoardRow], wanted: Wanted, name: str) -> str:
    relaxed = [("--time", replace(wanted, seconds=math.inf)), ("--public-data none", replace(wanted, public=True))]
    options = [option for option, other in relaxed if other != wanted and ranked(every, other)]
    spent = sorted({row.replace_one for row in every if row.replace_one < math.inf})
    least = next((eps for eps in spent if ranked(every, replace(wanted, eps=eps))), math.inf)
    said = f"no ranked row on {name} (unit {wanted.unit}) is within this budget."
    if options:
        return f"{said} Leave out {' or '.join(options)}."
    if math.isfinite(least):
        return f"{said} The smallest budget with one is --eps {epsilon_text(least, 'up')}."
    return f"{said} None has three seeds and a finite proven epsilon: run more seeds (-s 0-2), or see the board."


def nearest_dataset(own: DatasetSpec, names: Iterable[str]) -> str:
    """Return the data set among `names` that is most like `own` in classes, size of the images, and channels.

    Distances are in doublings of the classes and of the image's side; a different number of channels counts as two.
    """
    all_datasets()

    def apart(name: str) -> tuple[float, tuple[int, str]]:
        other = DATASETS[name]
        classes = abs(math.log2(own.classes / other.classes))
        side = abs(math.log2(own.shape[1] * own.shape[2] / (other.shape[1] * other.shape[2]))) / 2
        return classes + side + 2 * (own.shape[0] != other.shape[0]), dataset_order(name)

    known = [name for name in names if name in DATASETS]
    if not known:
        raise BenchError("the board has no rows of this unit to compare your images with. Try --unit record.")
    return min(known, key=apart)


def command_on(record: Record, wanted: Wanted) -> str:
    """Return the command that runs the record's setting with fresh noise; on a folder, for the whole budget."""
    cell, private, dataset = record.cell, record.private_records, wanted.dataset
    if dataset.startswith(PREFIX):
        # The folder's own default delta, which depends on its number of records.
        cell = cell.model_copy(update={"dataset": f"{PREFIX}x", "image_shape": "", "delta": default_delta(private)})
        if cell.epsilon is not None and cell.tuning is None:
            spent = {"epsilon": wanted.eps, "basis": Basis.PROVEN, "adjacency": TargetAdjacency.REPLACE_ONE}
            cell = cell.model_copy(update=spent)
    command, _ = command_for(cell, private, record.own_adjacency)
    return command.replace(f"{PREFIX}PATH", shlex.quote(dataset)) if dataset.startswith(PREFIX) else command
