"""The joint cost of several released students of the same private records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bench.core.errors import BenchError, UnknownNameError
from bench.core.printable import counted
from bench.privacy.accounting.accountants import common_unit
from bench.privacy.accounting.described import Described
from bench.privacy.events.base_event import restored
from bench.results.derived import row_key
from bench.results.record import Record


def released_together(records: Mapping[str, Record], names: Iterable[str]) -> list[Record]:
    """Return the records that `names` select, each once: ``mnist-pate-eps1`` stands for every ``mnist-pate-eps1-...``.

    Raise :class:`BenchError` if a name matches no record or several rows of the board, or if the records' private data
    or deltas differ.
    """
    done = {key: record for key, record in records.items() if record.privacy is not None}
    found: dict[str, Record] = {}
    for name in names:
        whole = [key for key in sorted(done) if f"{key}-".startswith(f"{name}-")]
        fitting = whole or [key for key in done if key.startswith(name)]
        if not fitting or (not whole and len(fitting) > 1):
            raise UnknownNameError("record", name, done)
        if len({row_key(done[key]) for key in fitting}) > 1:
            keys = "\n".join(f"  {key}" for key in fitting)
            raise BenchError(f"records with different settings begin with {name!r}. Name those you mean:\n{keys}")
        found |= {key: done[key] for key in fitting}
    if not found:
        raise BenchError("no record is named. Name those that were released together.")
    for what, values in (
        ("data sets", {record.dataset for record in found.values()}),
        ("revisions of a data set", {record.dataset_revision for record in found.values()}),
        ("deltas", {f"{record.delta:g}" for record in found.values()}),
    ):
        if len(values) > 1:
            raise BenchError(f"the records have different {what}: {', '.join(sorted(values))}. Compose one at a time.")
    return list(found.values())


def composition(records: Sequence[Record]) -> Described:
    """Return the joint charges of the ledgers of `records`, from :func:`released_together`, for replace neighbours.

    Each event protects what its record states: a ledger of labels may hold events that are stated for records.
    """
    costs = [record.privacy for record in records if record.privacy is not None]
    charged = [(event.replaced(), privacy.unit) for privacy in costs for event in restored(privacy.events)]
    events = [event if event.unit is unit else replace(event, unit=unit) for event, unit in charged]
    unit = common_unit(events)[0] if events else costs[0].unit
    return Described(
        events, f"{counted(len(records), 'student')} of {records[0].dataset} together, for one replaced {unit}"
    )
