"""Pair audits as tables: the bound of each instrument next to the claimed and the proven epsilon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bench.core.printable import counted
from bench.core.types import Instrument
from bench.reports.leaderboard import Board, cells_of
from bench.results.attack_record import AuditRecord, PairBound
from bench.results.audited import bound_text, runs_text
from bench.results.candidates import CandidatesFound
from bench.results.full_size import has_full_size
from bench.results.text import Table, claimed_text, epsilon_text, markdown_table, md, percent_text

COLUMNS = ("claimed", "proven", "by release", "cap", "without noise", "by transcript", "pair", "runs", "verdict")
READING = (
    "The auditor ran each method's code with the privacy settings of its row, small nets and small images, on two "
    "adjacent data sets of its choice. Both bounds are lower bounds on epsilon, corrected for everything it tried. By"
    " release: how reliably the published student, weights or images tell the two data sets apart. With this number "
    "of runs the bound cannot exceed the cap. The audit is inconclusive if the cap, or the bound without noise, does "
    "not exceed the smaller of claimed and proven. By transcript: the privacy loss of the ledger's answers. It shows "
    "how tight the proven epsilon is, and misses private data that bypasses the ledger. At full size: the same for "
    "one pair of runs on the row's own data and a neighbour; by itself it does not make an inconclusive audit "
    "conclusive. A bound above claimed refutes the claim, one above proven reveals a bug, and a low bound does not "
    "support a claim. If several seeds were audited, the first one counts. Rows with the same method, privacy and "
    "small data sets share an audit, and name the audited row."
)
INFORMED = ("candidates", "seen", "right", "success in %", "interval", "bound", "without noise")
INFORMED_READING = (
    "The attacker knows every record but one and guesses which of 10 or 100 equally likely candidates it is, from the "
    "ledger's answers (transcript) or from the student (release). A blind guess is right in 10% or 1% of the cases, "
    "and the proven curve limits what any attacker reaches: the column bound. Intervals are at 95% for all guesses of "
    "a row together; one above its bound would reveal a bug."
)


def cells(audit: AuditRecord, *, votes: bool = False) -> tuple[str, ...]:
    """Return the texts of a pair audit as in :data:`COLUMNS`; `votes`: its claim holds only for its run's votes."""
    by = {pair.instrument: pair for pair in audit.pairs}
    release = by.get(Instrument.RELEASE)
    released = ("–",) * 3
    if release is not None:
        curve = "" if release.curve is None else f" (by curve {epsilon_text(release.curve, 'down')})"
        limits = (epsilon_text(release.cap, "down"), epsilon_text(release.power, "down"))
        released = (bound_text(audit, release) + curve, *limits)
    seen = audit.verdict_of(votes=votes)
    return (
        claimed_text(audit.claimed, audit.allowed),
        epsilon_text(audit.allowed, "up") + " (record)" * audit.record_level,
        *released,
        _transcripts(audit, by),
        _joined(audit.pairs, lambda pair: pair.pair),
        _joined(audit.pairs, runs_text),
        (seen if audit.bypassed in seen else f"{seen}; {audit.bypassed}")
        + f"; audited by the audit of {audit.shared.rsplit('--', 1)[0]}" * bool(audit.shared),
    )


def _transcripts(audit: AuditRecord, by: Mapping[Instrument, PairBound]) -> str:
    tiny, full = by.get(Instrument.TRANSCRIPT), by.get(Instrument.FULL_SIZE)
    text = "–" if tiny is None else bound_text(audit, tiny)
    if full is None:  # an older audit has no part of its error probability left for this bound
        return text + "; no difference at full size" * (has_full_size(audit) and not audit.bypassed)
    return f"{text}; {bound_text(audit, full)} at full size"


def _joined(pairs: Iterable[PairBound], text: Callable[[PairBound], str]) -> str:
    texts = {str(pair.instrument): text(pair) for pair in pairs}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {said}" for name, said in sorted(texts.items()))


def informed_cells(found: CandidatesFound) -> tuple[str, ...]:
    """Return the texts of :data:`INFORMED` for one number of candidates and what the attacker saw."""
    silent = "–" if found.silent is None else f"{found.silent[0]} of {found.silent[1]}"
    interval = f"{percent_text(found.low, 'down')} to {percent_text(found.high, 'up')}"
    return (
        f"{found.candidates:,}", found.instrument, f"{found.right:,} of {found.runs:,}",
        f"{100 * found.right / found.runs:.2f}", interval, percent_text(found.bound, "up"), silent,
    )  # fmt: skip


def informed_tables(board: Board) -> list[Table]:
    """Return how often the informed attacker named the record of a row, one table per data set and unit."""
    found = []
    for (dataset, unit), rows in board.tables().items():
        lines = tuple(
            (row.method, cells_of(row)["target epsilon (basis)"], epsilon_text(row.proven, "up"), *informed_cells(one))
            for row in rows
            if row.informed is not None
            for one in row.informed.candidates
        )
        if lines:
            columns = ("method", "target epsilon (basis)", "proven", *INFORMED)
            found.append(Table(f"Naming the record: {dataset}, unit {unit}", columns, lines))
    return found


def tables(board: Board) -> list[Table]:
    """Return the deciding pair audits of the rows of `board`, one table per data set and unit."""
    found = []
    for (dataset, unit), rows in board.tables().items():
        named = ((cells_of(row), cells(row.pair, votes=row.data_dependent)) for row in rows if row.pair is not None)
        lines = tuple((texts["method"], texts["target epsilon (basis)"], *audited) for texts, audited in named)
        if lines:
            level = {f"{100 * row.pair.confidence:g}%" for row in rows if row.pair is not None}
            delta = {f"{row.delta:g}" for row in rows if row.pair is not None}
            caption = f"{dataset}, unit {unit}; delta {', '.join(sorted(delta))}, confidence {', '.join(sorted(level))}"
            found.append(Table(caption, ("method", "target epsilon (basis)", *COLUMNS), lines))
    return found


def audits_page(board: Board) -> str:
    """Return :func:`tables` and :func:`informed_tables` as Markdown, or "" if both are empty."""
    audits = [row.pair for rows in board.tables().values() for row in rows if row.pair is not None]
    count = f"{sum(map(has_full_size, audits))} of the {counted(len(audits), 'audit')} below ran the pair at full size."
    text = "\n".join(["# Audits\n", f"{READING} {count}\n", *_sections(tables(board))]) if audits else ""
    informed = informed_tables(board)
    if informed:
        text += "\n".join(
            ["\n" * bool(text) + "# The informed attacker\n", f"{INFORMED_READING}\n", *_sections(informed)]
        )
    return text


def _sections(found: Iterable[Table]) -> list[str]:
    return [f"## {md(table.caption)}\n\n{markdown_table(table.columns, table.rows)}" for table in found]
