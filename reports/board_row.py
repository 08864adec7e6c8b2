"""A row of the board: the records of one cell over its seeds."""

from __future__ import annotations

from dataclasses import dataclass

from bench.metrics.intervals import SeedSpread
from bench.privacy.accounting.risk import Risk
from bench.reports.claims import CHOSEN, Claim
from bench.reports.order import MARKS, Band
from bench.results.attack_record import AuditRecord
from bench.results.record import Audited
from bench.results.text import audited_text


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One row of the board: cells that differ only in their seed. Accuracies are in %, `cost` in seconds per cell."""

    dataset: str
    unit: str
    adjacency: str
    method: str
    asked: float | None
    basis: str
    target_adjacency: str
    delta: float
    preset: str
    noise: str
    claimed: float
    proven: float
    proven_by: str
    replace_one: float
    """Proven epsilon for replace neighbours; :attr:`proven` is for the method's adjacency."""
    risk: Risk
    """What the proven curve allows an attacker, between neighbours by :attr:`adjacency`."""
    audited: float | None
    """None without an audit, or if the audit had no power."""
    audit: Audited | None
    """The audit behind :attr:`audited`, or the audit of a training record if there is no other."""
    pair: AuditRecord | None
    """The deciding pair audit, if there is one."""
    claim: Claim
    claim_reason: str
    accuracy: float
    """Mean over seeds; those with a collapsed generator count at chance."""
    spread: float | None
    """Standard deviation over seeds; None with one seed."""
    seed_spread: SeedSpread | None
    """Variance of one seed (share squared), pooled with the method's other rows where this one has few seeds."""
    test_records: int
    low: float
    high: float
    """The 95% interval of the accuracy; see :func:`bench.metrics.intervals.accuracy_interval`."""
    official: float | None
    """Accuracy on the whole official test set; None if a part of it is public, or if it was not measured."""
    drop: float | None
    """Points below the best non-private baseline of the same data set, preset and backbone; None without one."""
    seeds: tuple[int, ...]
    collapsed: int
    """Number of further seeds with collapsed generators."""
    public_data: str
    cost: float | None
    """Mean over cells that took nothing from the cache; None if all did."""
    processor: str
    remarks: tuple[str, ...]
    reduced: tuple[str, ...]
    keys: tuple[str, ...]
    config: str
    """Short hash of the config, which separates rows that differ only in an option."""
    baseline: tuple[str, ...] = ()
    place: int | None = None
    """The first rank of its group in its band; None without a rank."""
    place_last: int | None = None
    """The last rank of its group."""
    unranked: str = ""
    """Why it holds no rank."""
    gap: float | None = None
    """For the first of a band: how many points below it a method cannot be told from it."""

    @property
    def band(self) -> Band:
        """The budget that the row competes in."""
        return Band.of(self.replace_one, None if self.asked is None else self.claimed)

    @property
    def rank(self) -> str:
        """The rank as text: "1", "2-5", or "–"."""
        if self.place is None:
            return "–"
        return str(self.place) if self.place == self.place_last else f"{self.place}-{self.place_last}"

    @property
    def marks(self) -> str:
        """The row's :data:`bench.reports.order.MARKS`."""
        chosen = not CHOSEN.keys().isdisjoint(self.remarks)
        holds = (len(self.seeds) + self.collapsed == 1, self.audit is None and self.band.private, chosen)
        return "".join(mark for mark, held in zip(MARKS, holds, strict=True) if held)

    @property
    def budget(self) -> float | None:
        """The limit of its band; None without privacy."""
        return self.band.limit if self.band.private else None

    @property
    def audited_text(self) -> str:
        """The audited column's text."""
        other = self.audit is not None and not self.audit.silent and self.audited is None
        return audited_text(self.audit) + " (record)" * other

    @property
    def audited_by(self) -> str:
        """The result of the audit, in words."""
        return "" if self.audit is None else self.audit.audit
