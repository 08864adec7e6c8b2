"""One process that runs cells of a launch, and the only place where a cell is begun.

Whoever runs cells, in whatever process, takes a cell's claim first, so several runners on one directory share the work
and no cell runs twice at once. What is done is read from the directory alone: a worker that dies loses the cell that it
was at, and the next one goes on with it.

``python -m bench.launchers.worker FOLDER`` is what ``--launcher local`` starts.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.core.errors import BenchError
from bench.core.progress import LineProgress, Progress, Stage
from bench.launchers.schedule import Unit
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic
from bench.storage.interrupts import Stopped, stopping_signals, unstopped
from bench.storage.locks import PATIENCE_SECONDS, Held, alive, look
from bench.training.processes import available_cores

if TYPE_CHECKING:
    from bench.experiments.data_source import DataSource
    from bench.launchers.manifest import Launch

ATTACK_SECONDS = 3600.0
"""How long a job waits for an attack or audit that has the directory for itself, before it gives up."""
POLL_SECONDS = 0.5
"""Time between two looks at cells that other processes run."""


@dataclass(slots=True)
class Outcome:
    """What a launcher did: the records that came of it, and the signal that stopped it, if one did."""

    records: list[Record] = field(default_factory=list)
    stopped: int | None = None
    left: int = 0
    """How many cells have no record yet."""
    cancelled: bool = False
    """Whether it was ended by ``bench cancel``."""


class Telling(Progress):
    """Shows what `inner` shows and writes the innermost stage into the claim that is held."""

    def __init__(self, inner: Progress, held: Held) -> None:
        self._inner, self._held = inner, held
        self._open: list[_Told] = []
        self._shown = -math.inf

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Stage]:
        """Open a stage; see :meth:`bench.core.progress.Progress.stage`."""
        with self._inner.stage(name, total) as inner:
            told = _Told(self, inner, name, total)
            self._open.append(told)
            self.tell()
            if time.monotonic() - self._shown > 1.0:  # people should not wait for the next sign of life to see it
                self._held.beat()
                self._shown = time.monotonic()
            try:
                yield told
            finally:
                self._open.remove(told)
                self.tell()

    def tell(self) -> None:
        """Say where the work is; it is written with the next sign of life."""
        if self._open:
            now = self._open[-1]
            self._held.tell(stage=now.name[:120], done=now.done, total=now.total)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._inner.say(text)


class _Told:
    def __init__(self, parent: Telling, inner: Stage, name: str, total: int) -> None:
        self._parent, self._inner, self.name, self.total, self.done = parent, inner, name, total, 0

    def advance(self, steps: int = 1) -> None:
        self.done += steps
        self._inner.advance(steps)
        self._parent.tell()


def settled(unit: Unit, run_dir: RunDir, recorded: Collection[str] | None = None) -> bool:
    """Return whether `unit` is finished: it has a record that its launch did not find.

    `recorded` are the keys of all records, where the caller has looked: one look at a folder serves for many units.
    """
    if unit.shard is not None or (recorded is not None and unit.key not in recorded):
        return False
    now = run_dir.signature(unit.key)
    return now is not None and now != unit.before


def _settled(launch: Launch, unit: Unit, run_dir: RunDir, recorded: Collection[str] | None = None) -> bool:
    return _mark(launch, unit).exists() if unit.shard is not None else settled(unit, run_dir, recorded)


def _mark(launch: Launch, unit: Unit) -> Path:
    # Of this launch alone: another one may train in other numbers, and what is there already is found at once.
    return launch.folder / f"{unit.key}.done"


def work_through(
    launch: Launch,
    units: Sequence[Unit],
    run_dir: RunDir,
    source: DataSource,
    progress: Progress,
    *,
    device: str,
    wait: bool = True,
    done: Callable[[Unit, Record | None], None] = lambda unit, record: None,
    going_on: Callable[[], bool] = lambda: True,
) -> None:
    """Run those of `units` that nobody has run or runs, each under its claim, and tell `done` of every one settled.

    With `wait` it stays until all are settled, so that a unit whose runner dies is run here, and a unit waits for what
    it comes after. Without, it leaves to others what others run; it stays only to see whether an owner on another
    machine is dead, as it is where Slurm has put back the job of a machine that broke down. `going_on` is asked between
    two units.

    Raises :class:`BenchError` where a record cannot be written.
    """
    left = {unit.key: unit for unit in units}
    said, patience = False, time.monotonic() + PATIENCE_SECONDS + 5
    while left and going_on():
        moved, recorded = False, run_dir.recorded()
        for unit in list(left.values()):
            if _settled(launch, unit, run_dir, recorded):
                del left[unit.key]
                done(unit, None)
                moved = True
                continue
            if wait and any(key in left for key in unit.after):
                continue
            with ExitStack() as claimed:
                with unstopped():  # or a signal could come between the claim and what gives it up
                    held = run_dir.claim(unit.key, **_told(launch, unit))
                    if held is not None:
                        claimed.enter_context(held)
                if held is None or _settled(launch, unit, run_dir):
                    continue
                record = _run(launch, unit, run_dir, source, progress, device, held)
            del left[unit.key]
            done(unit, record)
            moved = said = False
            break  # from the front again: what others wait for comes first
        else:
            if moved:
                continue
            if not wait and (time.monotonic() > patience or not _unsure(left, run_dir)):
                return
            if not said:
                progress.say(f"waiting for {len(left)} cells that other processes run")
                said = True
            time.sleep(POLL_SECONDS)


def _unsure(left: Iterable[str], run_dir: RunDir) -> bool:
    """Return whether a unit of `left` has an owner on another machine that holds no lock: only time tells if it lives.

    See :func:`bench.storage.locks.take`.
    """
    owners = (look(run_dir.claims_path / key) for key in left)
    return any(owner is not None and not owner.held and not owner.here for owner in owners)


def _told(launch: Launch, unit: Unit) -> dict[str, object]:
    told: dict[str, object] = {"title": unit.title[:200], "launch": launch.id}
    job = os.environ.get("SLURM_ARRAY_JOB_ID", os.environ.get("SLURM_JOB_ID"))
    if job and launch.kind == "slurm":
        task = os.environ.get("SLURM_ARRAY_TASK_ID")
        told["job"] = f"{job}_{task}" if task else job
    return told


def _run(
    launch: Launch, unit: Unit, run_dir: RunDir, source: DataSource, progress: Progress, device: str, held: Held
) -> Record | None:
    from bench.experiments.run import make_shard, record_failure, run_cell

    options = launch.options
    if held.attempt > options.retries + 1:
        error = BenchError(
            f"the process that ran it died {held.attempt - 1} times: killed, or out of memory. Its last words are in "
            f"the logs under {launch.folder.relative_to(run_dir.path)}; --retries N allows more."
        )
        if unit.shard is not None:  # the cell that needs it will meet the same end, and has a record to say so
            write_atomic(_mark(launch, unit), b"")
            return None
        return record_failure(unit.cell, run_dir, error)
    telling = Telling(progress, held)
    devices = _devices(device, options.gpus)
    workers = options.workers or int(os.environ.get("SLURM_CPUS_PER_TASK", available_cores()))
    if unit.shard is not None:
        with telling.stage(unit.title, 1):
            make_shard(
                unit.cell, unit.shard, run_dir, source, telling, device=device, workers=workers,
                devices=devices,
            )  # fmt: skip
        write_atomic(_mark(launch, unit), b"")
        return None
    with telling.stage(unit.title, 1):
        return run_cell(
            unit.cell, run_dir, source, telling, device=device, workers=workers, devices=devices,
        )  # fmt: skip


def _devices(device: str, gpus: int) -> tuple[str, ...]:
    """Return the GPUs of a cell that has more than one."""
    if gpus < 2 or device != "cuda":
        return ()
    import torch

    return tuple(f"cuda:{number}" for number in range(min(gpus, torch.cuda.device_count())))


def run_units(folder: Path, keys: Sequence[str] | None = None, *, wait: bool, once: bool = False) -> None:
    """Run the units named by `keys` (all where None) of the launch in `folder`, in a process of its own.

    For `wait` see :func:`work_through`, for `once` :func:`stopping_signals`.

    Raises :class:`Stopped` on SIGINT and SIGTERM, :class:`BenchError` where the launch cannot be read any more.
    """
    from bench.experiments.data_source import DataSource
    from bench.experiments.device import prepare_device
    from bench.launchers.manifest import load

    progress = LineProgress()
    run_dir = RunDir(folder.parent.parent)
    run_dir.check_layout()
    with stopping_signals(once), run_dir.joined(ATTACK_SECONDS):
        source = DataSource(progress)
        wanted = None if keys is None else set(keys)
        launch = load(folder, source.describe, lambda key: wanted is None or key in wanted)
        if all(_settled(launch, unit, run_dir) for unit in launch.units):
            return
        device = prepare_device(launch.options.device, launch.options.threads)

        def going_on() -> bool:
            # A launcher that was killed takes its workers with it: who started them would not know of them any more.
            if launch.cancelled:
                return False
            return launch.kind != "local" or not launch.here or alive(launch.pid, launch.start)

        work_through(launch, launch.units, run_dir, source, progress, device=device, wait=wait, going_on=going_on)


def main(arguments: Sequence[str]) -> int:
    """Run the launch whose folder is given; return the exit status."""
    die_with_parent()
    try:
        run_units(Path(arguments[0]), wait=True)
    except Stopped as stop:
        return 128 + stop.number
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def die_with_parent() -> None:
    """Ask Linux to end this process when the one that started it ends, however that happens."""
    import contextlib
    import ctypes

    if sys.platform.startswith("linux"):
        set_parent_death_signal = 1
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
