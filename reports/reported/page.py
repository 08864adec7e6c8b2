"""The papers' printed numbers as a Markdown page: one table per data set and unit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.core.grouping import grouped
from bench.privacy.auditing.utility_bound import TRIES
from bench.reports.reported.contradictions import Conflict, DropError, conflicts, drop_errors
from bench.reports.reported.numbers import Reported, Verdict
from bench.reports.reported.systems import PAPERS
from bench.results.text import markdown_list, markdown_table, md

NAMES = {"pate": "PATE", "trpate": "TrPATE", "dgd": "DGD", "dpsd": "DPSD"}

UNITS = ("record", "client", "label", "query-label", "none")

HEAD = Path(__file__).with_name("head.md").read_text("utf-8")


def to_markdown(rows: Sequence[Reported]) -> str:
    """Return the page of `rows`: tables, other numbers, conflicts, wrong drops, notes and the reasons of verdicts."""
    tables = grouped(((row.dataset, row.unit), row) for row in rows if row.measure == "accuracy")
    order = sorted(tables, key=lambda key: (key[0], UNITS.index(key[1])))
    numbers = _footnotes(tables, order)
    *most, last = [f"{NAMES[paper]} ({citation})" for paper, citation in PAPERS.items()]
    papers = f"{', '.join(most)} and {last}"
    parts = [HEAD.format(papers=papers, tries=TRIES), _summary(rows)]
    parts += [_table(dataset, unit, tables[dataset, unit], numbers) for dataset, unit in order]
    parts += [_others(rows), _conflicts(conflicts(rows)), _drops(drop_errors(rows)), _notes(rows), _reasons(numbers)]
    return "\n".join(part for part in parts if part)


_Judgement = tuple[str, str, str, str, Verdict, str, str]


def _judgement(row: Reported) -> _Judgement:
    return row.system, row.paper_verdict, row.reason, row.source, row.code_verdict, row.code_reason, row.code_source


def _footnotes(
    tables: dict[tuple[str, str], list[Reported]], order: Iterable[tuple[str, str]]
) -> dict[_Judgement, int]:
    numbers: dict[_Judgement, int] = {}
    for key in order:
        for row in sorted(tables[key], key=_rank):
            numbers.setdefault(_judgement(row), len(numbers) + 1)
    return numbers


def _rank(row: Reported) -> tuple[object, ...]:
    epsilon = math.inf if row.epsilon is None else row.epsilon
    return row.system.casefold(), row.system, epsilon, list(PAPERS).index(row.paper), row.table, row.setting, row.column


def _section(title: str, columns: Sequence[str], cells: Iterable[Sequence[str]], intro: str = "") -> str:
    rows = dict.fromkeys(map(tuple, cells))
    head = [f"## {title}\n"] if title else []
    head += [intro] if intro else []
    return "\n".join([*head, markdown_table(columns, rows)]) if rows else ""


def number_text(value: float | None) -> str:
    """Return a printed number without trailing zeros, ∞ for infinity, or a dash for None."""
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else f"{value:.10g}"


def _where(row: Reported) -> str:
    place = row.table if row.table.startswith(("text", "fig")) else f"Table {row.table}"
    return f"{NAMES[row.paper]}, {place}"


def _summary(rows: Sequence[Reported]) -> str:
    systems = grouped(((row.verdict, _code(row)), row.system) for row in rows if row.measure == "accuracy")
    order = list(Verdict)
    cells = [
        (paper.value, code, str(len(of)), ", ".join(sorted(set(of), key=lambda s: (s.casefold(), s))))
        for (paper, code), of in sorted(systems.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    ]
    return _section("", ("paper", "code", "accuracies", "systems"), cells)


def _code(row: Reported) -> str:
    return "–" if row.verdict is Verdict.NONE else row.code_verdict.value


def _table(dataset: str, unit: str, rows: Sequence[Reported], numbers: dict[_Judgement, int]) -> str:
    title = "without privacy" if unit == "none" else f"unit {unit}"
    columns = ("system", "epsilon", "delta", "accuracy", "printed in", "setting", "public data", "paper", "code")
    cells = [
        (
            row.system, *map(number_text, (row.epsilon, row.delta, row.value)), _where(row), row.setting,
            row.public_data, row.paper_verdict, f"{_code(row)} [{numbers[_judgement(row)]}]",
        )
        for row in sorted(rows, key=_rank)
    ]  # fmt: skip
    return _section(f"{md(dataset)}, {title}", columns, cells)


def _others(rows: Sequence[Reported]) -> str:
    """Return the other numbers, without the drops and epsilons that tables print next to accuracies."""
    cells = [
        (_where(row), row.row, row.column, row.dataset, row.setting, row.measure, number_text(row.value))
        for row in rows
        if row.measure not in {"accuracy", "drop", "epsilon"}
        or (row.measure == "epsilon" and row.table.startswith(("text", "fig")))
    ]
    return _section("Other numbers", ("printed in", "row", "column", "data set", "setting", "what", "value"), cells)


def _conflicts(found: Sequence[Conflict]) -> str:
    intro = "These accuracies of the same system, data set, epsilon and setting differ by more than rounding.\n"
    cells = []
    for each in found:
        printed = "; ".join(f"{number_text(row.value)} ({_where(row)})" for row in each.rows)
        cells.append((each.system, each.dataset, number_text(each.epsilon), printed))
    return _section("Contradictions between papers", ("system", "data set", "epsilon", "printed"), cells, intro)


def _drops(found: Sequence[DropError]) -> str:
    cells = []
    for each in found:
        drop, parts = each.drop, f"{number_text(each.baseline.value)} − {number_text(each.accuracy.value)}"
        epsilon, value = number_text(drop.epsilon), number_text(drop.value)
        cells.append((_where(drop), drop.system, drop.dataset, epsilon, value, f"{parts} = {each.difference:.2f}"))
    columns = ("printed in", "system", "data set", "epsilon", "drop", "difference of the accuracies")
    return _section("Drops that do not match the accuracies", columns, cells)


def _notes(rows: Sequence[Reported]) -> str:
    # Skip notes that only name the section; they help to verify the data.
    noted = (row for row in rows if row.note and not row.note.startswith(("section", "caption")))
    notes = grouped((n.note, f"{_where(n)}, {n.system}, {n.dataset}: {number_text(n.value)}") for n in noted)
    lines = [f"{md('; '.join(dict.fromkeys(places)))}. {md(note)}." for note, places in notes.items()]
    return markdown_list("## Notes", lines)


def _reasons(numbers: dict[_Judgement, int]) -> str:
    lines = []
    for (system, verdict, reason, source, code, code_reason, code_source), number in numbers.items():
        line = f"- [{number}] **{md(system)}**, {verdict}: {md(reason.rstrip('.'))}. Place: {md(source)}."
        if verdict != Verdict.NONE.value:
            line += f" Code, {code.value}"
            line += f": {md(code_reason.rstrip('.'))}. Place: {md(code_source)}." if code_reason else "."
        lines.append(line)
    return "\n".join(["## Reasons\n", *lines, ""])
