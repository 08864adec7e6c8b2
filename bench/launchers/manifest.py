"""What one `bench run` set out to do, as a file that its workers, jobs and `bench status` read.

    RUN_DIR/launches/ID/launch.json   units, their cells and who launched them
    RUN_DIR/launches/ID/*.log         what workers said
    RUN_DIR/launches/ID/cancelled     there once `bench cancel` was given, for launchers on other machines
    RUN_DIR/launches/ID/jobs/         submitit's own files, for Slurm

The folder is its owner's alone: a cell of one's own data holds the path of that data.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.core.config import as_dict, config_from
from bench.core.errors import BenchError
from bench.core.rows import Change
from bench.experiments.plan import Cell, Dataset, Refusal, keyed
from bench.interface.registry import METHODS
from bench.launchers.schedule import Unit
from bench.results.cell_spec import CellSpec
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic
from bench.storage.locks import alive, process_start, this_machine

VERSION = 2
"""Raised whenever the file is laid out in another way, a new field included: another version's launch is refused."""
CANCELLED = "cancelled"
_WHO = ("id", "kind", "machine", "pid", "start", "created")
"""Fields of the file that a launch and its outline take as they are."""
_HEAD = {*_WHO, "version", "plugins", "options", "shared", "units"}
_UNIT = [entry.name for entry in dataclasses.fields(Unit)]
_OWN = {"shared", "seed", "key"}
"""What a cell has to itself: the place of what it shares with others, its seed, and its key to compare."""
_SHARED = ("cell", "dataset", "config", "reduced", "refusal", "refused")
"""What cells have in common that differ by seed alone."""


@dataclass(frozen=True, slots=True)
class Options:
    """How cells are executed, wherever they are: none of it is in a key."""

    device: str = "auto"
    workers: int = 1
    """Processes for the teachers of a cell; 0: the cores of its job of Slurm."""
    threads: int = 1
    retries: int = 3
    """Deaths of its process (killed, out of memory) that a cell survives; after one more it counts as failed."""
    gpus: int = 1
    """GPUs of one cell; with more than one a large teacher is trained on all of them."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One `bench run`: `kind` is inline, local or slurm; `plugins` are files of methods that workers have to load."""

    id: str
    kind: str
    folder: Path
    units: Sequence[Unit]
    options: Options
    plugins: tuple[str, ...] = ()
    machine: str = ""
    pid: int = 0
    start: str | None = None
    created: str = ""

    @property
    def here(self) -> bool:
        """Whether its launcher was started on this machine, since it was booted."""
        return self.machine == this_machine()

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled it, from whatever machine."""
        return (self.folder / CANCELLED).exists()


@dataclass(frozen=True, slots=True)
class Outline:
    """A launch as `bench status` sees it: nothing of its cells but keys and titles."""

    id: str
    kind: str
    folder: Path
    machine: str
    pid: int
    start: str | None
    created: str
    titles: dict[str, str]
    before: dict[str, tuple[int, int] | None]
    shards: set[str] = field(default_factory=set)

    @property
    def launcher_lives(self) -> bool:
        """Whether its launcher is a living process of this machine."""
        return self.machine == this_machine() and alive(self.pid, self.start)


def begin(run_dir: RunDir, kind: str, units: Sequence[Unit], options: Options, plugins: Sequence[str] = ()) -> Launch:
    """Write down a new launch and return it."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    folder = run_dir.launches_path / name
    folder.mkdir(mode=0o700)
    launch = Launch(
        name, kind, folder, tuple(units), options, tuple(str(Path(path).resolve()) for path in plugins),
        this_machine(), os.getpid(), process_start(os.getpid()), time.strftime("%Y-%m-%d %H:%M:%S"),
    )  # fmt: skip
    write_atomic(folder / "launch.json", _text(launch), mode=0o600)
    return launch


def _text(launch: Launch) -> bytes:
    shared: list[dict[str, Any]] = []
    number_of: dict[str, int] = {}
    units = []
    for unit in launch.units:
        cell = unit.cell
        common = {
            "cell": cell.spec.model_dump(mode="json", exclude={"seed"}), "dataset": cell.dataset,
            "config": as_dict(cell.config), "reduced": [change.model_dump() for change in cell.reduced],
            "refusal": cell.refusal.value, "refused": cell.refused,
        }  # fmt: skip
        # Cells that differ by seed alone are many: what they have in common is written once.
        name = json.dumps(common, sort_keys=True)
        if name not in number_of:
            number_of[name] = len(shared)
            shared.append(common)
        own = {name: getattr(unit, name) for name in _UNIT if name != "cell"}
        units.append({**own, "cell": {"shared": number_of[name], "seed": cell.seed, "key": cell.key}})
    head = {name: getattr(launch, name) for name in _WHO}
    head |= {"version": VERSION, "plugins": launch.plugins, "options": dataclasses.asdict(launch.options)}
    return json.dumps({**head, "shared": shared, "units": units}).encode()


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "launch.json"
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        version = data["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path} cannot be read ({error}). Give the `run` command again.") from error
    if version != VERSION:
        raise BenchError(
            f"{path} is of version {version!r}; this program reads {VERSION}. Give the `run` command again."
        )
    _check(path, "the launch", data, _HEAD)
    _check(path, "options", data["options"], [entry.name for entry in dataclasses.fields(Options)])
    for cell in data["shared"]:
        _check(path, "a cell", cell, _SHARED)
    for unit in data["units"]:
        _check(path, "a unit", unit, _UNIT)
        _check(path, "the cell of a unit", unit["cell"], _OWN)
    return data


def _check(path: Path, what: str, found: Any, wanted: Iterable[str]) -> None:
    """Raise :class:`BenchError` unless `found` has the fields `wanted` and no other."""
    if not isinstance(found, dict):
        raise BenchError(f"{path}: {what} has no fields. Give the `run` command again.")
    missing, unknown = sorted(set(wanted) - found.keys()), sorted(found.keys() - set(wanted))
    if missing or unknown:
        parts = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has unknown {', '.join(unknown)}"] * bool(unknown)
        raise BenchError(f"{path}: {what} {' and '.join(parts)}. Give the `run` command again.")


def load(folder: Path, describe: Callable[[str], Dataset], wanted: Callable[[str], bool] = lambda key: True) -> Launch:
    """Return the launch in `folder` with those of its units whose keys are `wanted`.

    `describe` tells what is public about a data set; it is asked for those of the wanted units only.

    Raises :class:`BenchError` where the program or a data set has changed since the launch was written.
    """
    data = _read(folder)
    for path in data["plugins"]:
        METHODS.get(path)
    cells: dict[int, Cell] = {}
    units: list[Unit] = []
    for unit in data["units"]:
        if not wanted(unit["key"]):
            continue
        own = unit["cell"]
        if own["shared"] not in cells:
            cells[own["shared"]] = _cell(data["shared"][own["shared"]], describe)
        common = cells[own["shared"]]
        cell = keyed(dataclasses.replace(common, spec=common.spec.model_copy(update={"seed": own["seed"]})))
        if cell.key != own["key"]:
            raise BenchError(
                f"{own['key']} was planned by another version of this program. Give the `run` command again."
            )
        pairs = {name: _pair(unit[name]) for name in ("before", "shard")}
        units.append(Unit(**{**unit, **pairs, "cell": cell, "after": tuple(unit["after"])}))
    return Launch(
        folder=folder, units=tuple(units), options=Options(**data["options"]), plugins=tuple(data["plugins"]),
        **{name: data[name] for name in _WHO},
    )  # fmt: skip


def _pair(numbers: Sequence[int] | None) -> tuple[int, int] | None:
    return None if numbers is None else (numbers[0], numbers[1])


def _cell(common: dict[str, Any], describe: Callable[[str], Dataset]) -> Cell:
    dataset = describe(common["dataset"])
    spec = CellSpec.model_validate({**common["cell"], "seed": 0})
    if METHODS.get(spec.method).version != spec.method_version:
        raise BenchError(
            f"{spec.method} is of another version than when its cells were planned. Give the `run` command again."
        )
    if dataset.revision != spec.dataset_revision:
        raise BenchError(f"{common['dataset']} has changed since its cells were planned. Give the `run` command again.")
    return Cell(
        spec,
        dataset.name,
        dataset.facts,
        config_from(METHODS.get(spec.method), common["config"]),
        tuple(Change.model_validate(change) for change in common["reduced"]),
        Refusal(common["refusal"]),
        common["refused"],
    )


def outlines(run_dir: RunDir) -> Iterator[Outline]:
    """Yield the launches of `run_dir` that can be read, the oldest first."""
    for folder in sorted(run_dir.launches_path.glob("*")):
        try:
            data = _read(folder)
        except BenchError:
            continue
        yield Outline(
            folder=folder,
            titles={unit["key"]: unit["title"] for unit in data["units"]},
            before={unit["key"]: _pair(unit["before"]) for unit in data["units"]},
            shards={unit["key"] for unit in data["units"] if unit["shard"] is not None},
            **{name: data[name] for name in _WHO},
        )
