"""Records as a data frame with one typed row per record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bench.results.attack_record import AuditRecord
from bench.results.record import Record
from bench.results.replaced import replaced_epsilon
from bench.storage.cache import digest_of

if TYPE_CHECKING:
    import pandas


def results_frame(records: Iterable[Record], audits: Iterable[AuditRecord] = ()) -> pandas.DataFrame:
    """Return one row per record with an accuracy and an epsilon, ordered by seed and key.

    Columns besides the cell's own fields: `row` (:func:`row_key`), `target` (epsilon, NaN without privacy), `backbone`,
    `replace_one` (proven epsilon for replace neighbours), `subset` (whether the config limits the private records),
    `config` (digest), `impossible` (bound on the probability of the accuracy under the claim), `data_dependent` (the
    smallest epsilon that depends on the votes, NaN without one), `accuracy` in %, `official` (the same on the whole
    official test set, where that is known), `cost` (running time in seconds), `reduced` and `audits`.
    """
    import pandas

    of_student: dict[str, list[AuditRecord]] = defaultdict(list)
    for audit in audits:
        of_student[audit.student].append(audit)
    rows = [{**_values(record), "audits": of_student[record.key]} for record in records]
    frame = pandas.DataFrame(rows).astype(dict.fromkeys(NUMBERS, float) if rows else {})
    return frame.sort_values(["seed", "key"], ignore_index=True) if rows else frame


NUMBERS = (
    "target", "claimed", "proven", "replace_one", "record_level", "impossible", "data_dependent", "accuracy",
    "official", "cost",
)  # fmt: skip


def _values(record: Record) -> Mapping[str, Any]:
    privacy, utility = record.privacy, record.utility
    assert privacy is not None
    assert utility is not None
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
        "backbone": str(record.config.get("backbone") or ""),
        "subset": record.config.get("records") is not None,
        "config": digest_of(record.config)[:6],
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
        "accuracy": 100 * utility.accuracy,
        "test_records": utility.test_records,
        "official": None if utility.official_accuracy is None else 100 * utility.official_accuracy,
        "cost": record.provenance.wall_seconds,
        "public_data": record.public_data,
        "public_kinds": tuple(record.public_kinds),
        "reduced": tuple(map(str, record.reduced)),
    }


def row_key(record: Record) -> str:
    """Return the common key of the records in one board row: the target without the seed."""
    return digest_of(
        [
            record.dataset, record.dataset_revision, record.method, record.method_version, record.preset,
            record.epsilon, record.basis.value, record.delta, record.noise, record.precision, record.config,
            *([] if record.cell.plugin is None else [record.cell.plugin.source_sha256]),
            record.cell.adjacency.value,
        ]
    )  # fmt: skip
