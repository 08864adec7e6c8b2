"""Audits as tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.core.progress import echo, print_table
from bench.core.types import AuditKind

if TYPE_CHECKING:
    from bench.results.attack_record import AuditRecord


def print_audits(results: Sequence[AuditRecord]) -> None:
    """Print audits as a table for each design, and a line for each violated mechanism."""
    from bench.results.attack_record import MechanismVerdict
    from reports import audits

    pairs = [a for a in results if a.kind is AuditKind.PAIR]
    others = [a for a in results if a.kind is not AuditKind.PAIR]
    if pairs:
        rows = [(a.student, *audits.cells(a)) for a in pairs]
        print_table(_audits_title(pairs), ("student", *audits.COLUMNS), rows)
    if others or not results:
        columns = (
            "student", "claimed", "proven", "audited", "by curve", "cap", "no noise", "right guesses", "mechanisms",
            "accuracy", "verdict",
        )  # fmt: skip
        print_table(_audits_title(others), columns, list(map(_canary_cells, others)))
    for a in results:
        for m in a.mechanisms:
            if m.verdict is MechanismVerdict.VIOLATED:
                settings = ", ".join(f"{k}={v}" for k, v in m.parameters.items())
                echo(f"violated: {m.kind} ({settings}) in {a.student}: {m.epsilon:.6g} seen, {m.exact:.6g} allowed")


def _audits_title(results: Sequence[AuditRecord]) -> str:
    return f"audits at {100 * results[0].confidence:g}% confidence" if results else "audits"


def _canary_cells(a: AuditRecord) -> tuple[str, ...]:
    from bench.results.text import epsilon_text

    cap = max((c.cap for c in a.channels), default=None)
    power = max((c.epsilon for c in a.power), default=None)
    by_curve = max((c.curve for c in a.channels if c.curve is not None), default=None)
    return (
        a.student,
        epsilon_text(a.claimed),
        epsilon_text(a.allowed, "up"),
        epsilon_text(a.epsilon, "down"),
        epsilon_text(by_curve, "down"),
        epsilon_text(cap, "down"),
        epsilon_text(power, "down"),
        "; ".join(f"{c.correct}/{c.guesses} {c.name}" for c in a.channels),
        _mechanisms(a),
        "" if a.accuracy is None else f"{100 * a.accuracy:.2f}",
        a.verdict,
    )


def _mechanisms(audit: AuditRecord) -> str:
    from bench.results.attack_record import MechanismVerdict

    verdicts = [m.verdict for m in audit.mechanisms]
    if not verdicts:
        return "–"
    if bad := verdicts.count(MechanismVerdict.VIOLATED):
        return f"{bad} VIOLATED"
    blind = verdicts.count(MechanismVerdict.NO_POWER)
    unseen = f", {blind} without power" if blind else ""
    return f"{verdicts.count(MechanismVerdict.HOLDS)} of {len(verdicts)} hold{unseen}"
