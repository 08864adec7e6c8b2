"""How a record is made again: a command that plans to its key, found and checked by planning alone.

Nothing here reads a data set or trains. What is public about a data set comes from its pinned counts or, where only the
files tell them, from the record itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.calibrations import Calibrations
from bench.commands import PATH, command_for, grid_of, number_word
from bench.config import Grid, NoiseKind, PrecisionKind, Preset, build_config, config_from
from bench.errors import BenchError, UnknownNameError
from bench.interface import Facts
from bench.plan import Cell, Dataset, expand
from bench.record import Record
from bench.registry import METHODS

_ERRORS = (BenchError, ValueError, TypeError)
"""What untrusted settings raise: names nobody knows, numbers that are none."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The command that makes a record again; None with the `reason` where there is none."""

    command: str | None
    reason: str = ""
    cell: Cell | None = None
    """What the command plans."""


class _Counted:
    """Records of which only their number is known."""

    labels: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


def public_dataset(name: str) -> Dataset:
    """Return what is public about the data set `name`, from its pinned counts; no file of it is looked at.

    Raises :class:`BenchError` where nobody knows the name, or only its files tell the counts.
    """
    from bench.data.datasets import get_dataset
    from bench.data.spec import Loaded
    from bench.data.splits import facts, split

    spec = get_dataset(name)
    if spec.train_records is None or spec.test_records is None or spec.revision is None:
        raise BenchError(f"nothing is pinned of {name}: only its files tell how many records it has.")
    train, test = _Counted(spec.train_records), _Counted(spec.test_records)
    loaded = Loaded(spec, train, test, spec.revision)  # type: ignore[arg-type]
    return Dataset(name, facts(loaded, split(loaded)), spec.revision)


def dataset_of(record: Record) -> Dataset:
    """Return what is public about the data that `record` was made on.

    Raises :class:`BenchError` where the data set is unknown, of another revision or divided otherwise than here, or
    where its files are needed to tell.
    """
    if record.dataset.startswith("folder:"):
        return _told_by(record)
    from bench.data.datasets import get_dataset

    spec = get_dataset(record.dataset)
    if spec.train_records is None or spec.test_records is None or spec.revision is None:
        return _told_by(record)
    known = public_dataset(record.dataset)
    if known.revision != record.dataset_revision:
        raise BenchError(
            f"it was made on revision {record.dataset_revision} of {record.dataset}; here is {known.revision}."
        )
    counts = (known.facts.private_records, known.facts.public_records)
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
        raise BenchError(f"only the files of {record.dataset} tell its classes and the shape of its images.")
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    facts = Facts(
        record.dataset, record.private_records, record.public_records, record.utility.test_records,
        int(options["num_classes"]), (int(options["in_chans"]), height, width), record.public_benchmark,
    )  # fmt: skip
    return Dataset(record.dataset, facts, record.dataset_revision)


def check_method(record: Record) -> None:
    """Raise :class:`BenchError` where the record's method is unknown here, or of another version."""
    if record.method not in METHODS:  # not get(): a name that ends in .py would be executed
        raise UnknownNameError("method", record.method, METHODS.names())
    here = METHODS.get(record.method).version
    if here != record.method_version:
        commit = record.provenance.git_commit
        raise BenchError(
            f"version {record.method_version} of {record.method} made it, here is version {here}: only the program of "
            f"{'commit ' + commit[:12] if commit else 'then'} makes it again."
        )


def command_of(record: Record, calibrations: Calibrations | None = None) -> Reproduction:
    """Return the command that plans to exactly this record's key, with the fewest ``--set`` that are found.

    `calibrations` keeps what several records share. The command in the record is taken where it is right.
    """
    calibrations = calibrations or Calibrations()
    given = record.provenance.command
    try:
        if given is not None:
            return Reproduction(given, cell=_asked_by(given, record, calibrations))
    except _ERRORS:
        pass  # another one is looked for
    try:
        check_method(record)
        dataset = dataset_of(record)
        cell = _found(record, dataset, calibrations)
        if cell is None:
            raise BenchError("no preset with any --set and a calibration gives its settings.")
        command, _ = command_for(cell)
        return Reproduction(command, cell=_asked_by(command, record, calibrations))
    except _ERRORS as error:
        return Reproduction(None, str(error))


def verify(command: str, record: Record, calibrations: Calibrations | None = None) -> str:
    """Return why `command` does not plan to `record` alone, as one line; empty where it does.

    Names in `command` are compared with the record's and never looked up: it may come from anybody.
    """
    try:
        _asked_by(command, record, calibrations)
    except _ERRORS as error:
        return str(error)
    return ""


def _asked_by(command: str, record: Record, calibrations: Calibrations | None) -> Cell:
    """Return the cell that `command` plans; raise one of `_ERRORS` where it is not the record's, or not alone."""
    grid = grid_of(command)
    check_method(record)
    module = METHODS.get(record.method).__module__
    if grid.methods not in ((record.method,), (f"{PATH}/{module.removeprefix('bench_plugin_')}.py",)):
        raise BenchError(f"its method is not {record.method}.")
    asked = [name.partition("@")[0] if record.dataset.startswith("folder:") else name for name in grid.datasets]
    own = f"folder:{PATH}" if record.dataset.startswith("folder:") else record.dataset
    if asked != [own]:
        raise BenchError(f"its data set is not {own}.")
    dataset = dataset_of(record)
    grid = dataclasses.replace(grid, methods=(record.method,), datasets=(record.dataset,))
    cells = expand(grid, lambda _: dataset, calibrations)
    if len(cells) != 1:
        raise BenchError(f"it plans {len(cells)} cells.")
    if record.key != cells[0].key:
        raise BenchError(f"it plans {cells[0].key}.")
    told, planned = _settings(record), _settings(cells[0])
    wrong = [name for name in told if told[name] != planned[name]]
    if config_from(METHODS.get(record.method), record.config) != cells[0].config:
        wrong.append("config")
    if wrong:
        raise BenchError(f"its {', '.join(wrong)} is another than its key says.")
    return cells[0]


def _settings(of: Record | Cell) -> dict[str, object]:
    """Return what a record repeats of the cell that it came from, and its key stands for."""
    names = ("seed", "epsilon", "delta", "basis", "preset", "noise", "precision")
    return {name: str(getattr(of, name)) for name in names}


def _found(record: Record, dataset: Dataset, calibrations: Calibrations) -> Cell | None:
    """Return the cell with the record's key that needs the fewest fields to be set; None where none is found."""
    method = METHODS.get(record.method)
    preset = Preset(record.preset)
    target = config_from(method, record.config)
    names = [field.name for field in dataclasses.fields(target)]
    # A field may have been set to one value and calibrated to another: the list of differences has the first.
    told = {change.field: _text(change.value) for change in record.reduced}
    texts = {name: told.get(name, _text(getattr(target, name))) for name in names}

    def plan(chosen: Iterable[str]) -> Cell | None:
        chosen = sorted(chosen, key=names.index)
        grid = Grid(
            (record.method,), (record.dataset,), (1.0 if record.epsilon is None else record.epsilon,), (record.seed,),
            preset, record.basis, record.delta, NoiseKind(record.noise), PrecisionKind(record.precision),
            tuple(f"{name}={texts[name]}" for name in chosen if texts[name] is not None),
        )  # fmt: skip
        try:
            return expand(grid, lambda _: dataset, calibrations)[0]
        except BenchError:
            return None

    def right(cell: Cell | None) -> bool:
        return cell is not None and record.key == cell.key

    def exact(cell: Cell | None) -> bool:
        return cell is not None and right(cell) and list(cell.reduced) == record.reduced

    def fewest(chosen: set[str], cell: Cell | None, fits: Callable[[Cell | None], bool]) -> Cell | None:
        for name in sorted(chosen, key=names.index):
            fewer = plan(chosen - {name})
            if fits(fewer):
                chosen, cell = chosen - {name}, fewer
        return cell

    def differing(config: Any) -> set[str]:
        return {name for name in names if getattr(config, name) != getattr(target, name)}

    before = build_config(method, preset, dataset.facts)[0]
    cell = plan(())
    if cell is None or exact(cell):
        return cell
    said = {change.field for change in {*cell.reduced} ^ {*record.reduced}} & set(names)
    if exact(listed := plan(said)):
        return fewest(said, listed, exact)
    if right(cell):
        return cell
    calibrated = {name for name in names if getattr(cell.config, name) != getattr(before, name)}
    wrong = differing(cell.config)
    chosen = (wrong - calibrated) or wrong
    cell = plan(chosen)
    for _ in names:
        if right(cell):
            break
        # What calibration gives may follow from a field that is still to be set, so one look is not enough.
        more = (wrong if cell is None else differing(cell.config)) - chosen
        if not more:
            return None
        chosen |= more
        cell = plan(chosen)
    return fewest(chosen, cell, right) if right(cell) else None


def _text(value: Any) -> str | None:
    """Return `value` as ``--set`` takes it; None where no text says it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return number_word(value)
    return str(value) if isinstance(value, (str, int)) else None
