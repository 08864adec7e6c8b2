"""The audited column: one lower bound from the audits of a row. Reads records only.

Pair audits take precedence over canary audits, whatever they found. Only one pair audit of a row counts, so there
is nothing to correct for; canary audits are pooled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.core.grouping import grouped
from bench.core.types import AuditKind, Instrument, PrivacyUnit
from bench.privacy.auditing.bounds import many_run_epsilon
from bench.privacy.auditing.curve_bounds import CurveBound, many_run_by_curve, one_run_by_curve
from bench.privacy.auditing.one_run import one_run_cap, one_run_epsilon
from bench.privacy.events.base_event import Event
from bench.results.attack_record import AuditRecord, Channel, PairBound, R
from bench.results.record import VISIBLE, Audited, Record, Status
from bench.results.text import epsilon_text

CHANNELS = 2
"""Channels per audit: the student and released images, both counted before it is known whether images exist."""


def corrected(confidence: float, tests: int) -> float:
    """Return the confidence of each of `tests` bounds so that all hold jointly (Bonferroni)."""
    return 1 - (1 - confidence) / max(tests, 1)


def bounded(
    name: str, family: str, canaries: int, guesses: int, correct: int, group: int, delta: float, confidence: float,
    events: Sequence[Event] = (),
) -> Channel:  # fmt: skip
    """Return the channel with its one-run bound for one record and, if proven, the bound by the curve of `events`."""
    epsilon = one_run_epsilon(canaries, guesses, correct, delta, confidence, group)
    cap = one_run_cap(canaries, guesses, delta, confidence, group)
    by_curve = one_run_by_curve(events, canaries, guesses, correct, delta, confidence, group)
    return Channel(
        name=name, family=family, canaries=canaries, guesses=guesses, correct=correct, group=group,
        epsilon=epsilon, cap=cap, **_curve_fields(by_curve),
    )  # fmt: skip


def _curve_fields(bound: CurveBound | None) -> dict[str, Any]:
    return {} if bound is None else {"curve": bound.epsilon, "curve_family": bound.family}


def no_power(audits: Iterable[AuditRecord]) -> bool:
    """Return whether some audit is inconclusive and all others lack a power run."""
    audits = list(audits)
    return any(a.powerless for a in audits) and all(a.powerless or not a.power for a in audits)


def many_bounded(
    name: str, family: str, errors: tuple[int, int, int, int], delta: float, confidence: float,
    events: Sequence[Event] = (),
) -> Channel:  # fmt: skip
    """Return the channel of one canary over many runs, with bounds as in :func:`bounded`."""
    found = many_run_epsilon(*errors, delta, confidence)
    by_curve = many_run_by_curve(events, *errors, delta, confidence)
    runs = errors[1] + errors[3]
    return Channel(
        name=name, family=family, canaries=1, guesses=runs, correct=runs - errors[0] - errors[2],
        epsilon=found.epsilon, cap=found.cap, errors=errors, **_curve_fields(by_curve),
    )  # fmt: skip


def counted(audits: Iterable[AuditRecord], unit: PrivacyUnit) -> list[AuditRecord]:
    """Return the finished audits that count for `unit`: the first pair audit by seed and key, or all canary audits.

    A pair audit counts if it has bounds or had an epsilon to refute, a canary audit if it has channels.
    """
    done = [a for a in audits if a.status is Status.DONE and a.unit is unit]
    pairs = [a for a in done if a.kind is AuditKind.PAIR and (a.pairs or math.isfinite(a.limit))]
    return [min(pairs, key=_place)] if pairs else [a for a in done if a.kind is not AuditKind.PAIR and a.channels]


def informed_of(audits: Iterable[AuditRecord], unit: PrivacyUnit) -> AuditRecord | None:
    """Return the audit by candidates that counts for `unit`, the first by seed and key; None if there is none."""
    done = (a for a in audits if a.status is Status.DONE and a.unit is unit and a.candidates)
    return min(done, key=_place, default=None)


def _place(audit: AuditRecord) -> tuple[list[str | int], int, str]:
    # Students of a row differ only in seed and digest. Compare numbers, so that seed 2 precedes seed 10.
    parts = [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", audit.student)]
    return parts, audit.plan.get("seed", 0), audit.key


def bound_text(audit: AuditRecord, pair: PairBound) -> str:
    """Return one bound of a pair audit as text; an inconclusive bound is not printed as 0."""
    seen = pair.epsilon >= VISIBLE or audit.conclusive(pair)
    return epsilon_text(pair.epsilon, "down") if seen else "inconclusive"


def runs_text(pair: PairBound) -> str:
    """Return the counted runs on the first and second data set, or "exact" for a bound without draws."""
    return "exact" if pair.exact else f"{pair.runs[0]:,} + {pair.runs[1]:,}"


def _pair_audited(audit: AuditRecord) -> Audited:
    said = []
    for pair in sorted(audit.pairs, key=lambda pair: -pair.epsilon):
        counts = [runs_text(pair) + " runs" * (not pair.exact)]
        if math.isfinite(pair.cap):
            counts.append(f"cap {epsilon_text(pair.cap, 'down')}")
        if pair.power is not None:
            counts.append(f"without noise {epsilon_text(pair.power, 'down')}")
        if pair.curve is not None:
            counts.append(f"by the curve {epsilon_text(pair.curve, 'down')}, {pair.curve_of}")
        said.append(f"{pair.instrument} {bound_text(audit, pair)} ({pair.seen}; {pair.pair}; {', '.join(counts)})")
    if audit.bypassed:
        said.append(f"outside the ledger: {audit.bypassed}")
    if audit.shared:
        said.append(f"audited by the audit of {audit.shared.rsplit('--', 1)[0]}")
    # The bound at full size does not make an inconclusive audit count.
    telling = [pair for pair in audit.pairs if not audit.powerless or pair.instrument is not Instrument.FULL_SIZE]
    return Audited(
        epsilon=max((pair.epsilon for pair in telling), default=0.0),
        confidence=audit.confidence,
        audit="; ".join(said),
        inconclusive=audit.powerless,
        at_most=audit.at_most,
    )


def audited_of(audits: Iterable[AuditRecord], unit: PrivacyUnit) -> Audited | None:
    """Return the audited epsilon of students that differ only in their seeds, None without an audit.

    One pair audit counts (:func:`counted`). One-run audits with the same options have independent coins, so their
    counts are pooled. Many-run audits stay separate: each chose its own threshold. The Bonferroni correction counts
    :data:`CHANNELS` tests for each pool and each separate audit, empty channels included, because it must cover every
    possible test.
    """
    pooled: dict[tuple[str, str, str, int], list[int]] = {}
    apart: list[tuple[Channel, tuple[int, int, int, int]]] = []
    looks: set[str] = set()
    done = counted(audits, unit)
    if not done:
        return None
    if done[0].kind is AuditKind.PAIR:
        return _pair_audited(done[0])
    for audit in done:
        options = audit.key.rsplit("--", 1)[-1]
        for channel in audit.channels:
            if channel.errors is not None:
                apart.append((channel, channel.errors))
                looks.add(audit.key)
                continue
            looks.add(options)
            counts = pooled.setdefault((options, channel.name, channel.family, channel.group), [0, 0, 0])
            for position, number in enumerate((channel.canaries, channel.guesses, channel.correct)):
                counts[position] += number
    confidence, delta = min(a.confidence for a in done), min(a.delta for a in done)
    each = corrected(confidence, CHANNELS * len(looks))
    channels = [many_bounded(channel.name, channel.family, errors, delta, each) for channel, errors in apart]
    channels += [
        bounded(name, family, canaries, guesses, correct, group, delta, each)
        for (_, name, family, group), (canaries, guesses, correct) in pooled.items()
    ]
    best = max(channels, key=lambda channel: channel.epsilon)
    blind = no_power(done)
    seen = f"{best.correct} of {best.guesses} guesses right ({best.name}, {best.family})" + "; no power" * blind
    return Audited(
        epsilon=best.epsilon,
        confidence=confidence,
        audit=f"{seen}; at most {epsilon_text(best.cap, 'down')} could be shown",
        inconclusive=blind,
        at_most=max(audit.at_most or 0.0 for audit in done),
    )


def by_student(found: Iterable[R]) -> Mapping[str, list[R]]:
    """Return audits or attacks by the key of their student, sorted by their own; empty lists for other students."""
    return grouped((one.student, one) for one in sorted(found, key=lambda one: one.key))


def with_audits(records: Iterable[Record], audits: Iterable[AuditRecord]) -> list[Record]:
    """Return `records` with the audited column filled from their audits."""
    of_student = by_student(audits)
    filled = []
    for record in records:
        if record.privacy is not None and record.key in of_student:
            audited = audited_of(of_student[record.key], record.privacy.unit)
            record = record.model_copy(update={"privacy": record.privacy.model_copy(update={"audited": audited})})
        filled.append(record)
    return filled
