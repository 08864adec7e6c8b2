"""One audit for all rows that need the same experiment, and a plan of the audits that a board lacks.

A pair audit depends on a row only through its method, what is claimed and proven, the ledger's events and the pairs of
small data sets that follow from its settings. Rows for which all of these are equal share an audit, whatever their data
sets: another would repeat the experiment.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.core.errors import BenchError
from bench.core.grouping import grouped
from bench.core.types import AuditKind
from bench.evaluation.audit.pairs import WorstPair, worst_pairs
from bench.interface.registry import METHODS
from bench.publishing.reproduce import planned_again
from bench.results.attack_record import AuditRecord
from bench.results.derived import row_key
from bench.results.full_size import NO_FULL_SIZE, without_full_size
from bench.results.record import Record, Status

UNKNOWN_MINUTES = 10.0
"""Minutes for a method that has no audit yet: the default of `bench audit`."""
_NOTE = "the same audit as that of another row"


def pairs_of(record: Record) -> list[WorstPair]:
    """Return the pairs that an audit of `record` runs on.

    Raises :class:`BenchError` if it cannot be planned: a tuned row, another version of its method, a user's folder.
    """
    cell = planned_again(record).cell
    if cell is None or record.cell.tuning is not None or record.cell.own_folder:
        raise BenchError(f"no audit of {record.key} can be planned here.")
    return worst_pairs(METHODS.get(record.method), cell.config, cell.facts, cell.delta)


def _stated(record: Record) -> str:
    """Return the parts of a record that an audit depends on, as text: its method and privacy."""
    privacy = record.privacy
    if privacy is None:
        return f"nothing: {record.key}"
    level = privacy.record_level and privacy.record_level.epsilon
    plugin = record.cell.plugin and record.cell.plugin.source_sha256
    claims = (privacy.claimed.epsilon, privacy.proven.epsilon, level, privacy.bypasses, privacy.events)
    return repr((record.method, record.method_version, plugin, privacy.unit, privacy.adjacency, record.delta, claims))


def _content(pair: WorstPair) -> tuple[str, str, str, str]:
    """Return the name, settings, facts and data of a pair, without the name of the row's data set."""
    material = pair.material
    labelled = material.public.labelled
    arrays = [
        *(part for side in (pair.first, pair.second) for part in (side.images, side.labels)),
        material.private.images, material.private.labels, material.public.images, material.public_labels,
        material.test_images, material.test_labels,
    ]  # fmt: skip
    data = hashlib.sha256()
    for array in arrays:
        data.update(repr((array.dtype, array.shape)).encode())
        data.update(array.contiguous().numpy().tobytes())
    facts = dataclasses.replace(pair.facts, dataset="")
    return pair.name, repr(sorted(pair.config.items())), repr((facts, labelled is None)), data.hexdigest()


def shared(audit: AuditRecord, owner: Record, record: Record) -> AuditRecord | None:
    """Return the `audit` of `owner` as one of `record`, or None if that needs another experiment.

    Only a finished audit by pairs that found no fault is shared, without its pair at full size, which holds the owner's
    data. The pairs and settings that it names must be those of today's program.
    """
    tiny = without_full_size(audit)
    fine = audit.status is Status.DONE and not (audit.violated or audit.bypassed or audit.shared)
    if audit.kind is not AuditKind.PAIR or not (fine and tiny.pairs) or _stated(owner) != _stated(record):
        return None
    try:
        ours, theirs = pairs_of(record), pairs_of(owner)
    except BenchError:
        return None
    used = {bound.pair for bound in tiny.pairs}
    ran = {change for pair in theirs if pair.name in used for change in pair.reduced}
    if [*map(_content, ours)] != [*map(_content, theirs)] or not used <= {pair.name for pair in theirs}:
        return None
    if ran != set(audit.reduced):
        return None
    reduced = dict.fromkeys(change for pair in ours if pair.name in used for change in pair.reduced)
    return tiny.model_copy(
        update={
            "key": f"{record.key}--{audit.key.rsplit('--', 1)[-1]}", "student": record.key, "dataset": record.dataset,
            "shared": audit.key, "reduced": list(reduced), "notes": [f"{NO_FULL_SIZE}: {_NOTE}", *tiny.notes],
        }
    )  # fmt: skip


def sharing_problem(
    audit: AuditRecord, records: Mapping[str, Record], audits: Mapping[str, Mapping[str, AuditRecord]]
) -> str:
    """Return why `audit`, copied from another row, is not that row's, or "".

    `records` and `audits` are the board's, by key, and by student and key.
    """
    owner = audit.shared.rsplit("--", 1)[0]
    source = audits.get(owner, {}).get(audit.shared)
    if source is None or owner not in records:
        return f"the audit {audit.shared[:120]}, which it repeats, is not on the board. Publish that too."
    again = shared(source, records[owner], records[audit.student])
    if again is None:
        return f"the audit {audit.shared} is not one of this row, which needs its own. Audit it."
    if without_full_size(again) != without_full_size(audit):  # the row may have its own pair at full size
        return f"its figures are not those of {audit.shared}. Copy them again: bench audit --share."
    return ""


@dataclass(frozen=True, slots=True)
class Planned:
    """A row without an audit: its quickest student, and its audit if another row has it (None: run one).

    `reached` is the median share of proven epsilon that audits of the method reached; None if there are none.
    """

    record: Record
    audit: AuditRecord | None
    minutes: float
    reached: float | None

    @property
    def gain(self) -> float:
        """Expected share of proven epsilon per minute; infinite for a shared audit."""
        return math.inf if self.audit else (0.5 if self.reached is None else self.reached) / self.minutes


def planned_audits(records: Sequence[Record], audits: Sequence[AuditRecord]) -> Iterator[Planned]:
    """Yield the private rows among finished `records` without a finished audit of any seed, in no order.

    Tuned rows and rows without a finite claimed or proven epsilon are left out: an audit has nothing to refute.
    """
    bounds = (audit for audit in audits if audit.status is Status.DONE and audit.kind is not AuditKind.CANDIDATES)
    done = {audit.student for audit in bounds}
    fine = (r for r in records if r.status is Status.DONE and r.privacy is not None and METHODS.get(r.method).private)
    rows = grouped((row_key(record), record) for record in fine)
    by_key = {record.key: record for record in records}
    owned = [(audit, by_key[audit.student]) for audit in audits if audit.student in by_key]
    costs = {method: _cost(audits, method) for method in {record.method for record in records}}
    for seeds in rows.values():
        first = seeds[0]
        assert first.privacy is not None
        limits = (first.privacy.claimed.epsilon, first.privacy.proven.epsilon)
        if first.cell.tuning is not None or not math.isfinite(min(limits)) or any(r.key in done for r in seeds):
            continue
        record = min(seeds, key=lambda r: (r.provenance.wall_seconds, r.key))
        taken = (shared(audit, owner, record) for audit, owner in owned if owner.method == record.method)
        yield Planned(record, next(filter(None, taken), None), *costs[record.method])


def _cost(audits: Iterable[AuditRecord], method: str) -> tuple[float, float | None]:
    """Return the median minutes of the method's conclusive audits by pairs, and the median share that they reached."""
    known = [a for a in audits if a.method == method and a.kind is AuditKind.PAIR and not a.powerless and not a.shared]
    if not known:
        return UNKNOWN_MINUTES, None
    parts = [min(1.0, a.epsilon / a.limit) for a in known if a.epsilon is not None and 0 < a.limit < math.inf]
    return median(a.provenance.wall_seconds for a in known) / 60, median(parts) if parts else None
