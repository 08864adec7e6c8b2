"""TrPATE's tables 2, 4 and 5 beside what ran here, and what else the same features buy. Pure functions of records."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.record import Record, Status
from reports.leaderboard import epsilon_text, md

Printed = dict[int, tuple[float, float, float]]
"""Queries to what the paper prints: epsilon, PATE's accuracy and TrPATE's, in %."""

TABLE_2: Printed = {
    100: (5.8, 42.24, 71.37),
    150: (7.38, 44.29, 74.80),
    200: (8.8, 44.42, 76.27),
    500: (15.7, 46.31, 80.69),
    1000: (25.2, 47.03, 82.64),
}
TABLE_4: Printed = {
    100: (5.8, 49.73, 64.32),
    200: (8.8, 50.10, 71.45),
    500: (15.7, 51.25, 78.99),
    1000: (25.2, 51.60, 79.34),
}
TABLE_5: Printed = {
    100: (5.8, 52.70, 73.73),
    200: (8.8, 52.53, 73.71),
    500: (15.7, 52.22, 73.81),
    1000: (25.2, 53.28, 73.35),
}


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One of the paper's tables: what it prints, and which records stand beside it."""

    title: str
    dataset: str
    printed: Printed
    baseline: float
    pate: str
    trpate: str
    without: str


TABLES = (
    PaperTable("Table 2: CIFAR-10", "cifar10", TABLE_2, 92.34, "pate", "trpate", "nonprivate-transfer"),
    PaperTable("Table 4: Movie Review, CNN", "movie-review", TABLE_4, 75.85, "pate", "trpate", "nonprivate"),
    PaperTable("Table 5: Movie Review, naive Bayes", "movie-review", TABLE_5, 75.21, "pate-bayes", "trpate-bayes", ""),
)


def trpate_page(records: Iterable[Record]) -> str:
    """Return the paper's tables beside the records, and the comparison at equal proven epsilon, as Markdown.

    Empty where no record belongs to it.
    """
    done = [r for r in records if r.status is Status.DONE and r.privacy is not None and r.utility is not None]
    parts = [_paper_table(table, done) for table in TABLES]
    parts += [_sources(done), _equal_proven(done)]
    found = [part for part in parts if part]
    if not found:
        return ""
    head = (
        "# Transferred knowledge\n\nAccuracy of the student in %, ± standard deviation over seeds. Columns named after "
        "the paper hold what it prints; the proven epsilon is ours, for the same queries.\n"
    )
    return "\n".join([head, *found])


def _is_plain(record: Record) -> bool:
    """Return whether a record is one of the papers' tables: gamma 0.05, claimed basis, all of the source."""
    config = record.config
    return (
        record.basis.value == "claimed"
        and config.get("gamma") == 0.05
        and config.get("source_fraction", 1.0) == 1.0
        and config.get("weights", "auto") != "random"
        and not str(config.get("weights", "")).startswith("source:")
    )


def _by_queries(records: Sequence[Record], method: str, dataset: str, keep: Callable[[Record], bool]) -> dict[int, str]:
    groups: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        if record.method == method and record.dataset == dataset and record.queries is not None and keep(record):
            groups[record.queries.asked].append(record)
    return {queries: accuracy_text(group) for queries, group in groups.items()}


def accuracy_text(group: Sequence[Record]) -> str:
    """Return mean and spread of the accuracies of `group`, in %, with the number of seeds."""
    values = [100 * r.utility.accuracy for r in group if r.utility is not None]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} ({len(values)})"


def _paper_table(table: PaperTable, records: Sequence[Record]) -> str:
    mine = _by_queries(records, table.trpate, table.dataset, _is_plain)
    plain = _by_queries(records, table.pate, table.dataset, _is_plain)
    if not mine:
        return ""
    proven: dict[int, float] = {}
    right: dict[int, list[float]] = defaultdict(list)
    for record in records:
        if (
            record.method == table.trpate and record.dataset == table.dataset and record.privacy and record.queries
            and _is_plain(record)
        ):  # fmt: skip
            proven[record.queries.asked] = record.privacy.proven.epsilon
            if record.queries.label_accuracy is not None:
                right[record.queries.asked].append(100 * record.queries.label_accuracy)
    lines = [
        f"## {table.title}\n",
        "| queries | claimed (paper) | proven | PATE, paper | PATE here | TrPATE, paper | TrPATE here | labels right |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for queries, (epsilon, pate, trpate) in sorted(table.printed.items(), reverse=True):
        cells = (
            str(queries),
            f"{epsilon:g}",
            epsilon_text(proven.get(queries), "up"),
            f"{pate:.2f}",
            plain.get(queries, "–"),
            f"{trpate:.2f}",
            mine.get(queries, "–"),
            f"{statistics.fmean(right[queries]):.1f}" if right[queries] else "–",
        )
        lines.append("| " + " | ".join(cells) + " |")
    without = [r for r in records if r.method == table.without and r.dataset == table.dataset]
    said = f"; here {accuracy_text(without)}" if without else ""
    lines.append(f"\nNon-private baseline: the paper's {table.baseline:.2f}{said}. Seeds in brackets.\n")
    return "\n".join(lines)


def _sources(records: Sequence[Record]) -> str:
    """Return what the kind and the quantity of the source do, at the largest number of queries of each data set."""
    groups: dict[tuple[str, str, str, int], list[Record]] = defaultdict(list)
    for record in records:
        if record.method in ("trpate", "trpate-bayes") and record.basis.value == "claimed" and record.queries:
            source = record.public_data.partition("; unlabelled")[0]
            groups[record.dataset, record.method, source, record.queries.asked].append(record)
    most: dict[tuple[str, str], int] = defaultdict(int)
    for dataset, method, _, asked in groups:
        most[dataset, method] = max(most[dataset, method], asked)
    rows = [
        (dataset, method, source, str(asked), accuracy_text(group))
        for (dataset, method, source, asked), group in sorted(groups.items())
        if asked == most[dataset, method]
    ]
    if len({(dataset, method) for dataset, method, *_ in rows}) == len(rows):
        return ""
    lines = ["## What the source is, and how much of it\n", "| data set | method | source | queries | accuracy |"]
    lines.append("|---|---|---|---|---|")
    lines += ["| " + " | ".join(md(text) for text in row) + " |" for row in rows]
    return "\n".join([*lines, ""])


def _equal_proven(records: Sequence[Record]) -> str:
    """Return the methods on transferred features at equal proven epsilon."""
    kinds = ("trpate", "trpate-gnmax", "trpate-confident", "dp-linear", "dp-linear-gd")
    groups: dict[tuple[str, float], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.method in kinds and record.basis.value == "proven" and record.epsilon is not None:
            groups[record.dataset, record.epsilon][record.method].append(record)
    if not groups:
        return ""
    lines = ["## At equal proven epsilon\n", "| data set | proven | " + " | ".join(kinds) + " |"]
    lines.append("|---" * (len(kinds) + 2) + "|")
    for (dataset, epsilon), found in sorted(groups.items()):
        cells = [accuracy_text(found[kind]) if kind in found else "–" for kind in kinds]
        lines.append("| " + " | ".join([dataset, f"{epsilon:g}", *cells]) + " |")
    return "\n".join([*lines, ""])
