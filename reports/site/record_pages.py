"""The pages of records and methods as tables of texts."""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeGuard
from urllib.parse import quote

from markupsafe import Markup, escape

from bench.core.types import NO_PRIVACY, ROBUSTNESS, Adjacency, AuditKind
from bench.interface.registry import METHODS, listed
from bench.reports.attacks import accuracy_text, percent
from bench.reports.audits import INFORMED, informed_cells
from bench.reports.claims import Claim
from bench.reports.reported.numbers import Reported
from bench.reports.reported.page import NAMES
from bench.reports.site.addresses import code_of, method_href, paper_href
from bench.reports.site.rows import Ranking, RowView, verdict_words
from bench.reports.site.svg import row_axis
from bench.reports.site.terms import plain_table
from bench.results.attack_record import AttackRecord, AuditRecord, Channel, PairBound
from bench.results.audited import bound_text, runs_text
from bench.results.command import command_for
from bench.results.derived import claims_of_votes
from bench.results.record import Record
from bench.results.replays import Replay
from bench.results.text import Table, claimed_text, epsilon_text, ledger_table, record_tables, words

Parts = dict[str, list[Table]]
OPEN = 3  # more images of attacks than this are folded


def record_page(
    record: Record, parts: Parts, line: tuple[Ranking, RowView] | None, beside: Sequence[tuple[str, int]], seeds: int,
    raw: str, picture: tuple[Markup, str] | None, image: tuple[str, str] | None, made: Sequence[tuple[str, str]],
) -> Markup:  # fmt: skip
    """Return the content of a record's page as HTML; a template would take several times as long.

    `line` is its row in a ranking; `beside` are addresses and numbers of some of the row's `seeds`, `raw` the address
    of the archive, `image` and `made` the addresses and texts of released images and of those that attacks made.
    """
    method = method_href(record.method)
    crumb = [f'<p class="crumb"><a href="../{method}">{escape(record.method)}</a> on {escape(record.dataset)}']
    if line:
        anchor = quote(line[1].id)
        crumb.append(f' · <a href="../{escape(line[0].href)}#{anchor}">its row in the ranking</a>')
    if beside:
        links = "".join(f' <a href="../{href}">{seed}</a>' for href, seed in beside)
        crumb.append(f" · other seeds:{links}")
        if line and len(beside) + 1 < seeds:
            crumb.append(f' <a href="../{method}#{anchor}">all {seeds}</a>')
    if raw:
        crumb.append(f' · <a href="../{raw}">raw records of {escape(record.dataset)} (zip)</a>')
    body = ["".join(crumb), f'</p>\n<h1 class="key">{escape(record.key)}</h1>\n']
    if picture:
        said = f'<span class="said">{escape(picture[1])}</span>'
        body.append(f'<p class="lead-picture">{row_axis()}{picture[0]}{said}</p>')
    body += [_section(title, tuple(tables)) for title, tables in parts.items()]
    if image:
        body.append(f'<details id="images">\n<summary>Released images</summary>\n{_figure(*image)}</details>\n')
    if made:
        is_open = " open" if len(made) <= OPEN else ""
        figures = "".join(_figure(*one, ' loading="lazy"') for one in made)
        summary = "<summary>Images made by the attacks</summary>"
        body.append(f'<details id="pictures"{is_open}>\n{summary}\n{figures}</details>\n')
    command, remark = command_of(record)
    note = f'<p class="fine">{escape(remark)}</p>\n' if remark else ""
    body.append(
        '<section id="again">\n<h2>Run it again</h2>\n'
        f'<pre class="command"><code>{escape(command)}</code></pre>\n{note}</section>\n'
    )
    return Markup("".join(body))


def _figure(href: str, text: str, more: str = "") -> str:
    said = escape(text)
    return f'<figure class="sheet"><img src="../{href}" alt="{said}"{more}><figcaption>{said}</figcaption></figure>\n'


def record_parts(
    record: Record, audits: Sequence[AuditRecord], attacks: Sequence[AttackRecord], replay: Replay | None = None
) -> Parts:
    """Return the tables of a record's page; `replay` is of its own run or of another of its method on its data set."""
    parts = record_tables(record)
    provenance = parts.pop("Provenance")
    if audits:
        votes = record.privacy is not None and claims_of_votes(record.privacy)
        parts["Audits"] = [table for audit in audits for table in _audit_tables(audit, votes)]
    if replay is not None:
        whose = "this run" if replay.key == record.key else f"{replay.key}, of this method on this data set"
        row = (whose, replay.outcome, replay.date, (replay.commit or "unknown")[:12])
        parts["Replay"] = [Table("One run on other private data", ("run", "outcome", "day", "commit"), (row,))]
    if private := [attack for attack in attacks if attack.goal != ROBUSTNESS]:
        parts["Attacks"] = [_attack_table(attack) for attack in private]
    if apart := [_attack_table(attack) for attack in attacks if attack.goal == ROBUSTNESS]:
        parts["Robustness"] = [replace(apart[0], note=f"{NO_PRIVACY} {apart[0].note}"), *apart[1:]]
    return {**parts, "Provenance": provenance}


@lru_cache(maxsize=64)  # the seeds of a row share most sections
def _section(title: str, tables: tuple[Table, ...]) -> str:
    """Return tables of a record's page as HTML: those of its result and epsilons open, the others folded."""
    if title not in ("Cell", "Epsilons"):
        every = "".join(map(plain_table, tables))
        return f'<details id="{title.lower()}"><summary>{title}</summary>{every}</details>\n'
    rest = "".join(f"<details><summary>{escape(t.caption)}</summary>{plain_table(t)}</details>" for t in tables[1:])
    meant = '<p class="fine"><a href="../meaning.html">What these numbers mean for one record</a></p>'
    return f'<div id="{title.lower()}">\n{plain_table(tables[0])}\n</div>\n{rest}{meant * (title == "Epsilons")}\n'


def _audit_tables(audit: AuditRecord, votes: bool) -> Iterable[Table]:
    how = f"{audit.kind.value}, {audit.runs} run{'' if audit.runs == 1 else 's'} ({words(audit.plan)}). "
    note = (
        f"{audit.verdict_of(votes=votes)}. {how * bool(audit.channels)}Unit {audit.unit.value}, "
        f"adjacency {audit.adjacency.value}, delta {audit.delta:g}, confidence {100 * audit.confidence:g}%. Claimed "
        f"{claimed_text(audit.claimed, audit.allowed)}, proven of the audited runs {epsilon_text(audit.allowed, 'up')}."
    )
    if audit.reduced:
        note += f" Made smaller than in the row: {'; '.join(map(str, audit.reduced))}."
    if audit.bypassed:
        note += f" Outside the ledger: {audit.bypassed}."
    columns: tuple[str, ...]
    if audit.kind is AuditKind.PAIR:
        columns = ("instrument", "compared", "pair", "runs", "epsilon at least", "could show at most", "without noise")
        rows = tuple(_pair_row(audit, pair) for pair in audit.pairs)
    elif audit.kind is AuditKind.CANDIDATES:
        columns, rows = INFORMED, tuple(map(informed_cells, audit.candidates))
    else:
        columns = ("audited", "channel", "canaries", "guesses", "right", "epsilon at least", "could show at most")
        channels = [("pipeline", c) for c in audit.channels] + [("without noise (control)", c) for c in audit.power]
        rows = tuple(_channel_row(where, channel) for where, channel in channels)
    yield Table(f"Audit {audit.key.rsplit('--', 1)[-1]}", columns, rows, " ".join([note, *audit.notes]))
    if audit.mechanisms:
        yield Table(
            "Its mechanisms, sampled on adjacent inputs",
            ("mechanism", "parameters", "draws", "seen", "charged", "seen with half the noise", "verdict"),
            tuple(
                (
                    m.kind, words({k: v for k, v in m.parameters.items() if k != "kind"}), f"{m.draws:,}",
                    epsilon_text(m.epsilon, "down"), epsilon_text(m.exact, "up"), epsilon_text(m.half_noise, "down"),
                    m.verdict + (f": {m.reason}" if m.reason else ""),
                )
                for m in audit.mechanisms
            ),
        )  # fmt: skip


def _pair_row(audit: AuditRecord, p: PairBound) -> tuple[str, ...]:
    limits = (epsilon_text(p.cap, "down"), epsilon_text(p.power, "down"))
    return (p.instrument, p.seen, p.pair, runs_text(p), bound_text(audit, p), *limits)


def _channel_row(where: str, c: Channel) -> tuple[str, ...]:
    counts = (f"{c.canaries:,}", f"{c.guesses:,}", f"{c.correct:,}")
    return (where, f"{c.name}, {c.family}", *counts, epsilon_text(c.epsilon, "down"), epsilon_text(c.cap, "down"))


def _attack_table(attack: AttackRecord) -> Table:
    roles = list(attack.targets)
    measures = list(dict.fromkeys(name for scores in attack.targets.values() for name in scores.metrics))
    rows = [("accuracy of the target, %", *(accuracy_text(attack, role) for role in roles))]
    for measure in measures:
        share = attack.goal == ROBUSTNESS or any(
            word in measure for word in ("top-", "tpr@", "recovery", "copies", "nearest is")
        )
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


def command_of(record: Record) -> tuple[str, str]:
    """Return the command that repeats the record's run, with a remark on what it omits."""
    command, missing = command_for(record.cell, record.private_records, record.own_adjacency, record.noise_salt_option)
    if record.cell.overrides is None:
        return command, (
            "The record does not contain the original command. This one is built from its fields and lacks settings "
            "given by --set, --teacher or --student: compare the settings above."
        )
    return command, missing and f"{missing}."


def method_parts(record: Record | None) -> Parts:
    """Return the tables of a method's page, from one of its runs."""
    if record is None or record.privacy is None:
        return {}
    epsilons = record_tables(record)["Epsilons"]
    return {"Epsilons of one run": epsilons, "Ledger of one run": [ledger_table(record.privacy.events_text)]}


def method_texts(name: str) -> tuple[str, ...]:
    """Return the docstrings of a method's class and module, none if nothing registers `name`."""
    if (code := code_of(name)) is None:
        if name not in METHODS:
            return ()
        method = METHODS.get(name)
        return inspect.cleandoc(method.__doc__ or ""), inspect.getdoc(sys.modules[method.__module__]) or ""
    module = ast.parse(code[1])  # importing every method would take most of the site's time
    return next((ast.get_docstring(part) or "" for part in module.body if _registers(part, name)), ""), (
        ast.get_docstring(module) or ""
    )


def _registers(part: ast.stmt, name: str) -> TypeGuard[ast.ClassDef]:
    decorators = part.decorator_list if isinstance(part, ast.ClassDef) else []
    return any(name in (getattr(a, "value", "") for a in getattr(call, "args", ())) for call in decorators)


def method_facts(name: str, record: Record | None, code: str) -> list[tuple[str, str, str]]:
    """Return (label, text, link) facts about a method, from one of its records or from its entry in the registry."""
    privacy = None if record is None else record.privacy
    entry = listed(name) if name in METHODS else None
    citation = (record and record.citation) or (entry.citation if entry else "")
    facts = [("paper", citation, paper_href(citation))]
    if privacy is not None:
        facts += [("unit", privacy.unit.value, ""), ("adjacency", privacy.adjacency.value, "")]
    elif entry is not None:
        facts += [("unit", entry.unit, ""), ("adjacency", entry.adjacency, "")]
    if record is not None:
        facts.append(("public data", record.public_data, ""))
    if privacy is not None:
        facts += [("uses private data outside any mechanism", why, "") for why in privacy.bypasses]
    found = code_of(name) if code else None
    facts.append(("code", found[0] if found else "not in this repository", code))
    return [fact for fact in facts if fact[1]]


def how_to_read(row: RowView, record: Record) -> str:
    """Return a method's row in a few sentences."""
    p = record.privacy
    assert p is not None
    accuracy = f"On {record.dataset} its student classifies {row.accuracy.text}% of the test records correctly."
    claim = (
        "The paper claims no privacy."
        if math.isinf(p.claimed.epsilon)
        else f"The paper claims epsilon {row.claimed.text} at delta {p.delta:g} ({p.claimed.source})."
    )
    if math.isinf(p.proven.epsilon):
        proof = "No finite epsilon is proven for what ran" + (f": {'; '.join(p.bypasses)}." if p.bypasses else ".")
    else:
        proof = (
            f"The mechanisms that ran provably cost at most {row.proven.text} for one {p.unit.value} ({p.proven.name})."
        )
        if p.adjacency is Adjacency.ADD_REMOVE:
            proof += f" For one replaced record it is {row.replaced.text}."
        if row.claim == Claim.DATA_DEPENDENT:
            proof += (
                " The claim holds only for the votes of this run, and releasing such a figure itself costs privacy."
            )
        elif row.fails:
            proof += f" The claim does not hold: {row.why}."
    audit = "" if row.audited.text == "–" else f" An audit shows that epsilon is at least {row.audited.text}."
    if row.audited.powerless:
        audit = " Its audit was inconclusive."
    return f"{accuracy} {claim} {proof}{audit}"


def reported_table(found: Sequence[Reported]) -> Table:
    """Return the numbers that papers print for one method, in their order."""
    rows = tuple(
        (
            f"{NAMES.get(r.paper, r.paper)} {r.table}", f"{r.row}, {r.column}",
            r.system + (f", {r.setting}" if r.setting else ""), r.dataset, epsilon_text(r.epsilon),
            f"{r.measure} {r.value:g}", r.verdicts, verdict_words(r),
        )
        for r in found
    )  # fmt: skip
    columns = ("printed in", "row, column", "system", "data", "epsilon", "number", "verdict", "why")
    return Table("Numbers that papers print for it; none was measured here", columns, rows)


_MARKED = re.compile(r"``(.+?)``|:\w+:`~?(.+?)`", re.DOTALL)


def paragraphs(text: str) -> list[tuple[bool, Markup]]:
    """Return the paragraphs of a docstring as pairs: whether to keep line breaks, and the HTML."""
    found = []
    for part in re.split(r"\n\s*\n", text.strip()):
        kept = any(re.match(r"\s|[-*=|]", line) for line in part.splitlines())
        safe = str(escape(part if kept else " ".join(part.split())))
        marked = _MARKED.sub(lambda m: f"<code>{m[1] or m[2]}</code>", safe)
        found.append((kept, Markup(marked)))
    return found
