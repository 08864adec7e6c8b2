"""The pages of records and methods: tables of texts and links, from records alone. Addresses: relative to the site."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from bench.privacy.utility_bound import rounded_up
from bench.results.attack_record import AttackRecord, AuditRecord, Channel
from bench.results.command import command_for
from bench.results.record import Accountant, Record
from bench.results.text import epsilon_text
from reports.attacks import percent
from reports.reported.numbers import Reported
from reports.site.method_docs import MethodSource
from reports.site.rows import PAPERS, RowView, record_href, verdict_words


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that is a link."""

    text: str
    href: str


Cell = str | Link


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page; the first cell of each row is its header. `note` stands over it."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page, with an anchor."""

    id: str
    title: str
    tables: tuple[Table, ...] = ()
    texts: tuple[str, ...] = ()


def record_sections(
    record: Record, audits: Sequence[AuditRecord], attacks: Sequence[AttackRecord], shadow_runs: Sequence[Record]
) -> list[Section]:
    """Return the parts of a record's page that are tables."""
    sections = [_about(record, shadow_runs)]
    if record.privacy is not None:
        sections.append(Section("epsilons", "The three epsilons", tuple(_epsilons(record))))
        sections.append(Section("ledger", "Ledger", (ledger_table(record),)))
    sections.append(_settings(record))
    if audits:
        sections.append(Section("audits", "Audits", tuple(table for a in audits for table in _audit_tables(a))))
    if attacks:
        sections.append(Section("attacks", "Attacks", tuple(_attack_table(attack) for attack in attacks)))
    sections.append(Section("provenance", "Provenance", (_provenance(record),)))
    return sections


def _about(record: Record, shadow_runs: Sequence[Record]) -> Section:
    rows: list[tuple[Cell, ...]] = [("status", record.status.value)]
    if record.failure is not None:
        rows.append(("failure", f"{record.failure.kind}: {record.failure.reason}"))
    if record.utility is not None:
        rows.append(
            ("accuracy", f"{100 * record.utility.accuracy:.2f}% of {record.utility.test_records:,} test records")
        )
    rows += [
        ("data", f"{record.dataset} ({record.dataset_revision})"),
        ("records", f"{record.private_records:,} private, {record.public_records:,} public"),
        ("public data", record.public_data),
        ("asked", f"{'–' if record.epsilon is None else f'{record.epsilon:g}'} ({record.basis.value})"),
        ("delta", f"{record.delta:g}"),
        ("preset", record.preset),
        ("noise", record.noise),
        ("precision", record.precision),
        ("seed", str(record.seed)),
    ]
    if record.queries is not None:
        share = record.queries.label_accuracy
        right = "" if share is None else f", {100 * share:.1f}% of them right"
        rows.append(("answers", f"{record.queries.answered:,} of {record.queries.asked:,}{right}"))
    if record.student is not None:
        rows.append(("student", f"{record.student.name}, {record.student.parameters:,} parameters"))
        rows.append(("student, SHA-256", record.student.sha256))
    if record.privacy is not None and record.privacy.plausibility is not None:
        found = record.privacy.plausibility
        most = rounded_up(found.probability)
        above = f"an accuracy above {100 * found.threshold:.2f}% has probability at most {most}"
        rows.append(("under the claim", above))
    rows += [(f"seed {other.seed}", Link(other.key, record_href(other.key))) for other in shadow_runs]
    rows += [("note", note) for note in record.notes]
    return Section(
        "about", "The cell", (Table("What was asked for and what came out", ("what", "value"), tuple(rows)),)
    )


def _epsilons(record: Record) -> Iterable[Table]:
    p = record.privacy
    assert p is not None
    audited = "no audit of this cell's unit" if p.audited is None else p.audited.audit
    confidence = "" if p.audited is None else f"lower bound at {100 * p.audited.confidence:g}% confidence"
    rows: list[tuple[Cell, ...]] = [
        ("claimed", epsilon_text(p.claimed.epsilon), p.claimed.source, p.claimed.note),
        ("proven", epsilon_text(p.proven.epsilon, "up"), p.proven.name, p.proven.note),
        ("audited", epsilon_text(p.audited.epsilon if p.audited else None, "down"), confidence, audited),
    ]
    if p.record_level is not None:
        rows.append(
            (
                "of one training record",
                epsilon_text(p.record_level.epsilon, "up"),
                p.record_level.name,
                "what follows for one record, which can change every label",
            )
        )
    caption = f"Unit {p.unit.value}, adjacency {p.adjacency.value}, delta {p.delta:g}"
    note = "" if not p.bypasses else "Proven is infinite because: " + "; ".join(p.bypasses) + "."
    yield Table(caption, ("epsilon", "value", "from", "note"), tuple(rows), note)
    if p.accountants or p.withheld:
        yield Table(
            "What each accountant says of the ledger",
            ("accountant", "epsilon", "sound", "data-dependent", "releasable", "order", "note"),
            tuple(_accountant_row(a) for a in p.accountants),
            p.withheld,
        )


def _accountant_row(a: Accountant) -> tuple[Cell, ...]:
    order = "–" if a.order is None else f"{a.order:.6g}"
    return (a.name, epsilon_text(a.epsilon), _yes(a.sound), _yes(a.data_dependent), _yes(a.releasable), order, a.note)


def ledger_table(record: Record) -> Table:
    """Return what the ledger of a record saw; equal events that follow each other are one row with their number."""
    assert record.privacy is not None
    folded: list[tuple[dict[str, Any], int]] = []
    for event in record.privacy.events:
        if folded and folded[-1][0] == event:
            folded[-1] = (event, folded[-1][1] + 1)
        else:
            folded.append((event, 1))
    rows = tuple(
        (f"{count:,} ×", str(event.get("kind", "")), _words({k: v for k, v in event.items() if k != "kind"}))
        for event, count in folded
    )
    note = "" if rows else "The ledger saw no event."
    return Table("Mechanisms, in their order", ("times", "mechanism", "parameters"), rows, note)


def _settings(record: Record) -> Section:
    papers = {change.field: str(change.paper) for change in record.reduced if change.field in record.config}
    other = [change for change in record.reduced if change.field not in record.config]
    rows = tuple((name, value_text(value), papers.get(name, "")) for name, value in record.config.items())
    note = f"{len(record.reduced)} of them differ from the paper's." if record.reduced else ""
    tables = (Table("Every setting of this cell", ("setting", "value", "the paper's, where it differs"), rows, note),)
    return Section("settings", "Settings", tables, tuple(f"Differs from the paper: {change}" for change in other))


def _audit_tables(audit: AuditRecord) -> Iterable[Table]:
    plan = _words(audit.plan)
    note = (
        f"{audit.verdict}. {audit.kind.value}, {audit.runs} run{'' if audit.runs == 1 else 's'} ({plan}); unit "
        f"{audit.unit.value}, adjacency {audit.adjacency.value}, delta {audit.delta:g}, confidence "
        f"{100 * audit.confidence:g}%. Claimed {epsilon_text(audit.claimed)}, proven of the audited runs "
        f"{epsilon_text(audit.allowed, 'up')}."
    )
    channels = [("pipeline", c) for c in audit.channels] + [("without noise (control)", c) for c in audit.power]
    yield Table(
        f"Audit {audit.key.rsplit('--', 1)[-1]}",
        ("audited", "channel", "canaries", "guesses", "right", "epsilon at least", "could show at most"),
        tuple(_channel_row(where, channel) for where, channel in channels),
        " ".join([note, *audit.notes]),
    )
    if audit.mechanisms:
        yield Table(
            "Its mechanisms, drawn from on adjacent inputs",
            ("mechanism", "parameters", "draws", "seen", "charged", "seen with half the noise", "verdict"),
            tuple(
                (
                    m.kind,
                    _words({k: v for k, v in m.parameters.items() if k != "kind"}),
                    f"{m.draws:,}",
                    epsilon_text(m.epsilon, "down"),
                    epsilon_text(m.exact, "up"),
                    epsilon_text(m.half_noise, "down"),
                    m.verdict + (f": {m.reason}" if m.reason else ""),
                )
                for m in audit.mechanisms
            ),
        )


def _channel_row(where: str, c: Channel) -> tuple[Cell, ...]:
    counts = (f"{c.canaries:,}", f"{c.guesses:,}", f"{c.correct:,}")
    return (where, f"{c.name}, {c.family}", *counts, epsilon_text(c.epsilon, "down"), epsilon_text(c.cap, "down"))


def _attack_table(attack: AttackRecord) -> Table:
    """Return every number of an attack: its measures down, the student and its controls across."""
    roles = list(attack.targets)
    measures = list(dict.fromkeys(name for scores in attack.targets.values() for name in scores.metrics))
    rows: list[tuple[Cell, ...]] = [
        ("accuracy of the target, %", *(_share(attack.targets[role].accuracy) for role in roles))
    ]
    for measure in measures:
        share = attack.goal == "robustness" or any(word in measure for word in ("top-", "tpr@", "recovery"))
        found = (attack.targets[role].metrics.get(measure) for role in roles)
        unit = ", %" if share else ""
        rows.append((measure + unit, *(percent(estimate, 100 if share else 1) for estimate in found)))
    said = [f"{name}: {text}." for name, text in (("Access", attack.access), ("Knowledge", attack.knowledge)) if text]
    if attack.no_power:
        said.append(f"No power: {attack.no_power}.")
    if attack.failure is not None:
        said.append(f"Failed: {attack.failure.reason}.")
    said += attack.notes
    if attack.citation:
        said.append(f"After {attack.citation}.")
    caption = attack.attack if attack.attack == attack.goal else f"{attack.attack}, {attack.goal}"
    return Table(caption, ("measure", *roles), tuple(rows), " ".join(said))


def _provenance(record: Record) -> Table:
    p = record.provenance
    commit = p.git_commit or f"not known: {p.unread.get('git_commit', 'no reason given')}"
    changed = " with changed files" if p.git_dirty else ""
    memory = "not known" if p.peak_memory_mib is None else f"{p.peak_memory_mib:,.0f} MiB"
    rows: list[tuple[Cell, ...]] = [
        ("started", p.started),
        ("wall time", f"{p.wall_seconds:,.1f} s"),
        ("peak memory", memory),
        ("commit", commit + changed),
        ("device", p.device),
        ("threads", "not known" if p.threads is None else str(p.threads)),
        ("platform", p.platform),
        ("python", p.python),
        ("packages", ", ".join(f"{name} {version}" for name, version in sorted(p.packages.items()))),
        ("artefacts", f"{p.artefacts_made} made, {p.artefacts_found} found"),
        *((f"{name} is not known", why) for name, why in sorted(p.unread.items()) if name != "git_commit"),
    ]
    return Table("Where and how it ran", ("what", "value"), tuple(rows))


def command_of(record: Record) -> tuple[str, str]:
    """Return the command that makes the record anew, and a remark on what it leaves out."""
    command, missing = command_for(record.cell, record.private_records)
    if record.cell.overrides is None:
        return command, (
            "The command that was given is not in the record. This one is made from its fields; settings that were "
            "given by --set, --teacher or --student are not in it: compare the settings above."
        )
    return command, missing and f"{missing}."


def method_facts(name: str, source: MethodSource | None, record: Record | None) -> list[tuple[str, str]]:
    """Return what is known of a method in words: label and text."""
    citation = record.citation if record is not None and record.citation else source.citation if source else ""
    privacy = None if record is None else record.privacy
    unit = privacy.unit.value if privacy is not None else source.unit if source else ""
    adjacency = privacy.adjacency.value if privacy is not None else source.adjacency if source else ""
    facts = [("citation", citation), ("privacy unit", unit), ("adjacency", adjacency)]
    if record is not None:
        facts.append(("public data", record.public_data))
        facts += [("goes round the ledger", why) for why in (privacy.bypasses if privacy is not None else [])]
    facts.append(("source", source.file if source is not None else "not in this repository"))
    return [(label, text) for label, text in facts if text]


def how_to_read(row: RowView, record: Record) -> str:
    """Return a row of a method in one sentence or two."""
    p = record.privacy
    assert p is not None
    accuracy = f"On {record.dataset} its student is right on {row.accuracy.text}% of the test records."
    claim = (
        "Its paper claims no privacy."
        if math.isinf(p.claimed.epsilon)
        else f"Its paper says that this costs epsilon {row.claimed.text} at delta {p.delta:g} ({p.claimed.source})."
    )
    if math.isinf(p.proven.epsilon):
        proof = "Nothing finite is proven of what ran" + (f": {'; '.join(p.bypasses)}." if p.bypasses else ".")
    else:
        proof = f"What ran is proven to cost at most {row.proven.text} for one {p.unit.value} ({p.proven.name})."
        if row.uncovered:
            proof += " That is more than is claimed: the claim does not follow."
    audit = "" if row.audited.text == "–" else f" An experiment has seen at least {row.audited.text}."
    return f"{accuracy} {claim} {proof}{audit}"


def reported_table(found: Sequence[Reported]) -> Table:
    """Return the numbers that papers report of one method, in their order."""
    rows = tuple(
        (
            f"{PAPERS.get(r.paper, r.paper)} {r.table}",
            f"{r.row}, {r.column}",
            r.system + (f", {r.setting}" if r.setting else ""),
            r.dataset,
            epsilon_text(r.epsilon),
            f"{r.measure} {r.value:g}",
            r.verdict.value,
            verdict_words(r),
        )
        for r in found
    )
    columns = ("printed in", "row, column", "system", "data", "epsilon", "number", "verdict", "why")
    return Table("Numbers that papers print of it; none of them was run here", columns, rows)


_MARKED = re.compile(r"``(.+?)``|:\w+:`~?(.+?)`", re.DOTALL)


def paragraphs(text: str) -> list[tuple[bool, Markup]]:
    """Return the paragraphs of a docstring: whether its lines are to be kept as they are, and its text as HTML."""
    found = []
    for part in re.split(r"\n\s*\n", text.strip()):
        kept = any(re.match(r"\s|[-*=|]", line) for line in part.splitlines())
        safe = str(escape(part if kept else " ".join(part.split())))
        marked = _MARKED.sub(lambda m: f"<code>{m[1] or m[2]}</code>", safe)
        found.append((kept, Markup(marked)))
    return found


def value_text(value: Any) -> str:
    """Return a setting as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _words(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value_text(value)}" for name, value in values.items())


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
