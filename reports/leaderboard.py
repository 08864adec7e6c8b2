"""The leaderboard as Markdown and CSV, from records grouped over seeds; tables never mix privacy units or data sets."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench.core.types import Adjacency, Basis, TargetAdjacency
from bench.privacy.accounting.risk import NAMES as RISKS
from bench.reports.board_row import BoardRow
from bench.reports.order import LEGEND, ORDER, dataset_order
from bench.reports.ranks import resolution, set_ranks, set_spreads
from bench.reports.reported.numbers import Reported
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.audited import by_student
from bench.results.candidates import NAMED
from bench.results.derived import row_key
from bench.results.record import Record, Status
from bench.results.replays import Replay, replay_of
from bench.results.text import (
    Toward,
    claimed_text,
    csv_text,
    epsilon_digits,
    epsilon_text,
    markdown_list,
    markdown_table,
    md,
    risk_text,
)

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


def build_board(records: Iterable[Record], audits: Iterable[AuditRecord] = (), replays: Sequence[Replay] = ()) -> Board:
    """Return the board of `records`; the `audits` of a row's seeds count as one audit with all their runs."""
    board = Board()
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: (record.seed, record.key)):
        if record.status is Status.FAILED:
            board.failures.append(record)
        elif why := unusable(record):
            board.refused.append((record.key, why))
        else:
            groups[row_key(record)].append(record)
    lost = Counter(row_key(record) for record in board.failures if record.collapsed)
    of_student = by_student(audits)
    board.rows = [
        BoardRow(group, [audit for record in group for audit in of_student[record.key]], lost[key])
        for key, group in groups.items()
    ]
    newest = newest_sources(record for group in groups.values() for record in group)
    for row in board.rows:
        if (plugin := row.records[0].cell.plugin) is not None and newest[row.method] != plugin.source_sha256:
            row.earlier = plugin.source_sha256
        row.replay = replay_of(replays, row.method, row.dataset, row.keys)
    set_spreads(board.rows)
    _set_baselines(board.rows)
    board.rows.sort(key=_order)
    for _, competing in groupby(board.rows, _competition):
        set_ranks(competing)
    board.rows.sort(key=lambda row: (*_competition(row), row.place is None))
    board.failures.sort(key=lambda record: record.key)
    board.refused.sort()
    return board


def newest_sources(records: Iterable[Record]) -> dict[str, str]:
    """Return the source hash of each plug-in's newest record, by method."""
    dated = sorted(records, key=lambda record: record.provenance.started)
    return {record.method: record.cell.plugin.source_sha256 for record in dated if record.cell.plugin is not None}


def _set_baselines(rows: Sequence[BoardRow]) -> None:
    """Set each row's best non-private row of the same data, preset and, on transferred features, backbone."""
    best: dict[tuple[str, ...], BoardRow] = {}
    for row in sorted(rows, key=lambda row: (row.accuracy, row.keys)):
        if row.asked is None and not row.subset:
            best[row.dataset, row.preset, row.backbone] = row
    for row in rows:
        row.baseline = best.get((row.dataset, row.preset, row.backbone))


@dataclass
class Source:
    """The inputs of a board's pages: records, audits, attacks, the run directory of each key, and papers' numbers."""

    records: list[Record]
    audits: list[AuditRecord] = field(default_factory=list)
    attacks: list[AttackRecord] = field(default_factory=list)
    reported: Sequence[Reported] = ()
    homes: dict[str, Path] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)

    @cached_property
    def board(self) -> Board:
        """The board of the records."""
        return build_board(self.records, self.audits, self.replays)

    @property
    def owner_only(self) -> bool:
        """Whether only the owner may read the pages."""
        return any(record.disclosure.owner_only for record in self.records)

    def shown(self) -> list[Record]:
        """Return the records that the board shows."""
        refused = {key for key, _ in self.board.refused}
        return [record for record in self.records if record.key not in refused]


def unusable(record: Record) -> str:
    """Return why a record's numbers cannot be shown, or "" if they can."""
    if record.utility is None or record.privacy is None:
        return f"it is done, but states no {'accuracy' if record.utility is None else 'epsilon'}"
    return ""


def _competition(row: BoardRow) -> tuple[Any, ...]:
    return dataset_order(row.dataset), row.unit, row.band.order


def _order(row: BoardRow) -> tuple[Any, ...]:
    # Beyond the largest budget, rows with a finite proven epsilon come first.
    return (*_competition(row), math.isinf(row.replace_one), -row.accuracy, row.method, row.config)


def cells_of(row: BoardRow) -> dict[str, str]:
    """Return the texts of a row in the order of :data:`COLUMNS`."""
    add_remove = row.adjacency is Adjacency.ADD_REMOVE
    own = add_remove and row.basis is Basis.PROVEN and row.target_adjacency is TargetAdjacency.OWN
    asked = "–" if row.asked is None else f"{row.asked:g} ({row.basis}{', add-remove' if own else ''})"
    texts = (
        f"{row.rank} {row.marks}".rstrip(),
        row.method,
        asked,
        claimed_text(row.claimed, row.proven),
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
        "–" if row.cost is None else f"{row.cost_is}{row.cost:.0f} s" + f" ({row.processor})" * bool(row.processor),
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
    if any(row.pair or row.informed for row in board.rows):
        parts.append("For what was audited, how often, and with what power, see [audits.md](audits.md).\n")
    for (dataset, unit), rows in board.tables().items():
        deltas = sorted({row.delta for row in rows})
        adjacencies = sorted({row.adjacency for row in rows})
        zero_out = "Under add-remove the number of records stays public (zero-out). " * ("add-remove" in adjacencies)
        parts.append(f"## {md(dataset)}, unit {unit}\n")
        parts.append(
            f"Adjacency of claims and proofs: {', '.join(adjacencies)}. {zero_out}delta = "
            f"{', '.join(f'{d:g}' for d in deltas)}. Accuracy in % (95% interval); drop in points below the "
            "non-private baseline (with the same backbone, for transferred features).\n"
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
    "claimed", "proven", "proven_by", "replace_one", "claim", "claim_reason", "audited", "audit_status", "audited_by",
    "replayed", *RISKS, *NAMED.values(), "budget", "place", "place_last", "unranked", "marks", "accuracy", "low",
    "high", "spread", "official", "drop", "seeds", "collapsed", "public_data", "cost", "remarks", "reduced", "keys",
    "config",
)  # fmt: skip


def to_csv(board: Board) -> str:
    """Return the board as CSV with the columns :data:`CSV_COLUMNS`; lists are joined by "; "."""
    bounds: dict[str, Toward] = {
        "proven": "up", "replace_one": "up", "audited": "down", **dict.fromkeys(RISKS, "up"),
        **dict.fromkeys(NAMED.values(), "down"),
    }  # fmt: skip

    def cell(row: BoardRow, column: str) -> object:
        limits = {**row.risk.as_dict(), **row.named}
        value = limits[column] if column in limits else getattr(row, column)
        return epsilon_digits(value, bounds[column]) if column in bounds else value

    return csv_text(CSV_COLUMNS, ([cell(row, column) for column in CSV_COLUMNS] for row in board.rows))
