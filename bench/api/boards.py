"""The board in Python: :func:`bench.choose`, :func:`bench.compare`, :func:`bench.plot`, and what can be run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.core.errors import BenchError, UnknownNameError
from bench.core.lazy_libraries import matplotlib, pandas
from bench.core.lazy_libraries import numpy as np
from bench.core.options import member
from bench.core.types import PrivacyUnit
from bench.data.datasets import all_datasets
from bench.interface.registry import METHODS, listed
from bench.privacy.accounting.cost import PrivacyCost, cost_of
from bench.reports.choose import Choice, Wanted
from bench.reports.choose import choose as chosen_from
from bench.reports.compare import Comparison
from bench.reports.compare import compare as compared
from bench.reports.leaderboard import Board, build_board
from bench.reports.runs import Runs, read_board
from bench.results.composed import composition, released_together


def _read(runs: str | Path | Iterable[str | Path] | None) -> Runs:
    paths = [runs] if isinstance(runs, str | Path) else runs
    return read_board(None if paths is None else [Path(path) for path in paths])


def _board(runs: str | Path | Iterable[str | Path] | None) -> Board:
    found = _read(runs)
    return build_board(found.records.values(), found.audits.values())


def choose(
    eps: float = 1.0, *, dataset: str = "mnist", unit: str = "record", public_data: str = "any",
    seconds: float | None = None, runs: str | Path | Iterable[str | Path] | None = None,
) -> Choice:  # fmt: skip
    """Return the best methods within a budget, best first, as ``python -m bench choose`` does.

    Args:
        eps: Largest proven epsilon, for replace-one neighbours.
        dataset: Data set of the board, or ``folder:PATH``, for which the most similar one answers.
        unit: The unit that epsilon protects: record, label, query-label or client.
        public_data: ``any``, or ``none`` for methods that use no public data.
        seconds: Longest time of a run; None: no limit.
        runs: Run directories; None: the published records.

    Raises:
        BenchError: No row qualifies, or a name is unknown.

    Examples:
        >>> best = bench.choose(eps=2, public_data="none").best[0]
    """
    if public_data not in ("any", "none"):
        raise UnknownNameError("public_data", public_data, ["any", "none"])
    limit = {} if seconds is None else {"seconds": seconds}
    wanted = Wanted(eps, dataset, member(PrivacyUnit, "unit", unit).value, public_data == "any", **limit)
    board = _board(runs)
    return chosen_from(board, wanted)


def compare(
    one: str, other: str, *, dataset: str = "mnist", unit: str = "record", eps: float | None = None,
    runs: str | Path | Iterable[str | Path] | None = None,
) -> Comparison:  # fmt: skip
    """Return two rows of the board side by side, each named by a method or the key of a record.

    Methods are compared on `dataset` by their best rows with a proven epsilon (replace-one) of at most `eps`, by
    default 10. Raises :class:`BenchError` for an unknown name, or a method without such a row.
    """
    board = _board(runs)
    return compared(board, one, other, dataset, member(PrivacyUnit, "unit", unit).value, eps)


def compose(keys: str | Sequence[str], *, runs: str | Path | Iterable[str | Path] | None = None) -> PrivacyCost:
    """Return what several released students of the same private records cost together, for one replaced unit.

    Args:
        keys: Keys of their records; ``mnist-pate-eps1`` stands for every seed of its only row.
        runs: Run directories; None: the published records.

    Raises:
        BenchError: A key is unknown or begins several rows, or the records have different data sets or deltas.

    Examples:
        >>> bench.compose(["mnist-pate-eps1", "mnist-dgd-sound-eps10"]).proven
    """
    names = [keys] if isinstance(keys, str) else keys
    found = released_together(_read(runs).records, names)
    return cost_of(composition(found), found[0].delta)


def list_methods() -> pandas.DataFrame:
    """Return the registered methods, one row each: unit, adjacency, proven, public data and citation."""
    columns = ["method", "unit", "adjacency", "proven", "public_data", "citation"]
    entries = {name: listed(name) for name in METHODS.names()}
    rows = [(name, e.unit, e.adjacency, e.proven, e.public_data, e.citation) for name, e in entries.items()]
    return pandas.DataFrame(rows, columns=columns)


def list_datasets() -> pandas.DataFrame:
    """Return the data sets, one row each: classes, shape (channels, height, width), training and test records."""
    rows = [(s.name, s.classes, s.shape, s.train_records, s.test_records) for _, s in sorted(all_datasets().items())]
    return pandas.DataFrame(rows, columns=["dataset", "classes", "shape", "train_records", "test_records"])


def plot(frame: pandas.DataFrame, *, board: pandas.DataFrame | None = None) -> matplotlib.figure.Figure:
    """Return a matplotlib figure: accuracy against proven epsilon (replace-one) of the rows of `frame`.

    Args:
        frame: Rows of one data set and unit, from :func:`bench.run` or :func:`bench.load_results`.
        board: Rows to draw in grey for comparison, for instance ``bench.load_results()``; only those of this data set
            and unit are drawn.

    Raises:
        BenchError: `frame` has no finished row, or rows of several data sets or units.
    """
    done = frame[frame["accuracy"].notna()]
    places = done[["dataset", "unit"]].drop_duplicates()
    if len(places) != 1:
        have = ", ".join(f"{name} ({unit})" for name, unit in places.itertuples(index=False)) or "none"
        raise BenchError(f"plot takes finished rows of one data set and unit; the frame has: {have}.")
    (dataset, unit) = places.iloc[0]
    groups = list(done.groupby("method"))
    many = len(groups) > 10  # more than there are colours
    figure = matplotlib.figure.Figure(figsize=(9, 6) if many else (7, 4.5), layout="constrained")
    axes = figure.subplots()
    if board is not None:
        beside = board[(board["dataset"] == dataset) & (board["unit"] == unit)]
        means = beside.groupby("row")[["replace_one", "accuracy"]].mean()
        axes.plot(means["replace_one"], means["accuracy"], ".", color="0.75", label="the board", zorder=1)
    for number, (name, rows) in enumerate(groups):
        means = rows.groupby("row")[["replace_one", "accuracy"]].mean().sort_values("replace_one")
        means, unbounded = (means[np.isinf(means["replace_one"]) == infinite] for infinite in (False, True))
        color, marker = f"C{number % 10}", "os^DvPX*"[number // 10 % 8]
        if len(means):
            axes.plot(means["replace_one"], means["accuracy"], color=color, marker=marker, label=str(name))
        if len(unbounded):  # infinity has no place on the axis
            axes.axhline(unbounded["accuracy"].max(), color=color, linestyle="--", label=f"{name}, epsilon ∞")
    axes.set(xscale="log", xlabel="proven epsilon (replace-one)", ylabel="accuracy in %", title=f"{dataset}, {unit}")
    if many:
        figure.legend(loc="outside right upper", ncols=-(-len(groups) // 30), fontsize="small")
    else:
        axes.legend()
    return figure
