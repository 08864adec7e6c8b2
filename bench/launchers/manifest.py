"""Manifest of one `bench run`, `attack` or `audit`, read by its workers, its jobs and `bench status`.

    RUN_DIR/launches/ID/launch.json   units and their cells, or tasks; who launched them
    RUN_DIR/launches/ID/*.log         output of workers
    RUN_DIR/launches/ID/attempts/     each attempt and its output, see bench.launchers.attempts
    RUN_DIR/launches/ID/cancelled     written by `bench cancel`, for workers, and for launchers on other machines
    RUN_DIR/launches/ID/jobs/         submitit's own files, for Slurm

Only the owner may read the folder: a cell on a user's own data contains the path of that data.
"""

from __future__ import annotations

import functools
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from bench.core.config import as_dict
from bench.core.errors import BenchError, first_problem
from bench.core.options import Resources
from bench.core.plain_files import listed, read_plain
from bench.core.rows import Change, Row, json_object
from bench.experiments.noise_salt import RANDOM
from bench.experiments.plan import Dataset, Refusal, rebuild
from bench.interface.registry import METHODS
from bench.launchers.schedule import Signature, Unit
from bench.results.cell_spec import CellSpec
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic
from bench.storage.interrupts import Stopped
from bench.storage.locks import alive, process_start, this_machine

CANCELLED = "cancelled"
SIGNALLED = b"signalled"  # content of CANCELLED if the launcher gets SIGTERM as well
LARGEST = 1 << 28  # maximum bytes of launch.json, for some 100,000 cells
AGAIN = "Give the `run` command again."


class Options(Row):
    """Execution options of cells; no key depends on them."""

    resources: Resources = Resources(workers=1)
    retries: int = 3  # Restarts of a cell whose process died (killed, out of memory) before it counts as failed.
    gpus: int = 1  # per cell; a large teacher trains on all of them
    noise_salt: str = RANDOM


class PlannedCell(Row):
    """Stored form of a cell; see :func:`bench.experiments.plan.rebuild`."""

    key: str
    spec: CellSpec
    dataset: str
    config: dict[str, Any]
    reduced: tuple[Change, ...]
    refusal: Refusal
    refused: str


class Entry(Row):
    """Stored form of a :class:`bench.launchers.schedule.Unit`."""

    key: str
    title: str
    cell: PlannedCell
    after: tuple[str, ...]
    before: Signature | None
    shard: tuple[int, int] | None


class Task(Row):
    """A result that the launch's command named `command` writes to `file`; `before`: signature of an older result."""

    key: str
    title: str
    file: str
    before: Signature | None
    command: str = ""

    @property
    def kind(self) -> str:
        """The kind of result: an attack, an audit, a check, a tuning, or a picture of several students."""
        if not self.file.endswith(".json"):
            return "picture"
        return {"attacks": "attack", "audits": "audit", "checks": "check", "tuned": "tuning"}[Path(self.file).parts[0]]

    @classmethod
    def of(cls, run_dir: RunDir, key: str, title: str, file: str) -> Task:
        """Return the task of making `file`."""
        return cls(key=key, title=title, file=file, before=run_dir.file_signature(file))


class Launch(Row):
    """One `bench run`, `attack`, `audit`, `check` or `tune`; `kind` is the launcher's name.

    `plugins` are method files for workers to load.
    """

    version: Literal[7] = 7  # Increment with every layout change, new fields included; other versions are refused.
    id: str
    kind: str
    machine: str
    pid: int
    start: str | None
    created: str
    plugins: tuple[str, ...]
    options: Options
    entries: tuple[Entry, ...]
    tasks: tuple[Task, ...] = ()
    folder: Path = Field(exclude=True)

    @property
    def here(self) -> bool:
        """Whether the launcher was started on this machine since its boot."""
        return self.machine == this_machine()

    @property
    def launcher_lives(self) -> bool:
        """Whether the launcher is a live process of this machine."""
        return self.here and alive(self.pid, self.start)

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled, from any machine."""
        return (self.folder / CANCELLED).exists()

    def check_cancelled(self) -> None:
        """Raise :class:`Stopped` in a launcher that was cancelled from another machine.

        A launcher on the machine where `bench cancel` runs waits for its SIGTERM instead: if the file had already
        stopped it, the signal would kill it before its workers have closed.
        """
        with suppress(FileNotFoundError):
            if (self.folder / CANCELLED).read_bytes() != SIGNALLED:
                raise Stopped(signal.SIGTERM)

    @functools.cached_property
    def records(self) -> list[Entry]:
        """The units that write a record: all except shards."""
        return [entry for entry in self.entries if entry.shard is None]

    @property
    def results(self) -> list[Entry | Task]:
        """The units that write a record, and the tasks."""
        return [*self.records, *self.tasks]

    def units(self, describe: Callable[[str], Dataset], wanted: Callable[[str], bool] = lambda key: True) -> list[Unit]:
        """Return the units with `wanted` keys. Raises :class:`BenchError` if program or data have changed since."""
        for path in self.plugins:
            METHODS.get(path)
        units = []
        for entry in filter(lambda entry: wanted(entry.key), self.entries):
            known = entry.cell
            cell = rebuild(
                known.spec, describe(known.dataset), known.config, known.key, again=AGAIN, reduced=known.reduced,
                refusal=known.refusal, refused=known.refused,
            )  # fmt: skip
            units.append(Unit(entry.key, entry.title, cell, entry.after, entry.before, entry.shard))
        return units


def begin(
    run_dir: RunDir, kind: str, units: Sequence[Unit], options: Options, plugins: Sequence[str] = (),
    tasks: Sequence[Task] = (),
) -> Launch:  # fmt: skip
    """Write a new launch and return it."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    folder = run_dir.launches_path / name
    folder.mkdir(mode=0o700)
    launch = Launch(
        id=name, kind=kind, machine=this_machine(), pid=os.getpid(), start=process_start(os.getpid()),
        created=time.strftime("%Y-%m-%d %H:%M:%S"), plugins=tuple(str(Path(path).resolve()) for path in plugins),
        options=options, entries=tuple(_entry(unit) for unit in units), tasks=tuple(tasks), folder=folder,
    )  # fmt: skip
    write_atomic(folder / "launch.json", launch.model_dump_json().encode(), mode=0o600)
    return launch


def _entry(unit: Unit) -> Entry:
    cell = unit.cell
    planned = PlannedCell(
        key=cell.key, spec=cell.spec, dataset=cell.dataset, config=as_dict(cell.config), reduced=cell.reduced,
        refusal=cell.refusal, refused=cell.refused,
    )  # fmt: skip
    return Entry(key=unit.key, title=unit.title, cell=planned, after=unit.after, before=unit.before, shard=unit.shard)


def load(folder: Path) -> Launch:
    """Return the launch in `folder`. Raises :class:`BenchError` if it is damaged or of another version."""
    path = folder / "launch.json"
    try:
        return Launch.model_validate({**json_object(read_plain(path, LARGEST)), "folder": folder})
    except ValidationError as error:
        said = ": ".join(first_problem(error))
        raise BenchError(f"{path} comes from another version of this program ({said}). {AGAIN}") from error
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read ({error}). {AGAIN}") from error


def launches(run_dir: RunDir) -> Iterator[Launch]:
    """Yield the readable launches of `run_dir`, oldest first; raise :class:`BenchError` if they cannot be listed."""
    for folder in listed(run_dir.launches_path):
        with suppress(BenchError):
            yield load(folder)
