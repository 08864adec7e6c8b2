"""TrPATE's tables 2, 4 and 5 next to our records, with other methods on the same features."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from bench.reports.reported.numbers import Reported, read_reported
from bench.results.derived import replaced_epsilon, row_key
from bench.results.record import Record, Status
from bench.results.text import epsilon_text, markdown_table

Printed = dict[int, tuple[float, float, float]]
"""For each number of queries: the printed epsilon, and the accuracy of PATE and TrPATE in %."""


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One of the paper's tables, and the methods whose records we compare with it."""

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


def trpate_page(records: Iterable[Record]) -> str:
    """Return the tables next to our records, and a comparison by proven epsilon; "" without such records."""
    done = [r for r in records if r.status is Status.DONE and r.privacy is not None and r.utility is not None]
    parts = [_paper_table(table, done) for table in TABLES]
    parts += [_sources(done), _by_proven(done)]
    found = [part for part in parts if part]
    if not found:
        return ""
    head = (
        "# Transferred knowledge\n\nAccuracy of the student in %, ± standard deviation over seeds. Columns named after "
        "the paper contain its printed numbers; the proven epsilon is ours, for the same queries.\n"
    )
    return "\n".join([head, *found])


def _is_plain(record: Record) -> bool:
    """Return whether a record has the paper's settings: gamma 0.05, claimed basis, the whole source."""
    config = record.config
    return (
        record.basis.value == "claimed"
        and config.get("gamma") == 0.05
        and config.get("source_fraction", 1.0) == 1.0
        and config.get("weights", "auto") != "random"
        and not str(config.get("weights", "")).startswith("source:")
    )


def _rows(records: Iterable[Record]) -> list[list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[row_key(record)].append(record)
    return list(groups.values())


def _by_queries(records: Sequence[Record], method: str, dataset: str) -> dict[int, list[Record]]:
    """Return one board row per number of queries: the paper preset's, or the row with most seeds."""
    found: dict[int, list[Record]] = {}
    plain = [r for r in records if r.method == method and r.dataset == dataset and r.queries and _is_plain(r)]
    for group in sorted(_rows(plain), key=lambda g: (g[0].preset == "paper", len(g), g[0].key)):
        assert group[0].queries is not None
        found[group[0].queries.asked] = group
    return found


def accuracy_text(group: Sequence[Record]) -> str:
    """Return mean ± standard deviation (number of seeds) of accuracies in %, or a dash without records."""
    if not group:
        return "–"
    values = [100 * r.utility.accuracy for r in group if r.utility is not None]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} ({len(values)})"


def _paper_table(table: PaperTable, records: Sequence[Record]) -> str:
    mine = _by_queries(records, table.trpate, table.dataset)
    plain = _by_queries(records, table.pate, table.dataset)
    if not mine:
        return ""
    rows = []
    for queries, (epsilon, pate, trpate) in sorted(table.printed.items(), reverse=True):
        group = mine.get(queries, [])
        proven = max((r.privacy.proven.epsilon for r in group if r.privacy), default=None)
        right = [100 * r.queries.label_accuracy for r in group if r.queries and r.queries.label_accuracy is not None]
        rows.append((
            str(queries), f"{epsilon:g}", epsilon_text(proven, "up"), f"{pate:.2f}",
            accuracy_text(plain.get(queries, [])), f"{trpate:.2f}", accuracy_text(group),
            f"{statistics.fmean(right):.1f}" if right else "–",
        ))  # fmt: skip
    preset = next(iter(mine.values()))[0].preset
    without = _rows(r for r in records if (r.method, r.dataset, r.preset) == (table.without, table.dataset, preset))
    here = "".join(f"; here {accuracy_text(group)}" for group in without)
    baseline = f"Non-private baseline: the paper's {table.baseline:.2f}{here}. Seeds in brackets.\n"
    return f"## {table.title}\n\n{markdown_table(_COLUMNS, rows)}\n{baseline}"


_COLUMNS = (
    "queries", "claimed (paper)", "proven", "PATE, paper", "PATE here", "TrPATE, paper", "TrPATE here", "labels right",
)  # fmt: skip


def _sources(records: Sequence[Record]) -> str:
    claimed = [
        r for r in records if r.method in ("trpate", "trpate-bayes") and r.basis.value == "claimed" and r.queries
    ]
    most: dict[tuple[str, str], int] = defaultdict(int)
    for record in claimed:
        assert record.queries is not None
        most[record.dataset, record.method] = max(most[record.dataset, record.method], record.queries.asked)
    rows = []
    for group in _rows(claimed):
        first = group[0]
        assert first.queries is not None
        if first.queries.asked == most[first.dataset, first.method]:
            source = first.public_data.partition("; unlabelled")[0]
            rows.append((first.dataset, first.method, source, str(first.queries.asked), accuracy_text(group)))
    rows.sort()
    if len({(dataset, method) for dataset, method, *_ in rows}) == len(rows):
        return ""
    table = markdown_table(("data set", "method", "source", "queries", "accuracy"), rows)
    return f"## Effect of the source and its size\n\n{table}"


def _by_proven(records: Sequence[Record]) -> str:
    kinds = ("trpate", "trpate-gnmax", "trpate-confident", "dp-linear", "dp-linear-gd", "pate")
    chosen = [r for r in records if r.method in kinds and r.basis.value == "proven" and r.epsilon is not None]
    places = {r.dataset for r in chosen if r.method != "pate"}
    rows = []
    for group in _rows(r for r in chosen if r.dataset in places):
        first, mean = group[0], statistics.fmean(r.utility.accuracy for r in group if r.utility is not None)
        replaced = max(replaced_epsilon(r.privacy) for r in group if r.privacy is not None)
        cells = (
            first.dataset, epsilon_text(replaced, "up"), first.method, str(first.config.get("backbone") or "–"),
            str(first.config.get("teachers", "–")), "–" if first.queries is None else str(first.queries.asked),
            accuracy_text(group),
        )  # fmt: skip
        rows.append(((first.dataset, replaced, -mean), cells))
    if not rows:
        return ""
    columns = ("data set", "proven, replace-one", "method", "backbone", "teachers", "queries", "accuracy")
    said = "Sorted by the proven epsilon for one replaced record, whatever the adjacency of the target.\n"
    return f"## By proven epsilon\n\n{said}\n{markdown_table(columns, [cells for _, cells in sorted(rows)])}"
