"""The leaderboard as Markdown and CSV, from records grouped over seeds; tables never mix privacy units or data sets."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bench.core.types import Adjacency, AuditKind, Basis, PrivacyUnit, TargetAdjacency
from bench.metrics.intervals import accuracy_interval
from bench.privacy.accounting.risk import NAMES as RISKS
from bench.privacy.accounting.risk import Risk
from bench.reports.claims import Claim, claim_of, counted_audits, remarks_of
from bench.reports.order import ORDER, Band, dataset_order
from bench.reports.reported.numbers import Reported
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.audited import audited_of
from bench.results.frame import results_frame, row_key
from bench.results.record import Audited, Record, Status
from bench.results.text import (
    Toward,
    audited_text,
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


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One row of the board: cells that differ only in their seed. Accuracies are in %, `cost` in seconds per cell."""

    dataset: str
    unit: str
    adjacency: str
    method: str
    asked: float | None
    basis: str
    target_adjacency: str
    delta: float
    preset: str
    noise: str
    claimed: float
    proven: float
    proven_by: str
    replace_one: float
    """Proven epsilon for replace neighbours; :attr:`proven` is for the method's adjacency."""
    risk: Risk
    """What the proven curve allows an attacker, between neighbours by :attr:`adjacency`."""
    audited: float | None
    """None without an audit, or if the audit had no power."""
    audit: Audited | None
    """The audit behind :attr:`audited`, or the audit of a training record if there is no other."""
    pair: AuditRecord | None
    """The deciding pair audit, if there is one."""
    claim: Claim
    claim_reason: str
    accuracy: float
    spread: float | None
    """Standard deviation over seeds; None with one seed."""
    low: float
    high: float
    """The 95% interval of the accuracy; see :func:`bench.metrics.intervals.accuracy_interval`."""
    official: float | None
    """Accuracy on the whole official test set; None if a part of it is public, or if it was not measured."""
    drop: float | None
    """Points below the best non-private baseline of the same data set, preset and backbone; None without one."""
    seeds: tuple[int, ...]
    collapsed: int
    """Number of further seeds with collapsed generators; their records count nowhere else."""
    public_data: str
    cost: float
    remarks: tuple[str, ...]
    reduced: tuple[str, ...]
    keys: tuple[str, ...]
    config: str
    """Short hash of the config, which separates rows that differ only in an option."""
    baseline: tuple[str, ...] = ()
    place: int | None = None
    """The rank in its band, tied if intervals overlap; None beyond the largest budget."""

    @property
    def band(self) -> Band:
        """The budget that the row competes in."""
        return Band.of(self.replace_one, None if self.asked is None else self.claimed)

    @property
    def audited_text(self) -> str:
        """The audited column's text."""
        other = self.audit is not None and not self.audit.silent and self.audited is None
        return audited_text(self.audit) + " (record)" * other

    @property
    def audited_by(self) -> str:
        """The result of the audit, in words."""
        return "" if self.audit is None else self.audit.audit


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
        table = _grouped(results_frame(usable, audits, risks=risks))
        lost = Counter(row_key(record) for record in board.failures if record.collapsed)
        board.rows = [_row({**values, "collapsed": lost[row]}) for row, values in table.to_dict("index").items()]
    board.rows.sort(key=_order)
    board.rows = [ranked for _, rows in groupby(board.rows, _competition) for ranked in _placed(list(rows))]
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
    def private(self) -> bool:
        """Whether any record uses private data, so that only the owner may read the pages."""
        return not all(record.public_benchmark for record in self.records)

    def shown(self) -> list[Record]:
        """Return the records that the board shows."""
        refused = {key for key, _ in self.board.refused}
        return [record for record in self.records if record.key not in refused]


def _grouped(frame: pandas.DataFrame) -> pandas.DataFrame:
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
        accuracy=groups["accuracy"].mean(),
        spread=groups["accuracy"].std(),
        official=groups["official"].mean(),
        accuracies=groups["accuracy"].agg(list),
        cost=groups["cost"].mean(),
        seeds=groups["seed"].agg(tuple),
        keys=groups["key"].agg(tuple),
        audits=groups["audits"].agg(lambda lists: [audit for audits in lists for audit in audits]),
    )
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
    low, high = accuracy_interval([a / 100 for a in values["accuracies"]], values["test_records"])
    first = next(iter(counted_audits(values)), None)
    known = {
        **values,
        "asked": values["target"],
        "claim": claim,
        "claim_reason": reason,
        "low": 100 * low,
        "high": 100 * high,
        "place": None,
        "audited": None if audited is None or audited.silent else audited.epsilon,
        "audit": audited or audited_of(values["audits"], PrivacyUnit.RECORD),
        "pair": first if first is not None and first.kind is AuditKind.PAIR else None,
        "baseline": values["baseline"] if isinstance(values["baseline"], tuple) else (),
        "remarks": tuple(remarks_of(values)),
        "risk": Risk.from_values(values[name] for name in RISKS),
    }
    missing = {name: None for name in ("asked", "spread", "official", "drop") if math.isnan(known[name])}
    return BoardRow(**{column.name: known[column.name] for column in fields(BoardRow)} | missing)


def _competition(row: BoardRow) -> tuple[Any, ...]:
    return dataset_order(row.dataset), row.unit, row.band.order


def _order(row: BoardRow) -> tuple[Any, ...]:
    # Beyond the largest budget, rows with a finite proven epsilon come first.
    return (*_competition(row), math.isinf(row.replace_one), -row.accuracy, row.method, row.config)


def _placed(rows: Sequence[BoardRow]) -> list[BoardRow]:
    """Return the rows of one band with their ranks."""
    if not rows[0].band.private or math.isinf(rows[0].band.limit):
        return list(rows)
    lows = sorted(row.low for row in rows)
    return [replace(row, place=1 + len(rows) - bisect_right(lows, row.high)) for row in rows]


def cells_of(row: BoardRow) -> dict[str, str]:
    """Return the texts of a row in the order of :data:`COLUMNS`."""
    add_remove = row.adjacency == Adjacency.ADD_REMOVE.value
    own = add_remove and row.basis == Basis.PROVEN.value and row.target_adjacency == TargetAdjacency.OWN.value
    asked = "–" if row.asked is None else f"{row.asked:g} ({row.basis}{', add-remove' if own else ''})"
    texts = (
        "–" if row.place is None else str(row.place),
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
        str(len(row.seeds)),
        row.public_data,
        row.preset,
        f"{row.cost:.0f} s" if row.cost else "–",
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
        parts.append(f"{ORDER}\n")
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
        for band, competing in groupby(rows, lambda row: row.band):
            parts.append(f"**Proven epsilon {band}**\n" if band.private else "**Without privacy**\n")
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
    "claimed", "proven", "proven_by", "replace_one", "claim", "claim_reason", "audited", "audited_by", *RISKS, "place",
    "accuracy", "low", "high", "spread", "official", "drop", "seeds",
    "public_data", "cost", "remarks", "reduced", "keys", "config",
)  # fmt: skip


def to_csv(board: Board) -> str:
    """Return the board as CSV with the columns :data:`CSV_COLUMNS`; lists are joined by "; "."""
    bounds: dict[str, Toward] = {"proven": "up", "replace_one": "up", "audited": "down", **dict.fromkeys(RISKS, "up")}

    def cell(row: BoardRow, column: str) -> object:
        value = row.risk.as_dict()[column] if column in RISKS else getattr(row, column)
        return epsilon_digits(value, bounds[column]) if column in bounds else value

    return csv_text(CSV_COLUMNS, ([cell(row, column) for column in CSV_COLUMNS] for row in board.rows))
