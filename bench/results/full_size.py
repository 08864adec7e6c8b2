"""The pair at full size in the record of an audit: added after the audit, or taken out to compare the rest."""

from __future__ import annotations

from collections.abc import Sequence

from bench.core.types import AuditKind, Instrument
from bench.results.attack_record import AuditRecord, PairBound
from bench.results.record import Provenance, Status

NO_FULL_SIZE = "no pair at full size"
"""Start of the note of an audit that ran no pair at full size."""
ADDED = "the pair at full size ran after the audit"
"""Start of the note of an audit that got its pair at full size later."""
_SPENT = "; the audit leaves no error probability for its bound"
_OWN = "on the row's own data"  # start of what a pair at full size says of a bypass


def has_full_size(audit: AuditRecord) -> bool:
    """Return whether the pair at full size ran in `audit`: it gave a bound, or showed a bypass, or nothing to bound."""
    ran = audit.bypassed.startswith(_OWN) or any(note.startswith(ADDED) for note in audit.notes)
    return ran or any(bound.instrument is Instrument.FULL_SIZE for bound in audit.pairs)


def lacks_full_size(audit: AuditRecord) -> bool:
    """Return whether `audit` is a finished one by pairs, of a private method, without a pair at full size."""
    finished = audit.kind is AuditKind.PAIR and audit.status is Status.DONE and audit.allowed is not None
    return finished and not has_full_size(audit)


def _has_error_left(audit: AuditRecord) -> bool:
    """Return whether the bounds of `audit` leave a part of the error probability to a pair at full size.

    Older audits spend all of it on a bound from drawn answers. They have no note on a pair at full size, or one from
    :func:`with_full_size` that says so. A shared audit may repeat such an older one.
    """
    drawn = {bound.instrument for bound in audit.pairs if not bound.exact}
    if Instrument.TRANSCRIPT not in drawn or Instrument.FULL_SIZE in drawn:
        return True
    told = [note for note in audit.notes if note.startswith(NO_FULL_SIZE)]
    return not audit.shared and bool(told) and not any(note.endswith(_SPENT) for note in told)


def with_full_size(
    audit: AuditRecord, bounds: Sequence[PairBound], bypassed: str, notes: Sequence[str], ran: Provenance
) -> AuditRecord:
    """Return `audit` with the result of its pair at full size: a bound, a difference, or a note why there is none.

    A bound that is not exact is left out if `audit` leaves it no part of the error probability.
    """
    rest = without_full_size(audit)
    left = _has_error_left(audit)
    kept = [bound for bound in bounds if bound.exact or left]
    ran_at = f"{ADDED}, at commit {ran.git_commit or 'unknown'}{', changed' * bool(ran.git_dirty)}"
    said = [note + _SPENT * (not left) for note in notes] or [ran_at + _SPENT * (len(kept) < len(bounds))]
    return _changed(rest, [*rest.pairs, *kept], rest.bypassed or bypassed, [*rest.notes, *said])


def without_full_size(audit: AuditRecord) -> AuditRecord:
    """Return `audit` as it would be without its pair at full size, and without notes on that."""
    pairs = [bound for bound in audit.pairs if bound.instrument is not Instrument.FULL_SIZE]
    notes = [note for note in audit.notes if not note.startswith((NO_FULL_SIZE, ADDED))]
    return _changed(audit, pairs, "" if audit.bypassed.startswith(_OWN) else audit.bypassed, notes)


def _changed(audit: AuditRecord, pairs: list[PairBound], bypassed: str, notes: list[str]) -> AuditRecord:
    epsilon = max((bound.epsilon for bound in pairs), default=None)
    return audit.model_copy(update={"pairs": pairs, "epsilon": epsilon, "bypassed": bypassed, "notes": notes})
