"""Text of epsilons, table cells and records for pages and listings."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from functools import lru_cache
from typing import Any, Literal

from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.accounting.risk import PRIORS, RATES
from bench.privacy.auditing.utility_bound import odds, remark
from bench.results.derived import GROUP, replaced_epsilon, risks_of
from bench.results.record import VISIBLE, Audited, Plausibility, Privacy, Provenance, Record

Toward = Literal["nearest", "up", "down"]

_ROUNDING: dict[Toward, str] = {"nearest": ROUND_HALF_EVEN, "up": ROUND_CEILING, "down": ROUND_FLOOR}


@lru_cache(maxsize=4096)
def epsilon_text(epsilon: float | None, toward: Toward = "nearest") -> str:
    """Return an epsilon with two decimals, or two digits in scientific notation below 0.01 and from 1e5.

    Round an upper bound `up` and a lower bound `down`, so that the printed value is still a bound. Only zero prints as
    ``0.00``, and an upper bound of zero means that delta covers the whole loss.
    """
    if epsilon is None:
        return "–"
    if math.isinf(epsilon):
        return "∞"
    if epsilon == 0 and toward == "up":
        return "0 (within delta)"
    # repr is the shortest decimal that parses to this float: 0.29 stays 0.29, while 0.29 * 100 is below 29.
    exact = Decimal(repr(float(epsilon)))
    plain = epsilon == 0 or 0.01 <= epsilon < 1e5
    rounded = exact.quantize(Decimal("0.01") if plain else Decimal(1).scaleb(exact.adjusted() - 1), _ROUNDING[toward])
    return f"{rounded:.2f}" if plain else f"{rounded:.1e}".replace("e+", "e")


def claimed_text(claimed: float | None, proven: float | None) -> str:
    """Return a claimed epsilon, rounded to nearest, or up like the `proven` one if both are equal."""
    equal = claimed is not None and proven is not None and math.isclose(claimed, proven, rel_tol=1e-9)
    return epsilon_text(claimed, "up" if equal else "nearest")


@lru_cache(maxsize=4096)
def risk_text(bound: float, proven: float) -> str:
    """Return an upper bound on success in percent, rounded up; ``unbounded`` without a proof, "–" if unknown."""
    if math.isnan(bound):
        return "–"
    if math.isinf(proven):
        return "unbounded"
    percent = Decimal(repr(round(100 * bound, 9)))
    digits = "0.1" if percent >= 1 else "0.01"
    return f"{percent.quantize(Decimal(digits), ROUND_CEILING)}%"


def percent_text(share: float, toward: Toward) -> str:
    """Return `share` in percent with two decimals, rounded as by :func:`epsilon_text`."""
    exact = Decimal(repr(round(100 * share, 9)))
    return f"{exact.quantize(Decimal('0.01'), _ROUNDING[toward])}"


def epsilon_digits(epsilon: float | None, toward: Toward) -> str:
    """Return an epsilon with six digits for a program, rounded as by :func:`epsilon_text`; blank for None."""
    if epsilon is None or not math.isfinite(epsilon):
        return csv_cell(epsilon)
    exact = Decimal(repr(float(epsilon)))
    return csv_cell(float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 5), _ROUNDING[toward])))


def audited_text(audited: Audited | None) -> str:
    """Return the audited column's text: the lower bound, or "inconclusive" if the audit could not have seen one."""
    if audited is None:
        return "–"
    if not audited.silent:
        return epsilon_text(audited.epsilon, "down")
    known = audited.at_most is not None and audited.at_most >= VISIBLE
    return f"inconclusive (sees at most {epsilon_text(audited.at_most, 'down')})" if known else "inconclusive"


_ESCAPES = (
    ("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "\\`"),
    ("[", "\\["), ("!", "\\!"),
    # GitHub turns plain addresses into links.
    ("://", "&#58;//"), ("www.", "www&#46;"),
)  # fmt: skip


def md(text: str) -> str:
    """Return `text` escaped for a Markdown table cell, so that it renders no link, image or HTML."""
    flat = " ".join(text.split())
    for raw, safe in _ESCAPES:
        flat = flat.replace(raw, safe)
    return flat


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with escaped columns and cells."""
    head, *body = ("| " + " | ".join(map(md, cells)) + " |\n" for cells in (columns, *rows))
    return "".join([head, "|" + "---|" * len(columns) + "\n", *body])


def markdown_list(title: str, lines: Sequence[str]) -> str:
    """Return a title and Markdown list; empty without `lines`, which are not escaped."""
    return f"{title}\n\n" + "".join(f"- {line}\n" for line in lines) if lines else ""


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return CSV; see :func:`csv_cell`."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(map(csv_cell, cells) for cells in (columns, *rows))
    return file.getvalue()


def csv_cell(value: object) -> str:
    """Return a value as a CSV cell, with an apostrophe before text that a spreadsheet would run as a formula."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return str(value)
    text = " ".join(("; ".join(map(str, value)) if isinstance(value, tuple) else str(value)).split())
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


@dataclass(frozen=True, slots=True)
class Table:
    """A table about a record; the first cell of each row is its header, and `note` goes above the table."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def record_tables(record: Record) -> dict[str, list[Table]]:
    """Return the tables of a record by page section, for ``bench show`` and the site."""
    tables = {"Cell": [Table("Target and result", ("what", "value"), tuple(_about(record)))]}
    if record.privacy is not None:
        tables["Epsilons"] = _epsilon_tables(record.privacy)
        tables["Ledger"] = [ledger_table(record.privacy.events_text)]
    tables["Settings"] = [_settings(record)]
    tables["Provenance"] = [_provenance(record.provenance)]
    return tables


def _about(record: Record) -> Iterator[tuple[str, str]]:
    yield "status", record.status.value
    if record.failure is not None:
        yield "failure", f"{record.failure.kind}: {record.failure.reason}"
    if record.utility is not None:
        yield "accuracy", f"{100 * record.utility.accuracy:.2f}% of {record.utility.test_records:,} test records"
        if record.utility.official_accuracy is not None:
            whole = f"{100 * record.utility.official_accuracy:.2f}% of {record.utility.official_records:,} records"
            yield "whole official test set", whole
        if (answers := record.utility.answers) is not None:
            yield "accuracy on the worst class", f"{100 * answers.worst_class:.2f}%"
            yield "calibration error", f"{100 * answers.calibration_error:.2f} points"
    yield "method", f"{record.method} (version {record.method_version}) {record.citation}"
    if record.cell.plugin is not None:
        yield "plug-in", f"{record.cell.plugin_words}, source SHA-256 {record.cell.plugin.source_sha256}"
    yield "data", f"{record.dataset} ({record.dataset_revision})"
    yield "records", f"{record.private_records:,} private, {record.public_records:,} public"
    yield "public data", record.public_data
    yield "target epsilon (basis)", f"{'–' if record.epsilon is None else f'{record.epsilon:g}'} ({record.basis.value})"
    yield "delta", f"{record.delta:g}"
    if record.cell.tuning is not None:
        tuning = record.cell.tuning
        yield "tuning", f"{tuning.words}; one trial costs epsilon {epsilon_text(tuning.epsilon, 'up')}"
        yield "candidates", "; ".join(map(words, tuning.candidates))
    yield "preset", record.preset
    yield "noise", record.noise
    yield "precision", record.precision
    yield "seed", str(record.seed)
    if record.queries is not None:
        share = record.queries.label_accuracy
        right = "" if share is None else f", {100 * share:.1f}% of them right"
        yield "answers", f"{record.queries.answered:,} of {record.queries.asked:,}{right}"
    if record.student is not None:
        yield "student", f"{record.student.name}, {record.student.parameters:,} parameters, {record.student.file}"
        yield "student, SHA-256", record.student.sha256
    if record.image_grid is not None:
        yield "synthetic images", record.image_grid.file
    if record.privacy is not None and record.privacy.plausibility is not None:
        yield "under the claim", _plausibility(record.privacy.plausibility)
    for note in record.notes:
        yield "note", note


def _plausibility(found: Plausibility) -> str:
    if found.probability >= 1:
        return "no bound rules out such an accuracy"
    code = f"a code of {found.permutations:.10g} permutations, above {100 * found.threshold:.2f}%"
    return f"{remark([found.probability]) or odds([found.probability])} ({code})"


def epsilon_rows(privacy: Privacy) -> list[tuple[str, str, str]]:
    """Return (name, value, origin) of the claimed, proven, audited and record-level epsilons."""
    audited, level = privacy.audited, privacy.record_level
    rows = [
        (
            "claimed",
            claimed_text(privacy.claimed.epsilon, privacy.proven.epsilon),
            _joined(privacy.claimed.source, privacy.claimed.note),
        ),
        ("proven", epsilon_text(privacy.proven.epsilon, "up"), _joined(privacy.proven.name, privacy.proven.note)),
    ]
    if privacy.adjacency is Adjacency.ADD_REMOVE:
        origin = "proven for replace neighbours: one record removed, another added"
        rows.append(("proven, replace-one", epsilon_text(replaced_epsilon(privacy), "up"), origin))
    if audited is None:
        rows.append(("audited", "not audited", ""))
    else:
        origin = f"a lower bound at {100 * audited.confidence:g}% confidence: {audited.audit}"
        rows.append(("audited", audited_text(audited), origin))
    if level is not None:
        every = f"{level.name}; what follows for one record, which can change every label"
        origin = every if privacy.unit is PrivacyUnit.QUERY_LABEL else level.note
        rows.append(("a training record", epsilon_text(level.epsilon, "up"), origin))
    return rows


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _epsilon_tables(privacy: Privacy) -> list[Table]:
    caption = f"Unit {privacy.unit.value}, adjacency {privacy.adjacency.value}, delta {privacy.delta:g}"
    note = f"Proven is infinite because: {'; '.join(privacy.bypasses)}." if privacy.bypasses else ""
    tables = [Table(caption, ("epsilon", "value", "from"), tuple(epsilon_rows(privacy)), note), risk_table(privacy)]
    if privacy.accountants or privacy.withheld:
        columns = ("accountant", "epsilon", "sound", "data-dependent", "releasable", "order", "note")
        rows = tuple(
            (a.name, epsilon_text(a.epsilon, "up" if a.sound else "nearest"),
             *("yes" if flag else "no" for flag in (a.sound, a.data_dependent, a.releasable)),
             "–" if a.order is None else f"{a.order:.6g}", a.note)
            for a in privacy.accountants
        )  # fmt: skip
        tables.append(Table("The ledger's cost by accountant", columns, rows, privacy.withheld))
    return tables


def risk_table(privacy: Privacy) -> Table:
    """Return the bounds on an attacker for one unit, and for a group."""
    one, group = (
        [risk_text(bound, privacy.proven.epsilon) for bound in risk.as_dict().values()] for risk in risks_of(privacy)
    )
    return Table(
        "Bounds on an attacker, by the proven curve",
        ("success", f"one {privacy.unit.value}", f"{GROUP} of one person"),
        tuple(zip(RISK_WORDS, one, group, strict=True)),
        f"Upper bounds for any attack, between neighbours by {privacy.adjacency.value}. They do not cover what other "
        "people's records reveal about a person.",
    )


RISK_WORDS = (
    "membership advantage", *(f"true-positive rate at {100 * rate:g}% false positives" for rate in RATES),
    *(f"reconstruction of 1 in {1 / prior:,.0f}" for prior in PRIORS),
)  # fmt: skip
"""The bounds of a risk in words, in their order."""


@lru_cache(maxsize=64)  # the seeds of a row often have equal events
def ledger_table(events: str) -> Table:
    """Return the `events` of a ledger (JSON); equal events share one row with their count."""
    rows = tuple(
        (f"{event.get('times', 1):,} ×", str(event.get("kind", "")),
         words({k: v for k, v in event.items() if k not in ("kind", "times")}))
        for event in json.loads(events)
    )  # fmt: skip
    note = "" if rows else "The ledger has no event."
    return Table("Mechanisms, in the order of their first use", ("times", "mechanism", "parameters"), rows, note)


def _settings(record: Record) -> Table:
    papers = {change.field: str(change.paper) for change in record.reduced}
    rows = [(name, value_text(value), papers.pop(name, "")) for name, value in record.config.items()]
    rows += [(c.field, str(c.value), papers[c.field]) for c in record.reduced if c.field in papers]
    count = len(record.reduced)
    note = f"{count} of them {'differs' if count == 1 else 'differ'} from the paper's." if count else ""
    return Table("Settings", ("setting", "value", "paper's value, where it differs"), tuple(rows), note)


def _provenance(p: Provenance) -> Table:
    commit = p.git_commit or f"not known: {p.unread.get('git_commit', 'no reason given')}"
    rows = [
        ("started", p.started),
        ("wall time", f"{p.wall_seconds:,.1f} s"),
        ("peak memory", "not known" if p.peak_memory_mib is None else f"{p.peak_memory_mib:,.0f} MiB"),
        ("commit", commit + (" with changed files" if p.git_dirty else "")),
        ("device", p.device),
        ("threads", "not known" if p.threads is None else str(p.threads)),
        ("platform", p.platform),
        ("processor", p.processor or "unknown (not recorded by older versions)"),
        ("python", p.python),
        ("packages", ", ".join(f"{name} {version}" for name, version in sorted(p.packages.items()))),
        ("artefacts", f"{p.artefacts_made} cache misses, {p.artefacts_found} cache hits"),
        *((_unread(name), why) for name, why in sorted(p.unread.items()) if name != "git_commit"),
    ]
    return Table("Where and how it ran", ("what", "value"), tuple(rows))


def _unread(name: str) -> str:
    rounded = {"started": "started", "wall_seconds": "wall time", "peak_memory_mib": "peak memory"}
    return f"{rounded[name]} is not exact" if name in rounded else f"{name} is not known"


def value_text(value: Any) -> str:
    """Return a setting as text."""
    if isinstance(value, str):
        return value
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return repr(value)  # as JSON writes it; most values are numbers, and a ledger may have thousands
    return json.dumps(value, ensure_ascii=False, default=str)


def words(values: Mapping[str, Any]) -> str:
    """Return settings or parameters in one line."""
    return ", ".join(f"{name} {value_text(value)}" for name, value in values.items())
