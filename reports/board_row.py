"""A row of the board: the records of one cell over its seeds, and its relation to other rows."""

from __future__ import annotations

from functools import cached_property

from bench.core.types import AuditKind, PrivacyUnit
from bench.metrics.intervals import SeedSpread, accuracy_interval
from bench.metrics.ranking import Contender
from bench.reports.claims import CHOSEN, Claim, claim_of, remarks_of
from bench.reports.order import MARKS
from bench.reports.seed_group import SeedGroup
from bench.results.attack_record import AuditRecord
from bench.results.audited import audited_of, informed_of
from bench.results.candidates import named
from bench.results.record import Audited
from bench.results.replays import Replay
from bench.results.text import audited_text, epsilon_text


class BoardRow(SeedGroup):
    """One row of the board. :func:`bench.reports.leaderboard.build_board` sets the fields that depend on other rows."""

    seed_spread: SeedSpread | None = None
    """Variance of one seed (share squared), pooled with the method's other rows where this one has few seeds."""
    baseline: BoardRow | None = None
    """The best non-private row of the same data set, preset and backbone."""
    place: int | None = None
    """The first rank of its group in its band; None without a rank."""
    place_last: int | None = None
    """The last rank of its group."""
    unranked: str = ""
    """Why the row holds no rank."""
    earlier: str = ""
    """The source hash of its plug-in, if the newest record of its method is from another source."""
    replay: Replay | None = None
    """The replay of one of its runs, otherwise of another run of its method on its data set."""
    gap: float | None = None
    """For the first row of a band: how many points lower a method must be to differ significantly, answers unknown."""

    def __repr__(self) -> str:
        return f"<{self.method} on {self.dataset}: {self.accuracy:.2f}%, proven epsilon {self.replace_one:.4g}>"

    @cached_property
    def _claim(self) -> tuple[Claim, str]:
        return claim_of(self)

    @property
    def claim(self) -> Claim:
        """Whether the claimed epsilon holds."""
        return self._claim[0]

    @property
    def claim_reason(self) -> str:
        """Why :attr:`claim` has its mark."""
        return self._claim[1]

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """Texts with caveats on the row."""
        spread, remarks = self.seed_spread, list(remarks_of(self))
        if self.earlier:
            remarks.insert(0, f"an earlier version of its file (SHA-256 {self.earlier[:8]}...)")
        if spread is None:
            remarks.append("one seed: the interval covers test records only")
        elif spread.borrowed:
            freedom = f"{spread.freedom} degrees of freedom"
            remarks.append(f"interval from the standard deviation over seeds of the method's other rows ({freedom})")
        return tuple(remarks)

    @cached_property
    def _own_audit(self) -> Audited | None:
        return audited_of(self.audits, self.unit)

    @cached_property
    def audit(self) -> Audited | None:
        """The audit behind :attr:`audited`, or the audit of a training record if there is no other."""
        return self._own_audit or audited_of(self.audits, PrivacyUnit.RECORD)

    @property
    def audited(self) -> float | None:
        """The lower bound on epsilon; None without an audit, or if the audit had no power."""
        return None if self._own_audit is None or self._own_audit.silent else self._own_audit.epsilon

    @property
    def pair(self) -> AuditRecord | None:
        """The deciding pair audit, if there is one."""
        return self.counted[0] if self.counted and self.counted[0].kind is AuditKind.PAIR else None

    @cached_property
    def informed(self) -> AuditRecord | None:
        """The audit of the attacker who knows all records but one, if there is one."""
        return informed_of(self.audits, self.unit)

    @property
    def named(self) -> dict[str, float | None]:
        """The lower limits of that attacker's success by their columns."""
        return named(self.informed.candidates if self.informed else ())

    @cached_property
    def _interval(self) -> tuple[float, float]:
        return accuracy_interval(self.shares, self.test_records, spread=self.seed_spread)

    @property
    def low(self) -> float:
        """The lower end of the 95% interval of :func:`bench.metrics.intervals.accuracy_interval`."""
        return 100 * self._interval[0]

    @property
    def high(self) -> float:
        """The upper end of that interval."""
        return 100 * self._interval[1]

    @cached_property
    def contender(self) -> Contender | None:
        """The row as a contender for a rank; None if the variation of its seeds is unknown."""
        if self.seed_spread is None:
            return None
        seeds, test_set = len(self.seeds) + self.collapsed, self.records[0].dataset_revision
        return Contender(self.accuracy / 100, seeds, self.seed_spread, self.test_records, self.right, test_set)

    @property
    def drop(self) -> float | None:
        """Points below :attr:`baseline`."""
        return None if self.baseline is None else self.baseline.accuracy - self.accuracy

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
        unaudited = self.band.private and (self.audit is None or self.audit.inconclusive)
        holds = (len(self.seeds) + self.collapsed == 1, unaudited, chosen)
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
    def audited_against(self) -> str:
        """The audited column's text, with :attr:`proven` if that is for other neighbours than :attr:`replace_one`."""
        other = self.audited is not None and self.proven < self.replace_one
        return self.audited_text + f" of {epsilon_text(self.proven, 'up')}" * other

    @property
    def audit_status(self) -> str:
        """Whether the row has an audit, and of what: ``conclusive``, ``inconclusive``, ``record level`` or ``none``."""
        if self.audit is None or self.audit.silent:
            return "none" if self.audit is None else "inconclusive"
        if self.audited is None:
            return "record level"
        return "inconclusive" if self.audit.inconclusive else "conclusive"

    @property
    def audited_by(self) -> str:
        """A text on the result of the audit."""
        return "" if self.audit is None else self.audit.audit

    @property
    def replayed(self) -> str:
        """The key of the run in :attr:`replay`, or ""."""
        return "" if self.replay is None else self.replay.key
