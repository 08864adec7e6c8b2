"""TrPATE's tables 2, 4 and 5 next to our rows, with other methods on the same features."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from bench.core.types import Basis
from bench.reports.board_row import BoardRow
from bench.reports.reported.numbers import Reported, read_reported
from bench.results.text import epsilon_text, markdown_table

Printed = dict[int, tuple[float, float, float]]
"""For each number of queries: the printed epsilon, and the accuracy of PATE and TrPATE in %."""


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One of the paper's tables, and the methods whose rows we compare with it."""

    number: str
    title: str
    dataset: str
    pate: str
    trpate: str
    without: str

    @property
    def printed(self) -> Printed:
        """The printed values for gamma 0.05."""
        rows: dict[int, dict[str, float]] = defaultdict(dict)
        for number in _reported():
            asked = _QUERIES.search(number.setting)
            if number.table == self.number and asked and "gamma 0.1" not in number.setting:
                rows[int(asked[1])][number.column] = number.value
        return {queries: (row["epsilon"], row["PATE"], row["TrPATE"]) for queries, row in rows.items()}

    @property
    def baseline(self) -> float:
        """The printed accuracy of the baseline without privacy, in %."""
        return next(n.value for n in _reported() if (n.table, n.column) == (self.number, "Baseline"))


_QUERIES = re.compile(r"(\d+) queries")


@cache
def _reported() -> tuple[Reported, ...]:
    return tuple(number for number in read_reported() if number.paper == "trpate")


TABLES = (
    PaperTable("2", "Table 2: CIFAR-10", "cifar10", "pate", "trpate", "nonprivate-transfer"),
    PaperTable("4", "Table 4: Movie Review, CNN", "movie-review", "pate", "trpate", "nonprivate"),
    PaperTable("5", "Table 5: Movie Review, naive Bayes", "movie-review", "pate-bayes", "trpate-bayes", ""),
)


def trpate_page(rows: Sequence[BoardRow]) -> str:
    """Return the tables next to our `rows`, and a comparison by proven epsilon; "" without such rows."""
    parts = [*(_paper_table(table, rows) for table in TABLES), _sources(rows), _by_proven(rows)]
    found = [part for part in parts if part]
    if not found:
        return ""
    head = (
        "# Transferred knowledge\n\nAccuracy of the student in %, ± standard deviation over seeds. Columns named after "
        "the paper contain its printed numbers; the proven epsilon is ours, for the same queries.\n"
    )
    return "\n".join([head, *found])


def _is_plain(row: BoardRow) -> bool:
    """Return whether a row has the paper's settings: gamma 0.05, claimed basis, the whole source."""
    config = row.records[0].config
    return (
        row.basis is Basis.CLAIMED
        and config.get("gamma") == 0.05
        and config.get("source_fraction", 1.0) == 1.0
        and config.get("weights", "auto") != "random"
        and not str(config.get("weights", "")).startswith("source:")
    )


def _asked(row: BoardRow) -> int:
    """Return the number of queries, 0 for a method without."""
    queries = row.records[0].queries
    return 0 if queries is None else queries.asked


def _by_queries(rows: Sequence[BoardRow], method: str, dataset: str) -> dict[int, BoardRow]:
    """Return one row per number of queries: the paper preset's, or the row with most seeds."""
    plain = [row for row in rows if (row.method, row.dataset) == (method, dataset) and _asked(row) and _is_plain(row)]
    plain.sort(key=lambda row: (row.preset == "paper", len(row.records), row.keys[0]))
    return {_asked(row): row for row in plain}


def _accuracy_text(row: BoardRow | None) -> str:
    """Return mean ± standard deviation (number of seeds) of accuracies in %, or a dash without a row."""
    if row is None:
        return "–"
    spread = "" if row.spread is None else f" ± {row.spread:.2f}"
    return f"{row.accuracy:.2f}{spread} ({len(row.accuracies)})"


def _paper_table(table: PaperTable, rows: Sequence[BoardRow]) -> str:
    mine, plain = (_by_queries(rows, method, table.dataset) for method in (table.trpate, table.pate))
    if not mine:
        return ""
    lines = []
    for queries, (epsilon, pate, trpate) in sorted(table.printed.items(), reverse=True):
        row = mine.get(queries)
        asked = [r.queries for r in row.records if r.queries] if row else []
        right = [100 * found.label_accuracy for found in asked if found.label_accuracy is not None]
        lines.append((
            str(queries), f"{epsilon:g}", epsilon_text(row.proven if row else None, "up"), f"{pate:.2f}",
            _accuracy_text(plain.get(queries)), f"{trpate:.2f}", _accuracy_text(row),
            f"{statistics.fmean(right):.1f}" if right else "–",
        ))  # fmt: skip
    preset = next(iter(mine.values())).preset
    without = [r for r in rows if (r.method, r.dataset, r.preset) == (table.without, table.dataset, preset)]
    here = "".join(f"; here {_accuracy_text(row)}" for row in without)
    baseline = f"Non-private baseline: the paper's {table.baseline:.2f}{here}. Seeds in brackets.\n"
    return f"## {table.title}\n\n{markdown_table(_COLUMNS, lines)}\n{baseline}"


_COLUMNS = (
    "queries", "claimed (paper)", "proven", "PATE, paper", "PATE here", "TrPATE, paper", "TrPATE here", "labels right",
)  # fmt: skip


def _sources(rows: Sequence[BoardRow]) -> str:
    claimed = [row for row in rows if row.method in ("trpate", "trpate-bayes") and row.basis is Basis.CLAIMED]
    most: dict[tuple[str, str], int] = defaultdict(int)
    for row in claimed:
        most[row.dataset, row.method] = max(most[row.dataset, row.method], _asked(row))
    lines = sorted(
        (row.dataset, row.method, row.public_data.partition("; unlabelled")[0], str(_asked(row)), _accuracy_text(row))
        for row in claimed
        if _asked(row) == most[row.dataset, row.method]
    )
    if len({(dataset, method) for dataset, method, *_ in lines}) == len(lines):
        return ""
    table = markdown_table(("data set", "method", "source", "queries", "accuracy"), lines)
    return f"## Effect of the source and its size\n\n{table}"


def _by_proven(rows: Sequence[BoardRow]) -> str:
    kinds = ("trpate", "trpate-gnmax", "trpate-confident", "dp-linear", "dp-linear-gd", "pate")
    chosen = [row for row in rows if row.method in kinds and row.basis is Basis.PROVEN and row.asked is not None]
    places = {row.dataset for row in chosen if row.method != "pate"}
    lines = []
    for row in chosen:
        config = row.records[0].config
        cells = (
            row.dataset, epsilon_text(row.replace_one, "up"), row.method, str(config.get("backbone") or "–"),
            str(config.get("teachers", "–")), str(_asked(row) or "–"), _accuracy_text(row),
        )  # fmt: skip
        if row.dataset in places:
            lines.append(((row.dataset, row.replace_one, -row.accuracy), cells))
    if not lines:
        return ""
    columns = ("data set", "proven, replace-one", "method", "backbone", "teachers", "queries", "accuracy")
    said = "Sorted by the proven epsilon for one replaced record, whatever the adjacency of the target.\n"
    return f"## By proven epsilon\n\n{said}\n{markdown_table(columns, [cells for _, cells in sorted(lines)])}"
