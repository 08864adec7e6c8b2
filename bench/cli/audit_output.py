"""Audits as tables on the terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from bench.cli.jobs import Result
from bench.core.progress import echo, print_fields, print_json, print_table
from bench.core.types import AuditKind
from bench.reports import audits
from bench.results.attack_record import AuditRecord, MechanismVerdict
from bench.results.text import claimed_text, epsilon_text


def print_results(results: Sequence[AuditRecord], out: Path, json: bool) -> None:
    """Print the audits as tables, and the failed ones with their logs in `out`; or all as JSON."""
    if json:
        print_json({"audits": [result.model_dump(mode="json") for result in results]})
    else:
        print_audits(results)
        print_failures(results, out)


def print_failures(results: Sequence[Result], out: Path) -> None:
    """Print a line for each failed attack or audit."""
    for result in results:
        if result.failure is not None:
            echo(f"failed: {result.key}: {result.failure.words(out)}")


def print_audits(results: Sequence[AuditRecord]) -> None:
    """Print a table per audit design, the details of each audit, and a line for each violated mechanism."""
    names = _short_names({a.student for a in results})
    pairs = [a for a in results if a.kind is AuditKind.PAIR]
    informed = [a for a in results if a.kind is AuditKind.CANDIDATES]
    others = [a for a in results if a.kind not in (AuditKind.PAIR, AuditKind.CANDIDATES)]
    for a in informed:
        rows = [audits.informed_cells(found) for found in a.candidates]
        print_table(f"{a.student}: which candidate? {a.verdict}", audits.INFORMED, rows)
        for line in a.notes:
            echo(line)
    for found, cells, columns in ((pairs, _pair_cells, _PAIR), (others, _canary_cells, _CANARIES)):
        if found:
            texts = [cells(a) for a in found]
            rows = [(names[a.student], *(text[name] for name in columns)) for a, text in zip(found, texts, strict=True)]
            print_table(f"audits at {100 * found[0].confidence:g}% confidence", ("student", *columns), rows)
            for a, text in zip(found, texts, strict=True):
                below = [(_SAID.get(name, name), said) for name, said in text.items() if name not in columns]
                print_fields(a.student, below)
    if not results:
        echo("audits: none")
    for a in results:
        for m in a.mechanisms:
            if m.verdict is MechanismVerdict.VIOLATED:
                settings = ", ".join(f"{k}={v}" for k, v in m.parameters.items())
                seen, allowed = epsilon_text(m.epsilon, "down"), epsilon_text(m.exact, "up")
                echo(f"violated: {m.kind} ({settings}) in {a.student}: {seen} seen, {allowed} allowed")


# Columns of the tables; the lines below a table give the remaining details.
_PAIR = ("claimed", "proven", "by release", "by transcript", "outcome")
_CANARIES = ("claimed", "proven", "audited", "mechanisms", "accuracy", "outcome")
_SAID = {"cap": "could show at most"}  # audits.md explains the short word


def _short_names(keys: Collection[str]) -> dict[str, str]:
    """Return each key without its hash if the rest is not a prefix of another key."""
    short = {key: key.rpartition("-")[0] or key for key in keys}
    return {
        key: key if any(other.startswith(name) for other in keys if other != key) else name
        for key, name in short.items()
    }


def _outcome(verdict: str) -> dict[str, str]:
    """Return the start of a verdict for the table, and the full text if it is longer."""
    short = re.split("[:;]", verdict, maxsplit=1)[0]
    return {"outcome": short, "verdict": "" if verdict == short else verdict}


def _pair_cells(a: AuditRecord) -> dict[str, str]:
    text = dict(zip(audits.COLUMNS, audits.cells(a), strict=True))
    return text | _outcome(text["verdict"])


def _canary_cells(a: AuditRecord) -> dict[str, str]:
    cap = max((c.cap for c in a.channels), default=None)
    power = max((c.epsilon for c in a.power), default=None)
    by_curve = max((c.curve for c in a.channels if c.curve is not None), default=None)
    return {
        "claimed": claimed_text(a.claimed, a.allowed),
        "proven": epsilon_text(a.allowed, "up"),
        "audited": epsilon_text(a.epsilon, "down"),
        "by curve": epsilon_text(by_curve, "down"),
        "cap": epsilon_text(cap, "down"),
        "without noise": epsilon_text(power, "down"),
        "right guesses": "; ".join(f"{c.correct}/{c.guesses} {c.name}" for c in a.channels),
        "mechanisms": _mechanisms(a),
        "accuracy": "" if a.accuracy is None else f"{100 * a.accuracy:.2f}",
        **_outcome(a.verdict),
    }


def _mechanisms(audit: AuditRecord) -> str:
    verdicts = [m.verdict for m in audit.mechanisms if m.verdict is not MechanismVerdict.NOT_AUDITED]
    if not verdicts:
        return "–"
    if bad := verdicts.count(MechanismVerdict.VIOLATED):
        return f"{bad} VIOLATED"
    blind = verdicts.count(MechanismVerdict.NO_POWER)
    unseen = f", {blind} without power" if blind else ""
    return f"{verdicts.count(MechanismVerdict.HOLDS)} of {len(verdicts)} hold{unseen}"
