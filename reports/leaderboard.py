"""The leaderboard as Markdown and CSV, from records grouped over seeds; tables never mix privacy units or data sets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bench.core.types import Adjacency, AuditKind, Basis, PrivacyUnit, TargetAdjacency
from bench.metrics.intervals import SeedSpread, accuracy_interval
from bench.privacy.accounting.risk import NAMES as RISKS
from bench.privacy.accounting.risk import Risk
from bench.reports.board_row import BoardRow
from bench.reports.claims import claim_of, counted_audits, remarks_of
from bench.reports.order import LEGEND, ORDER, dataset_order
from bench.reports.ranks import placed, resolution, with_spread
from bench.reports.reported.numbers import Reported
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.audited import audited_of
from bench.results.frame import results_frame, row_key
from bench.results.record import Record, Status
from bench.results.text import (
    Toward,
    csv_text,
    epsilon_digits,
    epsilon_text,
    markdown_list,
    markdown_table,
    md,
    risk_text,
)

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    "rank", "method", "target epsilon (basis)", "claimed", "proven", "proven, replace-one", "claim", "audited",
    "1 in 100", "accuracy", "whole test set", "drop", "seeds", "public data", "preset", "time", "remarks",
)  # fmt: skip


@dataclass(slots=True)
class Board:
    """The rows, the failed cells, and (key, reason) for each done cell that is not shown."""

    rows: list[BoardRow] = field(default_factory=list)
    failures: list[Record] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def tables(self) -> dict[tuple[str, str], list[BoardRow]]:
        """Return the rows by (data set, unit), in the board's order."""
        return {key: list(rows) for key, rows in groupby(self.rows, lambda row: (row.dataset, row.unit))}


def build_board(records: Iterable[Record], audits: Iterable[AuditRecord] = (), *, risks: bool = True) -> Board:
    """Return the board of `records`; the `audits` of a row's seeds count as one audit with all their runs.

    Without `risks`, rows lack what an attacker may reach, which takes seconds for each different ledger.
    """
    board = Board()
    usable = []
    for record in records:
        if record.status is Status.FAILED:
            board.failures.append(record)
        elif why := unusable(record):
            board.refused.append((record.key, why))
        else:
            usable.append(record)
    if usable:
        lost = Counter(row_key(record) for record in board.failures if record.collapsed)
        table = _grouped(results_frame(usable, audits, risks=risks), lost)
        board.rows = [_row(values) for values in with_spread(table.to_dict("records"))]
    board.rows.sort(key=_order)
    board.rows = [ranked for _, rows in groupby(board.rows, _competition) for ranked in placed(list(rows))]
    board.rows.sort(key=lambda row: (*_competition(row), row.place is None))
    board.failures.sort(key=lambda record: record.key)
    board.refused.sort()
    return board


@dataclass
class Source:
    """The inputs of a board's pages: records, audits, attacks, the run directory of each key, and papers' numbers."""

    records: list[Record]
    audits: list[AuditRecord] = field(default_factory=list)
    attacks: list[AttackRecord] = field(default_factory=list)
    reported: Sequence[Reported] = ()
    homes: dict[str, Path] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def board(self) -> Board:
        """The board of the records."""
        return build_board(self.records, self.audits)

    @property
    def owner_only(self) -> bool:
        """Whether only the owner may read the pages."""
        return any(record.disclosure.owner_only for record in self.records)

    def shown(self) -> list[Record]:
        """Return the records that the board shows."""
        refused = {key for key, _ in self.board.refused}
        return [record for record in self.records if record.key not in refused]


def _grouped(frame: pandas.DataFrame, lost: Mapping[str, int]) -> pandas.DataFrame:
    groups = frame.groupby("row", sort=False)
    worst = frame.loc[groups["proven"].idxmax()].set_index("row")
    # A data-dependent claim depends on the votes of its run.
    within = frame["data_dependent"] <= frame["claimed"] * (1 + 1e-9)
    table = groups.first().assign(
        data_dependent=within.groupby(frame["row"], sort=False).all(),
        # Seeds share their mechanisms. If their epsilons differ nevertheless, the row states the worst.
        claimed=groups["claimed"].max(),
        proven=worst["proven"],
        proven_by=worst["proven_by"],
        replace_one=groups["replace_one"].max(),
        **{name: groups[name].max() for name in RISKS},
        record_level=groups["record_level"].max(),
        impossible=groups["impossible"].agg(list),
        accuracies=groups["accuracy"].agg(list),
        official=groups["official"].mean(),
        cost=groups["cold"].mean(),
        processor=groups["processor"].agg(lambda found: found.iloc[0] if found.nunique() == 1 else ""),
        classes=groups["classes"].max(),
        seeds=groups["seed"].agg(tuple),
        keys=groups["key"].agg(tuple),
        audits=groups["audits"].agg(lambda lists: [audit for audits in lists for audit in audits]),
    )
    table["collapsed"] = [lost.get(row, 0) for row in table.index]
    # A generator that collapsed taught its student nothing: the seed counts at chance.
    chance = (100 / table["classes"]).fillna(0.0)
    seeds = groups.size()
    table["official"] = (table["official"] * seeds + chance * table["collapsed"]) / (seeds + table["collapsed"])
    table["accuracies"] = [
        [*found, *[guess] * count]
        for found, guess, count in zip(table["accuracies"], chance, table["collapsed"], strict=True)
    ]
    table["accuracy"] = [math.fsum(found) / len(found) for found in table["accuracies"]]
    table["spread"] = [stdev(found) if len(found) > 1 else math.nan for found in table["accuracies"]]
    # A row's baseline has the same data and preset and, on transferred features, the same backbone.
    same = ["dataset", "preset", "backbone"]
    without = table[table["target"].isna() & ~table["subset"]].sort_values(["accuracy", "keys"])
    best = without.drop_duplicates(same, keep="last").set_index(same)[["accuracy", "keys"]]
    table = table.join(best.rename(columns={"accuracy": "reference", "keys": "baseline"}), on=same)
    return table.assign(drop=table["reference"] - table["accuracy"])


def unusable(record: Record) -> str:
    """Return why a record's numbers cannot be shown, or "" if they can."""
    if record.utility is None or record.privacy is None:
        return f"it is done, and states no {'accuracy' if record.utility is None else 'epsilon'}"
    return ""


def _row(values: Mapping[str, Any]) -> BoardRow:
    unit = PrivacyUnit(values["unit"])
    audited = audited_of(values["audits"], unit)
    claim, reason = claim_of(values)
    spread: SeedSpread | None = values["seed_spread"]
    shares = [accuracy / 100 for accuracy in values["accuracies"]]
    low, high = accuracy_interval(shares, values["test_records"], spread=spread)
    remarks = [*remarks_of(values)]
    if spread is None:
        remarks.append("one seed: the interval covers test records only")
    elif spread.borrowed:
        remarks.append(f"interval with the seeds' deviation of the method's other rows ({spread.freedom} degrees)")
    first = next(iter(counted_audits(values)), None)
    known = {
        **values,
        "asked": values["target"],
        "claim": claim,
        "claim_reason": reason,
        "low": 100 * low,
        "high": 100 * high,
        "audited": None if audited is None or audited.silent else audited.epsilon,
        "audit": audited or audited_of(values["audits"], PrivacyUnit.RECORD),
        "pair": first if first is not None and first.kind is AuditKind.PAIR else None,
        "baseline": values["baseline"] if isinstance(values["baseline"], tuple) else (),
        "remarks": tuple(remarks),
        "risk": Risk.from_values(values[name] for name in RISKS),
    }
    missing = {name: None for name in ("asked", "spread", "official", "drop", "cost") if math.isnan(known[name])}
    return BoardRow(
        **{column.name: known[column.name] for column in fields(BoardRow) if column.name in known} | missing
    )


def _competition(row: BoardRow) -> tuple[Any, ...]:
    return dataset_order(row.dataset), row.unit, row.band.order


def _order(row: BoardRow) -> tuple[Any, ...]:
    # Beyond the largest budget, rows with a finite proven epsilon come first.
    return (*_competition(row), math.isinf(row.replace_one), -row.accuracy, row.method, row.config)


def cells_of(row: BoardRow) -> dict[str, str]:
    """Return the texts of a row in the order of :data:`COLUMNS`."""
    add_remove = row.adjacency == Adjacency.ADD_REMOVE.value
    own = add_remove and row.basis == Basis.PROVEN.value and row.target_adjacency == TargetAdjacency.OWN.value
    asked = "–" if row.asked is None else f"{row.asked:g} ({row.basis}{', add-remove' if own else ''})"
    texts = (
        f"{row.rank} {row.marks}".rstrip(),
        row.method,
        asked,
        epsilon_text(row.claimed),
        epsilon_text(row.proven, "up") + (" (add-remove)" if add_remove else ""),
        epsilon_text(row.replace_one, "up"),
        claim_text(row),
        row.audited_text,
        risk_text(row.risk.reconstruction[1], row.proven),
        f"{row.accuracy:.2f} ({row.low:.1f}–{row.high:.1f})",
        "–" if row.official is None else f"{row.official:.2f}",
        "–" if row.drop is None else f"{row.drop:.2f}",
        str(len(row.seeds) + row.collapsed),
        row.public_data,
        row.preset,
        "–" if row.cost is None else f"{row.cost:.0f} s" + f" ({row.processor})" * bool(row.processor),
        "; ".join(row.remarks),
    )
    return dict(zip(COLUMNS, texts, strict=True))


def claim_text(row: BoardRow) -> str:
    """Return the claim column's text."""
    other = row.pair is not None and row.pair.record_level and bool(row.pair.refuted_by)
    return (row.claim or "–") + ", refuted at record level" * other


def to_markdown(board: Board) -> str:
    """Return the board as Markdown: one table per data set and unit, then the failures."""
    parts = ["# Leaderboard\n"]
    if board.rows:
        parts.append(f"{ORDER}\n\n{LEGEND}\n")
    if any(row.pair is not None for row in board.rows):
        parts.append("For what was audited, how often, and with what power, see [audits.md](audits.md).\n")
    for (dataset, unit), rows in board.tables().items():
        deltas = sorted({row.delta for row in rows})
        adjacencies = sorted({row.adjacency for row in rows})
        zero_out = "Under add-remove the number of records stays public (zero-out). " * ("add-remove" in adjacencies)
        parts.append(f"## {md(dataset)}, unit {unit}\n")
        parts.append(
            f"Adjacency of claims and proofs: {', '.join(adjacencies)}. {zero_out}"
            f"delta = {', '.join(f'{d:g}' for d in deltas)}. "
            "Accuracy in % (95% interval); drop in points below the non-private baseline "
            "(with the same backbone, for transferred features).\n"
        )
        for band, group in groupby(rows, lambda row: row.band):
            competing = list(group)
            parts.append(f"**Proven epsilon {band}**\n" if band.private else "**Without privacy**\n")
            if said := resolution(competing):
                parts.append(f"{said}\n")
            parts.append(markdown_table(COLUMNS, (tuple(cells_of(row).values()) for row in competing)))
    failed = [
        f"`{md(r.key)}`: {md(r.failure.reason if r.failure else 'unknown')}"
        + ("" if r.image_grid is None else f" [Its images]({quote(r.image_grid.file)})")
        for r in board.failures
    ]
    refused = [f"`{md(key)}`: {md(why)}" for key, why in board.refused]
    parts += [markdown_list("## Failed", failed), markdown_list("## Not shown", refused)]
    if not board.rows and not failed and not refused:
        parts.append("No records.\n")
    return "\n".join(filter(None, parts))


CSV_COLUMNS = (
    "dataset", "unit", "adjacency", "method", "asked", "basis", "target_adjacency", "delta", "preset", "noise",
    "claimed", "proven", "proven_by", "replace_one", "claim", "claim_reason", "audited", "audited_by", *RISKS, "budget",
    "place", "place_last", "unranked", "marks", "accuracy", "low", "high", "spread", "official", "drop", "seeds",
    "collapsed",
    "public_data", "cost", "remarks", "reduced", "keys", "config",
)  # fmt: skip


def to_csv(board: Board) -> str:
    """Return the board as CSV with the columns :data:`CSV_COLUMNS`; lists are joined by "; "."""
    bounds: dict[str, Toward] = {"proven": "up", "replace_one": "up", "audited": "down", **dict.fromkeys(RISKS, "up")}

    def cell(row: BoardRow, column: str) -> object:
        value = row.risk.as_dict()[column] if column in RISKS else getattr(row, column)
        return epsilon_digits(value, bounds[column]) if column in bounds else value

    return csv_text(CSV_COLUMNS, ([cell(row, column) for column in CSV_COLUMNS] for row in board.rows))
