"""Worker process of a launch: of ``--launcher local``, or ``python -m bench.launchers.worker FOLDER [KEY...]``.

A worker claims a cell before it runs it, so workers share one directory and no cell runs twice at once. All state is in
the directory: if a worker dies, the next one resumes its cell.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from bench.core.errors import BenchError
from bench.core.lazy_libraries import torch
from bench.core.options import Resources
from bench.core.printable import counted
from bench.core.processes import die_with_parent
from bench.core.progress import LineProgress, Progress, Stage, echo
from bench.experiments.data_source import DataSource
from bench.launchers.attempts import Trial, attempt, job_here, output_into
from bench.launchers.manifest import Entry, Launch, Task, load
from bench.launchers.schedule import Unit
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic
from bench.storage.interrupts import Stopped, stopping_signals, unstopped
from bench.storage.locks import PATIENCE_SECONDS, Held, alive, look

TUNING_SECONDS = 3600.0  # how long a job waits for a tuning that holds the directory exclusively
POLL_SECONDS = 0.5
R = TypeVar("R")


@dataclass(slots=True)
class Outcome:
    """Result of a launch: records, the signal that stopped it (if any), and the number of cells without a record."""

    records: list[Record] = field(default_factory=list)
    stopped: int | None = None
    left: int = 0
    cancelled: bool = False


class ClaimProgress(Progress):
    """Forwards to `inner` and writes the innermost stage into the claim `held`."""

    def __init__(self, inner: Progress, held: Held) -> None:
        self._inner, self._held = inner, held
        self._open: list[dict[str, Any]] = []
        self._shown = -math.inf

    @contextlib.contextmanager
    def stage(self, name: str, total: int, seconds: float = math.inf) -> Iterator[Stage]:
        """Open a stage; see :meth:`bench.core.progress.Progress.stage`."""
        with self._inner.stage(name, total, seconds) as inner:
            here: dict[str, Any] = {"stage": name[:120], "done": 0, "total": total}
            self._open.append(here)
            self.update()
            if time.monotonic() - self._shown > 1.0:  # without it, `bench status` lags by a heartbeat
                self._held.beat()
                self._shown = time.monotonic()

            def advance(steps: int) -> None:
                here["done"] += steps
                inner.advance(steps)
                self.update()

            try:
                yield Stage(advance)
            finally:
                self._open.pop()
                self.update()

    def update(self) -> None:
        """Put the innermost stage into the claim, which the next beat writes."""
        if self._open:
            self._held.tell(**self._open[-1])

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._inner.say(text)


def settled(unit: Unit | Entry | Task, run_dir: RunDir, recorded: Collection[str] | None = None) -> bool:
    """Return whether `unit` has a result newer than its launch, False for shards; `recorded` may list all records."""
    if isinstance(unit, Task):
        return run_dir.file_signature(unit.file) not in (None, unit.before)
    if unit.shard is not None or (recorded is not None and unit.key not in recorded):
        return False
    now = run_dir.signature(unit.key)
    return now is not None and now != unit.before


def _finished(launch: Launch, unit: Unit, run_dir: RunDir, recorded: Collection[str] | None = None) -> bool:
    return settled(unit, run_dir, recorded) if unit.shard is None else _mark(launch, unit).exists()


def _mark(launch: Launch, unit: Unit) -> Path:
    # One mark per launch, because launches may differ in the number of shards; finished artefacts are cache hits.
    return launch.folder / f"{unit.key}.done"


def work_through(
    launch: Launch, units: Sequence[Unit], run_dir: RunDir, source: DataSource, progress: Progress, *,
    resources: Resources, wait: bool = True, done: Callable[[Unit, Record | None], None] = lambda unit, record: None,
    going_on: Callable[[], bool] = lambda: True,
) -> None:  # fmt: skip
    """Run each of `units` that is neither done nor running elsewhere, under its claim, and call `done` for each.

    With `wait`, return when all are settled: take over units of dead runners, and start a unit after those in `after`.
    Otherwise, leave units to the processes that run them, but wait until it is clear whether an owner on another
    machine is dead (Slurm requeues jobs of failed nodes). Stop between units once `going_on` returns False.
    Raises :class:`BenchError` if a record cannot be written.
    """
    left = {unit.key: unit for unit in units}
    said, patience = False, time.monotonic() + PATIENCE_SECONDS + 5
    while left and going_on():
        moved, recorded = False, run_dir.recorded()
        for unit in list(left.values()):
            if _finished(launch, unit, run_dir, recorded):
                del left[unit.key]
                done(unit, None)
                moved = True
                continue
            if wait and any(key in left for key in unit.after):
                continue
            with claiming(run_dir, unit.key, _about(launch, unit)) as held:
                if held is None or _finished(launch, unit, run_dir):
                    continue
                with _trying(launch, unit) as trial:
                    record = run_unit(launch, unit, run_dir, source, progress, resources, held)
                    trial.reason = record.status.value if record else "done"
            del left[unit.key]
            done(unit, record)
            moved = said = False
            break  # start over, because makers of shared artefacts come first
        else:
            if moved:
                continue
            if not wait and (time.monotonic() > patience or not any(_unsure(key, run_dir) for key in left)):
                return
            if not said:
                progress.say(f"waiting for {counted(len(left), 'cell')} that other processes run")
                said = True
            time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def claiming(run_dir: RunDir, key: str, about: Mapping[str, object], *, patience: float = 0.0) -> Iterator[Held | None]:
    """Hold the claim on `key`, described by `about`, or None while another process does.

    Wait up to `patience` seconds until it is clear whether an owner on another machine is dead.
    """
    deadline = time.monotonic() + patience
    with contextlib.ExitStack() as claimed:
        while True:
            with unstopped():  # a signal between claim and registration would leave the claim held
                held = run_dir.claim(key, **about)
                if held is not None:
                    claimed.enter_context(held)
            if held is not None or time.monotonic() >= deadline or not _unsure(key, run_dir):
                break
            time.sleep(POLL_SECONDS)
        yield held


def claimed_result(
    run_dir: RunDir, key: str, title: str, read: Callable[[str], R | None], keep: Callable[[R], bool],
    make: Callable[[Held], R],
) -> R | None:  # fmt: skip
    """Return the stored result of `key` if `keep` accepts it, otherwise that of `make`, which runs under a claim.

    None if another process is making it.
    """
    found = read(key)
    if found is not None and keep(found):
        return found
    with claiming(run_dir, key, {"title": title}, patience=PATIENCE_SECONDS + 5) as held:
        if held is None:
            return None
        found = read(key)  # another process may have made it in the meantime
        return found if found is not None and keep(found) else make(held)


def _unsure(key: str, run_dir: RunDir) -> bool:
    """Return whether an owner on another machine may be alive although its lock is not visible here."""
    owner = look(run_dir.claims_path / key)
    return owner is not None and not owner.held and not owner.here


def _about(launch: Launch, unit: Unit) -> dict[str, object]:
    about: dict[str, object] = {"title": unit.title[:200], "launch": launch.id}
    if launch.kind == "slurm" and (job := job_here()):
        about["job"] = job
    return about


@contextlib.contextmanager
def _trying(launch: Launch, unit: Unit) -> Iterator[Trial]:
    """Record an attempt at `unit`, with its output in a separate file unless it goes to the user's terminal."""
    if launch.kind == "inline":
        yield Trial(Path(os.devnull))
        return
    with attempt(launch.folder, unit.key) as trial, output_into(trial.log):
        yield trial


def run_unit(
    launch: Launch, unit: Unit, run_dir: RunDir, source: DataSource, progress: Progress, resources: Resources,
    held: Held,
) -> Record | None:  # fmt: skip
    """Run a cell and return its record, or make a shared artefact and return None."""
    from bench.experiments.run import make_shard, record_failure, run_cell

    lost = held.attempt > launch.options.retries + 1
    if lost and unit.shard is None:
        error = BenchError(
            f"the process that ran it died {counted(held.attempt - 1, 'time')}: killed, or out of memory. `bench logs "
            f"{unit.key}` shows its last output; --retries N allows more attempts."
        )
        return record_failure(unit.cell, run_dir, error)
    if not lost:  # a lost shard needs no record: the cell that needs it gets one
        inner = ClaimProgress(progress, held)
        gpus: tuple[str, ...] = ()
        if launch.options.gpus > 1 and resources.device == "cuda":
            gpus = tuple(f"cuda:{number}" for number in range(min(launch.options.gpus, torch.cuda.device_count())))
        resources = replace(resources, devices=gpus)
        with inner.stage(unit.title, 1):
            if unit.shard is None:
                return run_cell(unit.cell, run_dir, source, inner, resources, noise_salt=launch.options.noise_salt)
            make_shard(unit.cell, unit.shard, run_dir, source, inner, resources)
    write_atomic(_mark(launch, unit), b"")
    return None


def run_units(folder: Path, keys: Sequence[str] | None = None, *, wait: bool, once: bool = False) -> None:
    """Run the units in `keys` (None: all) of the launch in `folder`, with `wait` as in :func:`work_through`.

    `once`: see :func:`stopping_signals`. Raises Stopped on SIGINT or SIGTERM, BenchError if the launch is unreadable.
    """
    from bench.experiments.device import prepare_device

    progress = LineProgress()
    run_dir = RunDir(folder.parent.parent)
    run_dir.check_layout()
    with stopping_signals(once), run_dir.joined(TUNING_SECONDS):
        source = DataSource(progress)
        launch = load(folder)
        wanted = {entry.key for entry in launch.entries} if keys is None else set(keys)
        units = launch.units(source.describe, wanted.__contains__)
        if all(_finished(launch, unit, run_dir) for unit in units):
            return
        asked = launch.options.resources
        workers = asked.workers or int(os.environ.get("SLURM_CPUS_PER_TASK", 0))
        resources = prepare_device(replace(asked, workers=workers))

        def going_on() -> bool:
            # Workers end when their launcher is killed, because its successor would not know of them.
            if launch.cancelled:
                return False
            return launch.kind != "local" or not launch.here or alive(launch.pid, launch.start)

        work_through(launch, units, run_dir, source, progress, resources=resources, wait=wait, going_on=going_on)


def main(arguments: Sequence[str]) -> int:
    """Run the launch in the given folder, or its units of the given keys, and return the exit status."""
    folder, *keys = arguments
    die_with_parent()
    try:
        run_units(Path(folder), keys or None, wait=not keys)
    except Stopped as stop:
        return 128 + stop.number
    except BenchError as error:
        echo(f"error: {error}", err=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
