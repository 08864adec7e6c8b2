"""Records as a data frame with one typed row per record."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bench.core.types import Instrument
from bench.metrics.intervals import accuracy_interval
from bench.privacy.accounting.risk import NAMES as RISKS
from bench.results.attack_record import AuditRecord
from bench.results.audited import counted, with_audits
from bench.results.derived import replaced_epsilon, risk_of
from bench.results.record import VISIBLE, Privacy, Record, Utility
from bench.storage.cache import digest_of

if TYPE_CHECKING:
    import pandas


def results_frame(
    records: Iterable[Record], audits: Iterable[AuditRecord] = (), *, risks: bool = True
) -> pandas.DataFrame:
    """Return one row per record, ordered by seed and key, with `audited` from the `audits` of that record.

    The columns are those of :data:`bench.api.COLUMNS` except attacks, with `epsilon` renamed `target` and
    `wall_seconds` renamed `cost`, plus the board's own: `subset` (whether the config limits the private records),
    `config` (digest), `audits`, `cold` (seconds, if nothing came from the cache), `processor` and the student's
    `classes`. Failed cells have no numbers. Without `risks`, their columns are empty: computing them takes seconds for
    each different ledger.
    """
    import pandas

    audits = list(audits)
    of_student: dict[str, list[AuditRecord]] = defaultdict(list)
    for audit in audits:
        of_student[audit.student].append(audit)
    rows = [
        {**_values(record, risks), **_audited(record, of_student[record.key]), "audits": of_student[record.key]}
        for record in with_audits(records, audits)
    ]
    frame = pandas.DataFrame(rows).astype(dict.fromkeys(NUMBERS, float) if rows else {})
    return frame.sort_values(["seed", "key"], ignore_index=True) if rows else frame


NUMBERS = (
    "target", "claimed", "proven", "replace_one", "record_level", "impossible", "data_dependent", "audited",
    "audit_power", "accuracy", "accuracy_low", "accuracy_high", "official", "cost", "cold", "classes", *RISKS,
)  # fmt: skip


def _values(record: Record, risks: bool) -> dict[str, Any]:
    return {
        "key": record.key,
        "row": row_key(record),
        "dataset": record.dataset,
        "method": record.method,
        "plugin": record.cell.plugin_words,
        "target": record.epsilon,
        "basis": record.basis.value,
        "target_adjacency": record.cell.adjacency.value,
        "delta": record.delta,
        "preset": record.preset.value,
        "noise": record.noise.value,
        "precision": record.precision.value,
        "seed": record.seed,
        "backbone": _backbone(record.config),
        "subset": record.config.get("records") is not None,
        "config": digest_of(record.config)[:6],
        "status": record.status.value,
        "failure": "" if record.failure is None else record.failure.reason,
        **_privacy(record.privacy, risks),
        **_utility(record.utility),
        "cost": record.provenance.wall_seconds,
        "cold": None if record.provenance.artefacts_found else record.provenance.wall_seconds or None,
        "processor": f"{record.provenance.device}, {_threads(record.provenance.threads)}",
        "classes": None if record.student is None else record.student.options.get("num_classes"),
        "public_data": record.public_data,
        "public_kinds": tuple(record.public_kinds),
        "reduced": tuple(map(str, record.reduced)),
        "tuned": "" if record.cell.tuning is None else record.cell.tuning.words,
    }


def _backbone(config: dict[str, Any]) -> str:
    """Return the net with public weights on which students or teachers rest; empty without."""
    starts = config.get("teacher_init", "random") != "random"
    return str(config.get("backbone") or (config.get("teacher") if starts else "") or "")


def _threads(count: int | None) -> str:
    return "1 thread" if count == 1 else f"{count or '?'} threads"


def _privacy(privacy: Privacy | None, risks: bool) -> dict[str, Any]:
    if privacy is None:
        names = (
            "unit", "adjacency", "claimed", "proven", "proven_by", "replace_one", "record_level", "impossible",
            "data_dependent", *RISKS,
        )  # fmt: skip
        return {**dict.fromkeys(names), "bypasses": ()}
    return {
        "unit": privacy.unit.value,
        "adjacency": privacy.adjacency.value,
        "claimed": privacy.claimed.epsilon,
        "proven": privacy.proven.epsilon,
        "proven_by": privacy.proven.name,
        "replace_one": replaced_epsilon(privacy),
        "record_level": None if privacy.record_level is None else privacy.record_level.epsilon,
        "impossible": None if privacy.plausibility is None else privacy.plausibility.probability,
        "data_dependent": min((one.epsilon for one in privacy.accountants if one.data_dependent), default=None),
        "bypasses": tuple(privacy.bypasses),
        **(risk_of(privacy).as_dict() if risks else dict.fromkeys(RISKS)),
    }


def _audited(record: Record, audits: Sequence[AuditRecord]) -> dict[str, Any]:
    privacy = record.privacy
    if privacy is None or privacy.audited is None:
        return dict.fromkeys(("audited", "audit_power", "inconclusive"))
    audited = privacy.audited
    pairs = [pair for audit in counted(audits, privacy.unit) for pair in audit.pairs]
    transcript = any(pair.instrument is Instrument.TRANSCRIPT and pair.epsilon >= VISIBLE for pair in pairs)
    return {
        "audited": None if audited.silent else audited.epsilon,
        # Pooled audits may show more than any one of them could.
        "audit_power": math.inf if transcript else max(audited.at_most or 0.0, audited.epsilon),
        "inconclusive": audited.inconclusive,
    }


def _utility(utility: Utility | None) -> dict[str, Any]:
    if utility is None:
        return dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high", "test_records", "official"))
    tested = utility.test_records
    low, high = accuracy_interval([utility.accuracy], tested) if tested > 0 else (math.nan, math.nan)
    return {
        "accuracy": 100 * utility.accuracy,
        "accuracy_low": 100 * low,
        "accuracy_high": 100 * high,
        "test_records": tested,
        "official": None if utility.official_accuracy is None else 100 * utility.official_accuracy,
    }


def row_key(record: Record) -> str:
    """Return the key that all records of one board row share: what was requested, without the seed."""
    return digest_of(
        [
            record.dataset, record.dataset_revision, record.method, record.method_version, record.preset,
            record.epsilon, record.basis.value, record.delta, record.noise, record.precision, record.config,
            *([] if record.cell.plugin is None else [record.cell.plugin.source_sha256]),
            record.cell.adjacency.value,
            *([] if record.cell.tuning is None else [record.cell.tuning.model_dump(mode="json")]),
        ]
    )  # fmt: skip
