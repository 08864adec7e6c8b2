"""Records as a data frame with one typed row per record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from bench.core.lazy_libraries import pandas
from bench.core.types import Instrument
from bench.metrics.intervals import accuracy_interval
from bench.privacy.accounting.risk import NAMES as RISKS
from bench.results.attack_record import AuditRecord
from bench.results.audited import by_student, counted, informed_of, with_audits
from bench.results.candidates import NAMED, named
from bench.results.derived import backbone_of, data_dependent, replaced_epsilon, risks_of, row_key
from bench.results.record import VISIBLE, Privacy, Record, Utility


def results_frame(records: Iterable[Record], audits: Iterable[AuditRecord] = ()) -> pandas.DataFrame:
    """Return one row per record, ordered by seed and key, with `audited` from the `audits` of that record.

    The columns are those of :data:`bench.api.COLUMNS` except attacks and claims. Failed cells have no numbers.
    """
    audits = list(audits)
    of_student = by_student(audits)
    rows = [{**_values(record), **_audited(record, of_student[record.key])} for record in with_audits(records, audits)]
    frame = pandas.DataFrame(rows).astype(dict.fromkeys(NUMBERS, float) if rows else {})
    return frame.sort_values(["seed", "key"], ignore_index=True) if rows else frame


NUMBERS = (
    "epsilon", "claimed", "proven", "replace_one", "record_level", "impossible", "data_dependent", "audited",
    "audit_power", "accuracy", "accuracy_low", "accuracy_high", "official", "worst_class",
    "calibration_error", "wall_seconds", *RISKS, *NAMED.values(),
)  # fmt: skip
_ABSENT = dict.fromkeys((*NUMBERS, "unit", "adjacency", "proven_by", "test_records", "inconclusive"))
"""The values of a record without privacy, utility and audits."""


def _values(record: Record) -> dict[str, Any]:
    return {
        **_ABSENT,
        "bypasses": (),
        "key": record.key,
        "row": row_key(record),
        "dataset": record.dataset,
        "method": record.method,
        "plugin": record.cell.plugin_words,
        "epsilon": record.epsilon,
        "basis": record.basis.value,
        "target_adjacency": record.cell.adjacency.value,
        "delta": record.delta,
        "preset": record.preset.value,
        "noise": record.noise.value,
        "precision": record.precision.value,
        "seed": record.seed,
        "backbone": backbone_of(record),
        "status": record.status.value,
        "failure": "" if record.failure is None else record.failure.reason,
        **_privacy(record.privacy),
        **_utility(record.utility),
        "wall_seconds": record.provenance.wall_seconds,
        "public_data": record.public_data,
        "public_kinds": tuple(record.public_kinds),
        "reduced": tuple(map(str, record.reduced)),
        "tuned": "" if record.cell.tuning is None else record.cell.tuning.words,
    }


def _privacy(privacy: Privacy | None) -> dict[str, Any]:
    if privacy is None:
        return {}
    return {
        "unit": privacy.unit.value,
        "adjacency": privacy.adjacency.value,
        "claimed": privacy.claimed.epsilon,
        "proven": privacy.proven.epsilon,
        "proven_by": privacy.proven.name,
        "replace_one": replaced_epsilon(privacy),
        "record_level": None if privacy.record_level is None else privacy.record_level.epsilon,
        "impossible": None if privacy.plausibility is None else privacy.plausibility.probability,
        "data_dependent": data_dependent(privacy),
        "bypasses": tuple(privacy.bypasses),
        **risks_of(privacy)[0].as_dict(),
    }


def _audited(record: Record, audits: Sequence[AuditRecord]) -> dict[str, Any]:
    privacy = record.privacy
    if privacy is None:
        return {}
    informed, audited = informed_of(audits, privacy.unit), privacy.audited
    limits = named(informed.candidates if informed else ())
    if audited is None:
        return limits
    pairs = [pair for audit in counted(audits, privacy.unit) for pair in audit.pairs]
    transcript = any(pair.instrument is Instrument.TRANSCRIPT and pair.epsilon >= VISIBLE for pair in pairs)
    return {
        **limits,
        "audited": None if audited.silent else audited.epsilon,
        # Pooled audits may show more than any one of them could.
        "audit_power": math.inf if transcript else max(audited.at_most or 0.0, audited.epsilon),
        "inconclusive": audited.inconclusive,
    }


def _utility(utility: Utility | None) -> dict[str, Any]:
    if utility is None:
        return {}
    tested = utility.test_records
    low, high = accuracy_interval([utility.accuracy], tested) if tested > 0 else (math.nan, math.nan)
    return {
        "accuracy": 100 * utility.accuracy,
        "accuracy_low": 100 * low,
        "accuracy_high": 100 * high,
        "test_records": tested,
        "official": None if utility.official_accuracy is None else 100 * utility.official_accuracy,
        "worst_class": None if utility.answers is None else 100 * utility.answers.worst_class,
        "calibration_error": None if utility.answers is None else 100 * utility.answers.calibration_error,
    }
