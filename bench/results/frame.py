"""Records as a data frame: one typed row per record, from which tables over many records are grouped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bench.results.attack_record import AuditRecord
from bench.results.record import Record
from bench.storage.cache import digest_of

if TYPE_CHECKING:
    import pandas


def results_frame(records: Iterable[Record], audits: Iterable[AuditRecord] = ()) -> pandas.DataFrame:
    """Return one row for each record with an accuracy and an epsilon, in order of seed and key.

    Columns: `key`, `row` (what the seeds of one row of the board share, see :func:`row_key`), the fields of the cell
    (`dataset`, `method`, `target` epsilon, NaN without privacy, `basis`, `delta`, `preset`, `noise`, `precision`,
    `seed`), `backbone` and `subset` (records of the private split that were used, "" for all), `config` (its digest),
    `unit`, `adjacency`, `claimed`, `proven`, `proven_by`, `record_level` and `impossible` (a bound on the probability
    of the accuracy under the claim), NaN where there is none, `bypasses`, `accuracy` in %, `cost` in seconds,
    `public_data`, `public_kinds`, `reduced` (settings that differ from the paper's, as text) and `audits`, the audit
    records of this student.
    """
    import pandas

    of_student: dict[str, list[AuditRecord]] = defaultdict(list)
    for audit in audits:
        of_student[audit.student].append(audit)
    rows = [{**_values(record), "audits": of_student[record.key]} for record in records]
    frame = pandas.DataFrame(rows).astype(dict.fromkeys(NUMBERS, float) if rows else {})
    return frame.sort_values(["seed", "key"], ignore_index=True) if rows else frame


NUMBERS = ("target", "claimed", "proven", "record_level", "impossible", "accuracy", "cost")


def _values(record: Record) -> Mapping[str, Any]:
    privacy, utility = record.privacy, record.utility
    assert privacy is not None
    assert utility is not None
    return {
        "key": record.key,
        "row": row_key(record),
        "dataset": record.dataset,
        "method": record.method,
        "target": record.epsilon,
        "basis": record.basis.value,
        "delta": record.delta,
        "preset": record.preset.value,
        "noise": record.noise.value,
        "precision": record.precision.value,
        "seed": record.seed,
        "backbone": str(record.config.get("backbone") or ""),
        "subset": record.config.get("records") is not None,
        "config": digest_of(record.config)[:6],
        "unit": privacy.unit.value,
        "adjacency": privacy.adjacency.value,
        "claimed": privacy.claimed.epsilon,
        "proven": privacy.proven.epsilon,
        "proven_by": privacy.proven.name,
        "record_level": None if privacy.record_level is None else privacy.record_level.epsilon,
        "impossible": None if privacy.plausibility is None else privacy.plausibility.probability,
        "bypasses": tuple(privacy.bypasses),
        "accuracy": 100 * utility.accuracy,
        "cost": record.provenance.wall_seconds,
        "public_data": record.public_data,
        "public_kinds": tuple(record.public_kinds),
        "reduced": tuple(map(str, record.reduced)),
    }


def row_key(record: Record) -> str:
    """Return what the records of one row of the board have in common: the whole target but the seed."""
    return digest_of(
        [
            record.dataset, record.dataset_revision, record.method, record.method_version, record.preset,
            record.epsilon, record.basis.value, record.delta, record.noise, record.precision, record.config,
        ]
    )  # fmt: skip
