"""The records of one cell over its seeds, from which a row of the board is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from statistics import stdev

import numpy as np
from numpy.typing import NDArray

from bench.core.types import PrivacyUnit
from bench.privacy.accounting.risk import Risk
from bench.reports.order import Band
from bench.results.attack_record import AuditRecord
from bench.results.audited import counted
from bench.results.derived import backbone_of, claims_of_votes, replaced_epsilon, risks_of
from bench.results.record import Provenance, Record, Status
from bench.storage.cache import digest_of


class SeedGroup:
    """Done records that differ only in their seed, with their audits. Accuracies are in %, `cost` in seconds.

    Seeds share their mechanisms. If their epsilons differ nevertheless, the group states the largest.
    """

    def __init__(self, records: Sequence[Record], audits: Iterable[AuditRecord] = (), collapsed: int = 0) -> None:
        """`records`, by seed, each state an accuracy and epsilons; `collapsed` counts seeds whose images collapsed."""
        first = records[0]
        self.records, self.audits, self.collapsed = tuple(records), tuple(audits), collapsed
        self.keys = tuple(record.key for record in records)
        self.seeds = tuple(record.seed for record in records)
        self.dataset, self.method, self.preset = first.dataset, first.method, first.preset
        self.asked, self.basis, self.target_adjacency = first.epsilon, first.basis, first.cell.adjacency
        self.delta, self.noise, self.precision = first.delta, first.noise, first.precision
        self.plugin = first.cell.plugin_words
        self.tuned = "" if first.cell.tuning is None else first.cell.tuning.words
        self.backbone, self.subset = backbone_of(first), first.config.get("records") is not None
        """Net with public weights, if there is one; whether the config limits the private records."""
        self.public_data = first.public_data
        self.reduced = tuple(map(str, first.reduced))
        self.config = digest_of(first.config)[:6]
        """Short hash of the config, which separates rows that differ only in an option."""

        self._privacy = [record.privacy for record in records if record.privacy is not None]
        worst = max(self._privacy, key=lambda privacy: privacy.proven.epsilon)
        self.unit, self.adjacency = self._privacy[0].unit, self._privacy[0].adjacency
        self.bypasses = tuple(self._privacy[0].bypasses)
        self.claimed = max(privacy.claimed.epsilon for privacy in self._privacy)
        self.proven, self.proven_by = worst.proven.epsilon, worst.proven.name
        """Proven epsilon for the method's adjacency, and its accountant."""
        self.replace_one = max(map(replaced_epsilon, self._privacy))
        """Proven epsilon for replace neighbours."""
        levels = [privacy.record_level.epsilon for privacy in self._privacy if privacy.record_level is not None]
        self.record_level = max(levels, default=None)
        """Proven epsilon of a training record, if the unit is another."""
        self.impossible = [p.plausibility.probability for p in self._privacy if p.plausibility is not None]
        self.data_dependent = all(map(claims_of_votes, self._privacy))
        """Whether the claim of each run is about the votes of that run."""
        self.holds_for_votes = all(claims_of_votes(privacy, sound=True) for privacy in self._privacy)
        """Whether a sound figure for these votes covers it."""
        self.counted = counted(self.audits, self.unit) or counted(self.audits, PrivacyUnit.RECORD)
        """The audits that count: those of the unit, or else those of a training record."""
        done = (audit for audit in self.audits if audit.status is Status.DONE)
        self.violations = sorted({audit.verdict.partition(": ")[2] for audit in done if audit.violated})
        """How audits contradict what is proven, in words; also those that do not count."""

        utilities = [record.utility for record in records if record.utility is not None]
        classes = [record.student.options.get("num_classes") for record in records if record.student is not None]
        # A collapsed generator teaches its student nothing, so the seed counts at chance.
        chance = 100 / max(filter(None, classes), default=math.inf)
        self.accuracies = [*(100 * found.accuracy for found in utilities), *[chance] * collapsed]
        self.accuracy = math.fsum(self.accuracies) / len(self.accuracies)
        self.spread = stdev(self.accuracies) if len(self.accuracies) > 1 else None
        """Standard deviation over seeds; None with one seed."""
        self.test_records = utilities[0].test_records
        whole = _mean(100 * u.official_accuracy for u in utilities if u.official_accuracy is not None)
        seeds = len(records)
        self.official = None if whole is None else (whole * seeds + chance * collapsed) / (seeds + collapsed)
        """Accuracy on the whole official test set; None if a part of it is public, or if it was not measured."""

        cold = [record.provenance for record in records if not record.provenance.artefacts_found]
        self.cost = min((provenance.wall_seconds for provenance in cold if provenance.wall_seconds), default=None)
        """Least over cells that took nothing from the cache: other work on the machine only adds. None if all did."""
        self.cost_is = "≤ " if any("wall_seconds" in provenance.unread for provenance in cold) else ""
        """How :attr:`cost` relates to the time: on private data, times are rounded up to minutes."""
        processors = {_processor(record.provenance) for record in records}
        self.processor = processors.pop() if len(processors) == 1 else ""

    @cached_property
    def risk(self) -> Risk:
        """Bounds on an attacker by the proven curve, for neighbours by :attr:`adjacency`."""
        each = (risks_of(privacy)[0].as_dict().values() for privacy in self._privacy)
        return Risk.from_values(map(max, zip(*each, strict=True)))

    @cached_property
    def right(self) -> NDArray[np.float64] | None:
        """For each test record the share of seeds that are right: (n,), None if a seed's answers are unknown.

        First the records of :attr:`accuracy`, then the rest of the official test set where that was measured.
        """
        each = [record.utility.right for record in self.records if record.utility is not None]
        known = [np.frombuffer(right, np.uint8) for right in each if right is not None]
        if self.collapsed or len(known) < len(each) or len({len(right) for right in known}) != 1:
            return None
        shares: NDArray[np.float64] = np.stack(known).mean(axis=0)
        return shares

    @property
    def band(self) -> Band:
        """The budget that the row competes in."""
        return Band.of(self.replace_one, None if self.asked is None else self.claimed)

    @property
    def shares(self) -> list[float]:
        """The accuracies as shares, from 0 to 1."""
        return [accuracy / 100 for accuracy in self.accuracies]


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return math.fsum(found) / len(found) if found else None


def _processor(provenance: Provenance) -> str:
    threads = "1 thread" if provenance.threads == 1 else f"{provenance.threads or '?'} threads"
    return f"{provenance.device}, {threads}"
