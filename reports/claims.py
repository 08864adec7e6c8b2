"""Marks that say whether a row's claim holds, with the reason, and remarks on the row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from bench.core.margins import covered
from bench.core.types import AuditKind, PrivacyUnit
from bench.privacy.auditing.utility_bound import remark
from bench.reports.seed_group import SeedGroup
from bench.results.attack_record import AuditRecord, MechanismVerdict, above
from bench.results.audited import audited_of, no_power
from bench.results.record import Status
from bench.results.text import audited_text, epsilon_text

CHOSEN: dict[str, list[dict[str, Any]]] = yaml.safe_load(Path(__file__).with_name("chosen.yaml").read_text("utf-8"))
"""By remark: rules for the rows whose settings were chosen on their data set's test or training records."""


class Claim(StrEnum):
    """The mark of a claimed epsilon; NONE if the paper claims nothing."""

    NONE = ""
    HOLDS = "holds"
    DATA_DEPENDENT = "data-dependent"
    FAILS = "does not hold"
    REFUTED = "refuted by experiment"
    IMPOSSIBLE = "impossible"

    @property
    def bad(self) -> bool:
        """Whether the claim has no proof, or is contradicted."""
        return self in (Claim.FAILS, Claim.REFUTED, Claim.IMPOSSIBLE)


def claim_of(row: SeedGroup) -> tuple[Claim, str]:
    """Return the mark of a row's claim, and the reason for it."""
    proven = f"proven: {epsilon_text(row.proven, 'up')}"
    if math.isinf(row.claimed):
        return Claim.NONE, "nothing is claimed"
    if by := _refuted(row):
        if not row.data_dependent and all(audit.unit is row.unit for audit in row.counted):
            return Claim.REFUTED, f"refuted by {by}; {proven}"
        proven += f"; refuted by {by} if read {'for any votes' if row.data_dependent else 'at record level'}"
    if impossible := remark(row.impossible):
        return Claim.IMPOSSIBLE, f"{impossible}; {proven}"
    if covered(row.proven, row.claimed):
        return Claim.HOLDS, proven
    if row.bypasses:
        return Claim.FAILS, f"outside the ledger: {'; '.join(row.bypasses)}"
    if row.holds_for_votes:
        return Claim.DATA_DEPENDENT, f"holds only for the votes of this run; for any votes {proven}"
    if row.data_dependent:
        return (
            Claim.FAILS,
            f"another run on the same votes may answer more queries, and so cost more; for any votes {proven}",
        )
    return Claim.FAILS, proven


def _refuted(row: SeedGroup) -> str:
    """Return the experimental results that refute a row's claim, or "" if there are none."""
    done, proven = row.counted, row.proven
    if done and done[0].kind is AuditKind.PAIR:
        return " and ".join(done[0].refuted_by)
    audited, limit = audited_of(done, row.unit), _limit(proven, done)
    slack = limit / proven if math.isfinite(limit) and proven > 0 else 1.0
    return "canaries" if audited is not None and above(audited.epsilon, row.claimed * slack) else ""


def _limit(proven: float, audits: Iterable[AuditRecord]) -> float:
    # Audited pipelines may have one record more or less, so use their proven epsilon, which may be slightly larger.
    return max([proven, *(audit.allowed for audit in audits if audit.allowed is not None)])


def remarks_of(row: SeedGroup) -> Iterator[str]:
    """Yield the remarks on a row that follow from its records and audits."""
    if row.plugin:
        yield f"plug-in {row.plugin}"
    if row.tuned:
        yield row.tuned
    if lost := row.collapsed:
        yield f"{lost} of {lost + len(row.keys)} seeds collapsed, counted at chance"
    if row.bypasses:
        yield "; ".join(row.bypasses)
    elif not covered(row.proven, row.claimed):
        yield "proven > claimed" + " without the votes" * row.data_dependent
    if row.record_level is not None:
        why = ", as images are public" if row.unit is PrivacyUnit.LABEL else ""
        yield f"record level: epsilon {epsilon_text(row.record_level, 'up')}{why}"
    if impossible := remark(row.impossible):
        yield impossible
    yield from _audit_remarks(row)
    if not row.plugin:
        yield from (said for said, rules in CHOSEN.items() if any(_falls_under(row, rule) for rule in rules))
    if count := len(row.reduced):
        yield f"{count} setting{'s differ' if count > 1 else ' differs'} from the paper's"
    if row.noise == "secure":
        yield "secure noise, not reproducible"
    if row.precision != "float32":
        yield f"teachers in {row.precision}"


def _falls_under(row: SeedGroup, rule: Mapping[str, Any]) -> bool:
    """Return whether a rule of :data:`CHOSEN` names the row's data set and method, and its preset or settings."""
    named = (row.dataset, row.preset) == (rule["dataset"], rule.get("preset", row.preset))
    return named and row.method in rule["methods"] and rule.get("settings", {}).items() <= row.records[0].config.items()


def _audit_remarks(row: SeedGroup) -> Iterator[str]:
    """Yield the remarks that follow from the audits of a row."""
    bugs = list(row.violations)
    if not (done := row.counted):
        yield from (f"BUG: {bug}" for bug in bugs)
        return
    first = done[0]
    audited = audited_of(done, first.unit)
    assert audited is not None
    own = first.unit is row.unit
    if not own:
        yield f"audited at record level: {audited_text(audited)}"
    if first.kind is not AuditKind.PAIR and not bugs:  # pooled runs may show more than each audit by itself
        if own and above(audited.epsilon, _limit(row.proven, done)):
            bugs = ["audited > proven"]
        elif not own and row.record_level is not None and above(audited.epsilon, _limit(row.record_level, done)):
            bugs = ["audited > proven at record level"]
    yield from (f"BUG: {bug}" for bug in bugs)
    if not bugs and (refuted := _refuted(row)):
        where = ", if read for any votes" if row.data_dependent else ", at record level" * (not own)
        yield f"refuted by experiment{where}: {refuted}"
    if first.verdict.startswith("inconclusive"):
        yield f"audit {first.verdict}"
    elif first.kind is not AuditKind.PAIR and no_power(done):
        seen = max((channel.epsilon for audit in done for channel in audit.power), default=None)
        known = "" if seen is None else f": {epsilon_text(seen, 'down')} seen without any noise"
        yield f"audit without power{known}"
    mechanisms = [m for audit in row.audits if audit.status is Status.DONE for m in audit.mechanisms]
    if broken := sorted({m.kind for m in mechanisms if m.verdict is MechanismVerdict.VIOLATED}):
        yield f"BUG: {', '.join(broken)} gives away more than it is charged for"
