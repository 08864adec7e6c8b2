"""Reproduction of records: planning a record's specification must give its key again, without data or training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bench.core.config import as_dict, config_from
from bench.core.errors import BenchError, UnknownNameError
from bench.core.types import Facts
from bench.data.datasets import get_dataset
from bench.data.spec import DatasetSpec, Loaded
from bench.data.splits import facts, split
from bench.experiments.calibration_cache import Calibrations
from bench.experiments.plan import Cell, Dataset, expand, keyed, other_program, private_facts
from bench.interface.registry import METHODS
from bench.results.cell_spec import CellSpec
from bench.results.command import command_for
from bench.results.record import Record

_ERRORS = (BenchError, ValueError, TypeError)  # raised by untrusted settings
# Relative; calibration is no more precise. Without AVX-512, for example, numpy's exponentials round differently, and a
# calibrated number differs by 1e-10.
_ROUNDING = 1e-7
# The fields that a key identifies; the others only serve to request a cell.
_NOT_MEANT = ("overrides", "method_file", "image_shape", "plugin")
_MEANT = tuple(name for name in CellSpec.model_fields if name not in _NOT_MEANT)


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The cell of a record; None, with the `reason`, if planning gives a different key."""

    cell: Cell | None
    reason: str = ""


def public_dataset(name: str) -> Dataset | None:
    """Return public facts from pinned counts, None without any. Raises :class:`BenchError` for an unknown name."""
    spec = get_dataset(name)
    known, found = _PINNED.get(name, (None, None))
    if known is not spec:
        found = _pinned(spec)
        _PINNED[name] = spec, found
    return found


_PINNED: dict[str, tuple[DatasetSpec, Dataset | None]] = {}
"""Results of :func:`public_dataset`: splitting takes a tenth of a second, and a board has thousands of records."""


def _pinned(spec: DatasetSpec) -> Dataset | None:
    if spec.train_records is None or spec.test_records is None or spec.revision is None:
        return None
    train, test = range(spec.train_records), range(spec.test_records)  # a split depends on the numbers alone
    loaded = Loaded(spec, train, test, spec.revision)  # type: ignore[arg-type]
    return Dataset(spec.name, facts(loaded, split(loaded)), spec.revision)


def dataset_of(record: Record) -> Dataset:
    """Return the public facts of the data set of `record`, from pinned counts or, without these, from the record.

    Raises :class:`BenchError` if it is unknown, of another revision or split, or if the facts need its files.
    """
    known = None if record.cell.own_folder else public_dataset(record.dataset)
    if known is None:
        return _told_by(record)
    if known.revision != record.dataset_revision:
        raise BenchError(
            f"it was made on revision {record.dataset_revision} of {record.dataset}; this machine has {known.revision}."
        )
    facts = known.facts
    if record.method in METHODS:
        method = METHODS.get(record.method)
        facts = private_facts(method, config_from(method, record.config), facts)
    counts = (facts.private_records, facts.public_records)
    if counts != (record.private_records, record.public_records):
        raise BenchError(
            f"{record.dataset} has {counts[0]} private and {counts[1]} public records here; the record says "
            f"{record.private_records} and {record.public_records}."
        )
    return known


def _told_by(record: Record) -> Dataset:
    options = {} if record.student is None else record.student.options
    size = options.get("img_size")
    if record.utility is None or size is None or not {"num_classes", "in_chans"} <= set(options):
        raise BenchError(f"only the files of {record.dataset} state its classes and the shape of its images.")
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    facts = Facts(
        record.dataset, record.private_records, record.public_records, record.utility.test_records,
        int(options["num_classes"]), (int(options["in_chans"]), height, width), record.public_benchmark,
    )  # fmt: skip
    return Dataset(record.dataset, facts, record.dataset_revision)


def missing_plugin(record: Record) -> str:
    """Return a text if the record's method needs a plug-in that is not installed here, otherwise ""."""
    if record.cell.plugin is None:
        return ""
    why = f"plug-in {record.cell.plugin_words} not installed here"
    if record.method not in METHODS:
        return f"{why}: name it by --methods PATH/{record.cell.method_file}" if record.cell.method_file else why
    return f"{why}, but another source of it" if other_program(record.cell, METHODS.get(record.method)) else ""


def check_method(record: Record) -> None:
    """Raise :class:`BenchError` if the record's method is unknown, or its version or plug-in source differs."""
    if record.method not in METHODS:  # not get(): a name that ends in .py would be executed
        raise UnknownNameError("method", record.method, METHODS.names())
    if why := other_program(record.cell, METHODS.get(record.method)):
        commit = record.provenance.git_commit
        then = f"commit {commit[:12]}" if commit and record.cell.plugin is None else "then"
        raise BenchError(f"{why}: only the program of {then} reproduces it.")


def planned_again(record: Record, calibrations: Calibrations | None = None) -> Reproduction:
    """Return the cell that planning gives for `record`. Unknown names are never looked up: records are untrusted."""
    try:
        check_method(record)
        dataset = dataset_of(record)
        (cell,) = expand(record.cell.grid(), lambda _: dataset, calibrations, tuning=record.cell.tuning)
        cell = _rounded_as(record, cell)
        if cell.key != record.key:
            older = " It is of schema 1 and does not say what --set gave." if record.cell.overrides is None else ""
            raise BenchError(f"its settings plan {cell.key}.{older}")
        wrong = [name for name in _MEANT if getattr(record.cell, name) != getattr(cell.spec, name)]
        if config_from(METHODS.get(record.method), record.config) != cell.config:
            wrong.append("config")
        if wrong:
            raise BenchError(f"its {', '.join(wrong)} differs from what its key says.")
    except _ERRORS as error:
        return Reproduction(None, str(error))
    return Reproduction(cell)


def _rounded_as(record: Record, cell: Cell) -> Cell:
    """Return `cell` with the record's numbers where they differ only by rounding, because the key depends on them."""
    near = {
        name: there
        for name, here in as_dict(cell.config).items()
        if isinstance(here, float)
        and isinstance(there := record.config.get(name), float)
        and math.isclose(here, there, rel_tol=_ROUNDING)
    }
    return keyed(replace(cell, config=replace(cell.config, **near)))


def command_of(record: Record) -> tuple[str | None, str]:
    """Return the command that reproduces `record`, and a remark on placeholders.

    Return None and the reason if an older record lacks its ``--set`` values and planning without them fails.
    """
    if record.cell.overrides is None:
        found = planned_again(record)
        if found.cell is None:
            return None, found.reason
    return command_for(record.cell, record.private_records, record.own_adjacency, record.noise_salt_option)
