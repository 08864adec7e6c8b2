"""Pair audits as tables: what each instrument has seen beside what is claimed and proven. From records alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bench.core.types import Instrument
from bench.reports.leaderboard import Board, cells_of
from bench.results.attack_record import AuditRecord, PairBound
from bench.results.audited import bound_text, runs_text
from bench.results.text import Table, epsilon_text, markdown_table, md

COLUMNS = ("claimed", "proven", "by release", "cap", "without noise", "by transcript", "pair", "runs", "verdict")
READING = (
    "Each method's own code ran with the privacy settings of its row, small nets and small images, on two "
    "adjacent data sets that the auditor chose. Both bounds are lower bounds on epsilon, corrected for all that "
    "was tried. By release: how surely the published student, weights or images tell the two data sets apart. No "
    "more than the cap can be seen in so many runs, and the bound is inconclusive where the cap, or what is seen "
    "without any noise, does not exceed the smaller of claimed and proven. By transcript: the privacy loss of the"
    " ledger's answers. It shows how much of the proven epsilon is real, and misses what bypasses the ledger. A "
    "bound above claimed refutes the claim, one above proven shows a bug, and a low one supports no claim. Of "
    "several seeds the first counts."
)


def cells(audit: AuditRecord) -> tuple[str, ...]:
    """Return the texts of a pair audit in the order of :data:`COLUMNS`."""
    by = {pair.instrument: pair for pair in audit.pairs}
    release, transcript = by.get(Instrument.RELEASE), by.get(Instrument.TRANSCRIPT)
    released = ("–",) * 3
    if release is not None:
        curve = "" if release.curve is None else f" (by curve {epsilon_text(release.curve, 'down')})"
        limits = (epsilon_text(release.cap, "down"), epsilon_text(release.power, "down"))
        released = (bound_text(audit, release) + curve, *limits)
    seen = audit.verdict
    return (
        epsilon_text(audit.claimed),
        epsilon_text(audit.allowed, "up") + " (record)" * audit.record_level,
        *released,
        "–" if transcript is None else bound_text(audit, transcript),
        _joined(audit.pairs, lambda pair: pair.pair),
        _joined(audit.pairs, runs_text),
        seen if audit.bypassed in seen else f"{seen}; {audit.bypassed}",
    )


def _joined(pairs: Iterable[PairBound], text: Callable[[PairBound], str]) -> str:
    texts = {str(pair.instrument): text(pair) for pair in pairs}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {said}" for name, said in sorted(texts.items()))


def tables(board: Board) -> list[Table]:
    """Return the pair audits that count for the rows of `board`, one table per data set and unit."""
    found = []
    for (dataset, unit), rows in board.tables().items():
        named = ((cells_of(row), row.pair) for row in rows if row.pair is not None)
        lines = tuple((texts["method"], texts["target epsilon (basis)"], *cells(audit)) for texts, audit in named)
        if lines:
            level = {f"{100 * row.pair.confidence:g}%" for row in rows if row.pair is not None}
            delta = {f"{row.delta:g}" for row in rows if row.pair is not None}
            caption = f"{dataset}, unit {unit}; delta {', '.join(sorted(delta))}, confidence {', '.join(sorted(level))}"
            found.append(Table(caption, ("method", "target epsilon (basis)", *COLUMNS), lines))
    return found


def audits_page(board: Board) -> str:
    """Return :func:`tables` as Markdown; empty without a pair audit."""
    parts = [f"## {md(table.caption)}\n\n{markdown_table(table.columns, table.rows)}" for table in tables(board)]
    return "\n".join(["# Audits\n", f"{READING}\n", *parts]) if parts else ""
