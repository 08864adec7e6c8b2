"""Launchers that run cells sequentially in this process (`inline`) or in parallel processes (`local`).

Launchers only decide where :func:`bench.launchers.worker.work_through` runs; the run directory holds the state.
submitit's LocalExecutor is not used: its controller survives a killed launcher and leaves workers behind, and it has no
cap on concurrency, no replacement of dead workers, and GPUs by number only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bench.core.errors import BenchError
from bench.core.fork_server import begin_process, fresh_processes, without_main
from bench.core.lazy_libraries import torch
from bench.core.options import Resources
from bench.core.printable import counted
from bench.core.progress import Progress
from bench.experiments.data_source import DataSource
from bench.launchers.manifest import Launch
from bench.launchers.schedule import Unit
from bench.launchers.worker import POLL_SECONDS, Outcome, settled, work_through
from bench.launchers.worker import main as run_launch
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.storage.interrupts import Stopped, stopping_signals
from bench.storage.scratch import VARIABLE

Done = Callable[[Record], None]


class Watch:
    """Tracks which units of a launch are settled; calls `done` with each new record."""

    def __init__(self, launch: Launch, units: Sequence[Unit], run_dir: RunDir, done: Done) -> None:
        self.left = {unit.key: unit for unit in units if unit.shard is None}
        self.outcome = Outcome()
        self._launch, self._run_dir, self._done = launch, run_dir, done

    def finish(self, unit: Unit, record: Record | None) -> bool:
        """Mark `unit` as settled by `record` or the one in the directory; return whether this is new."""
        if unit.key not in self.left:
            return False
        record = record or self._run_dir.read_record(unit.key)
        if record is None:  # damaged in the meantime: run the cell again
            return False
        del self.left[unit.key]
        self.outcome.records.append(record)
        self._done(record)
        return True

    def look(self) -> int:
        """Mark newly settled units and return their number."""
        recorded = self._run_dir.recorded()
        news = [unit for unit in self.left.values() if settled(unit, self._run_dir, recorded)]
        return sum(self.finish(unit, None) for unit in news)

    def close(self) -> Outcome:
        """Return the outcome of the launch."""
        self.outcome.left, self.outcome.cancelled = len(self.left), self._launch.cancelled
        return self.outcome


def run_inline(
    launch: Launch, units: Sequence[Unit], run_dir: RunDir, source: DataSource, progress: Progress,
    resources: Resources, *, done: Done,
) -> Outcome:  # fmt: skip
    """Run `units` in turn, call `done` with each record, and wait for cells that other runners have claimed.

    A signal may end the run between two writes. Raises :class:`BenchError` if a record cannot be written.
    """
    watch = Watch(launch, units, run_dir, done)
    try:
        with stopping_signals(), progress.stage("cells", len(watch.left)) as stage:

            def one(unit: Unit, record: Record | None) -> None:
                if watch.finish(unit, record):
                    stage.advance()

            work_through(launch, units, run_dir, source, progress, resources=resources, done=one)
    except Stopped as stop:
        watch.outcome.stopped = stop.number
    return watch.close()


def spawn(module: str, words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a Python `module` with arguments, its output appended to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            process_group=0,  # only the launcher gets Ctrl-C, and ends its processes in order
        )  # fmt: skip


PRELOADED = ("bench.launchers.worker", "bench.experiments.run", "bench.models.build", "bench.training.features",
             "timm", "torch._dynamo")  # fmt: skip
"""What nearly every worker imports; an optimiser's first step imports torch's compiler."""


class _Worker:
    def __init__(self, folder: Path, number: int, devices: Sequence[str], scratch: str) -> None:
        self.log = folder / f"worker-{number}.log"
        visible = {"CUDA_VISIBLE_DEVICES": devices[number % len(devices)]} if devices else {}
        visible |= {VARIABLE: os.path.expandvars(scratch)} if scratch else {}
        self._parts = folder.resolve(), self.log.resolve(), {**os.environ, **visible}
        self.start()

    def start(self) -> None:
        context = fresh_processes(PRELOADED)
        with without_main():
            self.process = context.Process(target=_work, args=self._parts)
            self.process.start()

    def poll(self) -> int | None:
        """Return the status of the ended process, or None."""
        status: int | None = self.process.exitcode
        return status

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1].removeprefix('error: ') if lines else 'none'} (log: {self.log})"


def _work(folder: Path, log: Path, environment: Mapping[str, str]) -> None:
    """Run the launch in `folder` in a new process, with its output appended to `log`."""
    os.setpgid(0, 0)  # only the launcher gets Ctrl-C, and ends its processes in order
    begin_process()
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
    sys.exit(run_launch([str(folder)]))


def run_local(
    launch: Launch, units: Sequence[Unit], run_dir: RunDir, progress: Progress, *, jobs: int,
    devices: Sequence[str] = (), done: Done, scratch: str = "",
) -> Outcome:  # fmt: skip
    """Run `units` in `jobs` local processes and call `done` with each record; replace dead workers.

    `devices` holds one value of CUDA_VISIBLE_DEVICES per worker; if empty, workers share all devices. `scratch`: see
    :mod:`bench.storage.scratch`. Raises :class:`BenchError` if workers keep dying without a record, or the launch
    cannot be read.
    """
    watch = Watch(launch, units, run_dir, done)
    crew: list[_Worker] = []
    deaths = 0
    try:
        with stopping_signals(), progress.stage("cells", len(watch.left)) as stage:
            for number in range(max(1, min(jobs, len(units)))):
                crew.append(_Worker(launch.folder, number, devices, scratch))
            while watch.left:
                launch.check_cancelled()
                news = watch.look()
                stage.advance(news)
                deaths = 0 if news else deaths
                progress.doing(doing(run_dir, launch.id))
                for worker in crew:
                    status = worker.poll()
                    if status is None:
                        continue
                    watch.look()
                    if not watch.left:
                        break
                    if status == 2:
                        raise BenchError(worker.last_words())
                    deaths += 1
                    # The claim counts a cell's deaths; this limit is for workers that never finish a cell.
                    if deaths > len(crew) * (launch.options.retries + 2):
                        ended = counted(deaths, "worker has", "workers have")
                        raise BenchError(
                            f"{ended} ended (status {status}) since a cell was last finished. Its last "
                            f"output: {worker.last_words()}"
                        )
                    if status != 0:
                        progress.say(f"a worker ended (status {status}); another replaces it (log: {worker.log})")
                    worker.start()
                if watch.left:
                    time.sleep(POLL_SECONDS)
    except Stopped as stop:
        watch.outcome.stopped = stop.number
    finally:
        end(crew)
    return watch.close()


def doing(run_dir: RunDir, launch_id: str = "", keys: Collection[str] = ()) -> list[tuple[str, int, int]]:
    """Return the running units of `keys`, in this launch or another process: (title and stage, steps done, total)."""
    rows = []
    for key, owner in run_dir.claims().items():
        about = owner.about
        if owner.held and (about.get("launch") == launch_id or key in keys):
            stage, title = str(about.get("stage", "")), str(about.get("title", ""))
            text = title if stage in ("", title) else f"{title}: {stage}"
            rows.append((text, int(about.get("done", 0)), int(about.get("total", 1))))
    return sorted(rows)


class _Process(Protocol):
    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def end(processes: Sequence[_Process]) -> None:
    """End processes by SIGTERM, so that they release their claims, and by SIGKILL after 20 seconds."""
    living = [process for process in processes if process.poll() is None]
    for process in living:
        process.terminate()
    deadline = time.monotonic() + 20
    while living := [process for process in living if process.poll() is None]:
        if time.monotonic() > deadline:
            for process in living:
                process.kill()
        time.sleep(0.05)


def visible_devices(each: int) -> list[str]:
    """Return CUDA_VISIBLE_DEVICES per worker of `each` GPUs. Raises :class:`BenchError` if the machine has fewer."""
    count = torch.cuda.device_count()
    if each > count:
        there = f"{counted(count, 'GPU')}. Ask for at most {count}" if count else "no GPU. Leave --gpus out"
        raise BenchError(
            f"--gpus {each}: this machine has {there}, or use --launcher slurm on a cluster that has more."
        )
    known = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name for name in known.split(",") if name] or [str(number) for number in range(count)]
    each = max(1, each)
    return [",".join(names[i : i + each]) for i in range(0, count - each + 1, each)]
