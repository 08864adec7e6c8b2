"""The leaderboard: records grouped over seeds, as Markdown and CSV. A pure function of records.

Rows of different privacy units or data sets never share a table. Inside a table rows compete within the budget that was
asked for, the smallest first. Of one budget the rows with a finite proven epsilon come first, each part ordered by
accuracy.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench.core.types import PrivacyUnit
from bench.privacy.utility_bound import remark
from bench.results.attack_record import AuditRecord, MechanismVerdict
from bench.results.audited import audited_of, no_power
from bench.results.record import Record, Status
from bench.results.text import epsilon_text, md
from bench.storage.cache import digest_of
from reports.order import ORDER, Asked, dataset_order

COLUMNS = (
    "method",
    "asked",
    "claimed",
    "proven",
    "audited",
    "accuracy",
    "drop",
    "seeds",
    "public data",
    "preset",
    "cost",
    "remarks",
)


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One line of the board: cells that differ in their seed alone. Accuracies in percent, cost in seconds a cell."""

    dataset: str
    unit: str
    adjacency: str
    method: str
    asked: float | None
    basis: str
    delta: float
    preset: str
    noise: str
    claimed: float
    proven: float
    proven_by: str
    audited: float | None
    accuracy: float
    spread: float | None
    """Standard deviation over seeds; None with one seed."""
    drop: float | None
    """Percentage points below the non-private baseline of the same data set and preset, and on transferred features of
    the same backbone; None where there is none."""
    seeds: tuple[int, ...]
    public_data: str
    cost: float
    remarks: tuple[str, ...]
    reduced: tuple[str, ...]
    keys: tuple[str, ...]
    config: str
    """Short hash of the config: tells rows apart that differ in an option only."""
    baseline: tuple[str, ...] = ()
    """Keys of the records that `drop` is measured from."""

    @property
    def budget(self) -> Asked:
        """What the row competes within."""
        return Asked.of(self.asked, self.basis)


@dataclass(slots=True)
class Board:
    """All rows of the board, the cells that failed, and those whose numbers cannot be shown."""

    rows: list[BoardRow] = field(default_factory=list)
    failures: list[Record] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Key and reason of each done cell that is not shown."""

    def tables(self) -> dict[tuple[str, str], list[BoardRow]]:
        """Return the rows by (data set, unit), ordered as they are printed."""
        tables: dict[tuple[str, str], list[BoardRow]] = defaultdict(list)
        for row in self.rows:
            tables[row.dataset, row.unit].append(row)
        return {key: sorted(rows, key=_rank) for key, rows in sorted(tables.items(), key=_place)}


def _place(table: tuple[tuple[str, str], list[BoardRow]]) -> tuple[tuple[int, str], str]:
    (dataset, unit), _ = table
    return dataset_order(dataset), unit


def build_board(records: Iterable[Record], audits: Iterable[AuditRecord] = ()) -> Board:
    """Return the board of `records`: done cells grouped over seeds, failed ones apart.

    The audited column comes from `audits`: those of one row's seeds are one audit of all their runs.
    """
    board = Board()
    by_student: dict[str, list[AuditRecord]] = defaultdict(list)
    for audit in audits:
        by_student[audit.student].append(audit)
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.status is Status.FAILED:
            board.failures.append(record)
        elif why := unusable(record):
            board.refused.append((record.key, why))
        else:
            groups[row_key(record)].append(record)
    baselines = _baselines(groups.values())
    for group in groups.values():
        mine = [audit for record in group for audit in by_student[record.key]]
        board.rows.append(_row(sorted(group, key=lambda r: r.seed), baselines, mine))
    board.rows.sort(key=lambda row: (dataset_order(row.dataset), row.unit, _rank(row)))
    board.failures.sort(key=lambda record: record.key)
    board.refused.sort()
    return board


def unusable(record: Record) -> str:
    """Return why the numbers of a record cannot stand in a table or a plot; empty where they can."""
    if record.utility is None or record.privacy is None:
        return f"it is done, and states no {'accuracy' if record.utility is None else 'epsilon'}"
    if not 0 <= record.utility.accuracy <= 1:
        return f"its accuracy is {record.utility.accuracy}, not a share between 0 and 1"
    figures = {"claimed": record.privacy.claimed.epsilon, "proven": record.privacy.proven.epsilon}
    for name, epsilon in figures.items():
        if not epsilon >= 0:
            return f"its {name} epsilon is {epsilon}"
    return ""


def row_key(record: Record) -> str:
    """Return what the records of one row of the board have in common: all that was asked for but the seed."""
    return digest_of(
        [
            record.dataset, record.dataset_revision, record.method, record.method_version, record.preset,
            record.epsilon, record.basis.value, record.delta, record.noise, record.precision, record.config,
        ]
    )  # fmt: skip


Baselines = dict[tuple[str, str, str], tuple[float, tuple[str, ...]]]
"""What a row is compared with: mean accuracy in percent, and the keys of the records behind it."""


def _baselines(groups: Iterable[list[Record]]) -> Baselines:
    found: Baselines = {}
    for group in groups:
        if group[0].epsilon is None and group[0].config.get("records") is None:
            accuracy = statistics.fmean(_accuracy(record) for record in group)
            keys = tuple(record.key for record in sorted(group, key=lambda r: r.seed))
            key = _compared_with(group[0])
            found[key] = max(found.get(key, (0.0, keys)), (accuracy, keys))
    return found


def _compared_with(record: Record) -> tuple[str, str, str]:
    """Return what a baseline must share with a row: data, preset and, on transferred features, the backbone."""
    return record.dataset, record.preset, str(record.config.get("backbone") or "")


def _accuracy(record: Record) -> float:
    assert record.utility is not None
    return 100 * record.utility.accuracy


def _row(group: Sequence[Record], baselines: Baselines, audits: Sequence[AuditRecord]) -> BoardRow:
    first = group[0]
    privacy = first.privacy
    assert privacy is not None
    every = [record.privacy for record in group if record.privacy is not None]
    accuracies = [_accuracy(record) for record in group]
    accuracy = statistics.fmean(accuracies)
    reference, compared_with = baselines.get(_compared_with(first), (None, ()))
    claimed = max(p.claimed.epsilon for p in every)
    # Seeds of one config share their mechanisms; should a figure differ, the row states the worst.
    worst = max((p.proven for p in every), key=lambda figure: figure.epsilon)
    audited = audited_of(audits, privacy.unit)
    return BoardRow(
        dataset=first.dataset,
        unit=privacy.unit.value,
        adjacency=privacy.adjacency.value,
        method=first.method,
        asked=first.epsilon,
        basis=first.basis.value,
        delta=first.delta,
        preset=first.preset,
        noise=first.noise,
        claimed=claimed,
        proven=worst.epsilon,
        proven_by=worst.name,
        audited=None if audited is None else audited.epsilon,
        accuracy=accuracy,
        spread=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        drop=None if reference is None else reference - accuracy,
        seeds=tuple(record.seed for record in group),
        public_data=first.public_data,
        cost=statistics.fmean(record.provenance.wall_seconds for record in group),
        remarks=_remarks(group, claimed, worst.epsilon, audits),
        reduced=tuple(map(str, first.reduced)),
        keys=tuple(record.key for record in group),
        config=digest_of(first.config)[:6],
        baseline=compared_with,
    )


def _remarks(group: Sequence[Record], claimed: float, proven: float, audits: Sequence[AuditRecord]) -> tuple[str, ...]:
    first = group[0]
    remarks: list[str] = []
    if first.privacy is not None and first.privacy.bypasses:
        remarks.append("; ".join(first.privacy.bypasses))
    elif proven > claimed:
        remarks.append("proven > claimed")
    levels = [r.privacy.record_level.epsilon for r in group if r.privacy is not None and r.privacy.record_level]
    if levels:
        remarks.append(f"record level: epsilon {epsilon_text(max(levels), 'up')}")
    plausible = [r.privacy.plausibility for r in group if r.privacy is not None]
    remarks.extend(filter(None, [remark([p.probability for p in plausible if p is not None])]))
    if first.privacy is not None:
        of_record = max(levels, default=None)
        remarks.extend(_audit_remarks(audits, first.privacy.unit, claimed, proven, of_record))
    if first.reduced:
        count = len(first.reduced)
        remarks.append(f"{count} setting{'s differ' if count > 1 else ' differs'} from the paper's")
    if first.noise == "secure":
        remarks.append("secure noise, not reproducible")
    if first.precision != "float32":
        remarks.append(f"teachers in {first.precision}")
    return tuple(remarks)


def _audit_remarks(
    audits: Sequence[AuditRecord], unit: PrivacyUnit, claimed: float, proven: float, of_record: float | None
) -> list[str]:
    """Return what the audits of a row say besides the number in its column.

    `of_record` is what is proven of a training record, where the row speaks of another unit. The audited pipelines may
    hold a record more or less than the row's, and prove a little more: a bound is held against what they prove.
    """
    remarks: list[str] = []
    done = [audit for audit in audits if audit.status is Status.DONE]
    if not done:
        return remarks
    allowed = max((audit.allowed for audit in done if audit.allowed is not None), default=None)
    audited = audited_of(done, unit)
    if audited is not None:
        limit = proven if allowed is None else max(proven, allowed)
        slack = limit / proven if math.isfinite(limit) and proven > 0 else 1.0
        if audited.epsilon > limit:
            remarks.append("BUG: audited > proven")
        elif audited.epsilon > claimed * slack:
            remarks.append("audited > claimed: the claim is refuted")
    else:
        audited = audited_of(done, PrivacyUnit.RECORD)
        if audited is not None:
            remarks.append(f"audited at record level: epsilon {epsilon_text(audited.epsilon, 'down')}")
            if of_record is not None and audited.epsilon > max(of_record, allowed or 0.0):
                remarks.append("BUG: audited > proven at record level")
    if no_power(done):
        seen = max((channel.epsilon for audit in done for channel in audit.power), default=None)
        known = "" if seen is None else f": {epsilon_text(seen, 'down')} seen without any noise"
        remarks.append(f"audit without power{known}")
    broken = sorted({m.kind for audit in done for m in audit.mechanisms if m.verdict is MechanismVerdict.VIOLATED})
    if broken:
        remarks.append(f"BUG: {', '.join(broken)} gives away more than it is charged for")
    return remarks


def _rank(row: BoardRow) -> tuple[Asked, bool, float, str, str]:
    # An accuracy at epsilon 10 is no better than one at 1: it was bought at another price.
    return (row.budget, math.isinf(row.proven), -row.accuracy, row.method, row.config)


def cells_of(row: BoardRow) -> tuple[str, ...]:
    """Return the texts of a row in the order of :data:`COLUMNS`."""
    asked = "–" if row.asked is None else f"{row.asked:g} ({row.basis})"
    spread = "" if row.spread is None else f" ± {row.spread:.2f}"
    return (
        row.method,
        asked,
        epsilon_text(row.claimed),
        epsilon_text(row.proven, "up"),
        epsilon_text(row.audited, "down"),
        f"{row.accuracy:.2f}{spread}",
        "–" if row.drop is None else f"{row.drop:.2f}",
        str(len(row.seeds)),
        row.public_data,
        row.preset,
        f"{row.cost:.0f} s",
        "; ".join(row.remarks),
    )


def to_markdown(board: Board) -> str:
    """Return the board as Markdown: one table per data set and unit, then the failures."""
    parts = ["# Leaderboard\n"]
    if board.rows:
        parts.append(f"{ORDER}\n")
    for (dataset, unit), rows in board.tables().items():
        deltas = sorted({row.delta for row in rows})
        adjacencies = sorted({row.adjacency for row in rows})
        parts.append(f"## {md(dataset)}, unit {unit}\n")
        parts.append(
            f"Adjacency: {', '.join(adjacencies)}. delta = {', '.join(f'{d:g}' for d in deltas)}. "
            "Accuracy in %, ± standard deviation over seeds; drop in points below the non-private baseline, "
            "on transferred features that of the same backbone.\n"
        )
        parts.append("| " + " | ".join(COLUMNS) + " |")
        parts.append("|" + "---|" * len(COLUMNS))
        parts.extend("| " + " | ".join(md(text) for text in cells_of(row)) + " |" for row in rows)
        parts.append("")
    if board.failures:
        parts.append("## Failed\n")
        parts.extend(
            f"- `{md(record.key)}`: {md(record.failure.reason if record.failure else 'unknown')}"
            for record in board.failures
        )
        parts.append("")
    if board.refused:
        parts.append("## Not shown\n")
        parts.extend(f"- `{md(key)}`: {md(why)}" for key, why in board.refused)
        parts.append("")
    if not board.rows and not board.failures and not board.refused:
        parts.append("No records.\n")
    return "\n".join(parts)


CSV_COLUMNS = (
    "dataset", "unit", "adjacency", "method", "asked", "basis", "delta", "preset", "noise", "claimed", "proven",
    "proven_by", "audited", "accuracy", "spread", "drop", "seeds", "public_data", "cost", "remarks", "reduced", "keys",
    "config",
)  # fmt: skip


def to_csv(board: Board) -> str:
    """Return the board as CSV with the columns :data:`CSV_COLUMNS`; lists are joined by "; "."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in board.rows:
        writer.writerow([_csv(getattr(row, column)) for column in CSV_COLUMNS])
    return file.getvalue()


def _csv(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return "inf" if math.isinf(value) else f"{value:.6g}"
    if isinstance(value, tuple):
        value = "; ".join(str(part) for part in value)
    text = " ".join(str(value).split())
    # A spreadsheet runs a cell that starts like a formula.
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
