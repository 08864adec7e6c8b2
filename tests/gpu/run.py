"""Tests that need a GPU, run by one command within a given time and without a network.

    python tests/gpu/run.py pate.zip papers.zip --into all-runs

Stages, in this order:

    apart       teachers of one program stay apart, and are those of the loop: `pytest -m gpu -n 0 tests/gpu`
    speed       teachers as one program against a plain loop over them: on a GPU at least 20 times as fast
    cells       one cell on each GPU; one each in float32, bfloat16 and TensorFloat-32, as accurate as float32
    bundles     the cells of all bundles, side by side in the time that is left
    paper-net   `speed` for the paper's net, whose arithmetic takes the time and not the start of kernels; no bound

Without a GPU, `apart`, `paper-net` and TensorFloat-32 are skipped, and speed and accuracy are only reported.

A stage that does not fit into the remaining time is skipped, and one that exceeds its budget is stopped; both are
reported. Finished work is merged into `--into` along the way and when the command itself is stopped. The same command
resumes from `--work`: it does not repeat stages that passed, and cells resume. `cells` takes
the data set and preset of the first bundle.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.core.config import Preset  # noqa: E402
from bench.core.errors import BenchError  # noqa: E402
from bench.core.progress import Progress  # noqa: E402
from bench.launchers.bundle import Bundle, unpack  # noqa: E402
from bench.results.merge import merge  # noqa: E402
from bench.results.record import Record  # noqa: E402
from bench.results.run_dir import RunDir  # noqa: E402
from bench.storage.interrupts import Stopped, stopping_signals  # noqa: E402

GRACE = 15.0  # seconds at the end in which processes stop and records are merged
BEAT = 15.0  # seconds between two merges
DEVICES = "devices"  # run directory of the cells that say which GPU they see; not merged


@dataclass(frozen=True)
class Stage:
    """Commands that run in parallel, with their minimum and maximum seconds on an H100.

    `check` returns what they show, and raises :class:`BenchError` where it is wrong; none: their last line tells.
    """

    name: str
    least: float
    most: float
    commands: Sequence[Sequence[str]]
    check: Callable[[], str] | None = None


class Plan:
    """Runs stages until `deadline`, on the monotonic clock, and merges the run directories below `work`."""

    def __init__(self, work: Path, into: Path, deadline: float) -> None:
        self.work, self.into, self.deadline = work, into, deadline
        self.failed = False
        self._told: set[str] = set()
        work.mkdir(parents=True, exist_ok=True)

    def run(self, stage: Stage) -> str:
        """Run `stage` as far as time allows; return a text on how it ended."""
        passed, log = self.work / f"{stage.name}.passed", self.work / f"{stage.name}.log"
        if passed.exists():
            return f"passed before: {passed.read_text()}"
        left = self.deadline - time.monotonic()
        if left < stage.least:
            return f"left out: it takes {stage.least:.0f} s or more, and {max(0.0, left):.0f} s are left."
        begin = time.monotonic()
        with log.open("ab") as file:
            running = [
                subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True)
                for words in stage.commands
            ]
            try:
                ended = self._wait(running, begin + min(stage.most, left))
            finally:
                end(running)
                self.merge()
        seconds = time.monotonic() - begin
        if not ended:
            return f"stopped after {seconds:.0f} s; the same command resumes it. Log: {log}"
        last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1]
        try:
            if any(process.returncode for process in running):
                raise BenchError(last)
            said = stage.check() if stage.check is not None else last
        except BenchError as error:
            self.failed = True
            return f"FAILED after {seconds:.0f} s: {error} Log: {log}"
        passed.write_text(said)
        return f"passed in {seconds:.0f} s: {said}"

    def _wait(self, running: Sequence[subprocess.Popen[bytes]], until: float) -> bool:
        """Wait until all of `running` have ended, and merge meanwhile; return whether they did in time."""
        beat = time.monotonic() + BEAT
        while any(process.poll() is None for process in running):
            if time.monotonic() > until:
                return False
            if time.monotonic() > beat:
                self.merge()
                beat = time.monotonic() + BEAT
            time.sleep(0.1)
        return True

    def merge(self) -> None:
        """Merge finished work; print each new record."""
        sources = [RunDir(path.parent) for path in sorted(self.work.glob("*/records"))]
        sources = [source for source in sources if source.path.name != DEVICES]
        if not sources:
            return
        found = merge(sources, RunDir(self.into))
        for line in found.left_out:
            if line not in self._told:
                say(f"not merged: {line}")
        for record in RunDir(self.into).read_records_of(found.added)[0]:
            say(f"merged: {line_of(record)}")
        self._told.update(found.left_out)


def say(text: str) -> None:
    print(text, flush=True)


def line_of(record: Record) -> str:
    """Return a text on the outcome of a cell."""
    took = f"{record.provenance.wall_seconds:.0f} s on {record.provenance.device}"
    if record.utility is None:
        return f"{record.key} failed after {took}: {record.failure.reason if record.failure else ''}"
    return f"{record.key}: {100 * record.utility.accuracy:.2f}% in {took}, {record.cell.precision}"


def end(running: Sequence[subprocess.Popen[bytes]], patience: float = GRACE - 5) -> None:
    """End processes by SIGTERM, so that they save their work, and those that remain by SIGKILL."""
    for process in running:
        if process.poll() is None:
            process.terminate()
    until = time.monotonic() + patience
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, until - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def stages(bundles: dict[Path, Bundle], work: Path, gpus: int) -> list[Stage]:
    """Return the stages for a machine with so many GPUs."""
    grid = next(iter(bundles.values())).grid
    tiny, device = grid.preset is Preset.TINY, "cuda" if gpus else "cpu"
    bench = [sys.executable, "-m", "bench", "run", "--device", device]
    ensembles = [
        sys.executable, str(ROOT / "tests" / "performance" / "ensembles.py"), "--data", "synthetic", "--device", device,
        "--variants", "plain loop", "one program", *(["one program, tf32", "one program, bf16"] if gpus else []),
    ]  # fmt: skip
    few = ["--teachers", "4", "--in-loop", "2", "--records", "40", "--steps", "3"]
    speed = [*ensembles, *(few if tiny else ["--teachers", "250", "--in-loop", "5"])]
    paper_net = [
        *ensembles, "--net", "pate_mnist", "--recipe", "published", "--batch", "128",
        *(few if tiny else ["--teachers", "100", "--in-loop", "5", "--steps", "100"]),
        *(["--variants", "plain loop", "one program, bf16", "one program, bf16, grouped"] if gpus else []),
    ]  # fmt: skip
    alike = ["-d", grid.datasets[0], "-e", "10"]
    one_each = [
        *bench, "-m", str(ROOT / "tests" / "gpu" / "visible.py"), *alike, "-p", "tiny", "-o", str(work / DEVICES),
        "-s", ",".join(str(seed) for seed in range(max(1, gpus))), "--launcher", "local",
        *(["--gpus", "1"] if gpus else ["--jobs", "1"]),
    ]  # fmt: skip
    precisions = ["float32", "bf16", *(["tf32"] if gpus else [])]
    each_precision = [
        [*bench, "-m", "pate", *alike, "-p", "tiny" if tiny else "quick", "--precision", name, "-o",
         str(work / "precision")]
        for name in precisions
    ]  # fmt: skip
    found = [
        [*bench, "--bundle", str(path), "-o", str(work / path.stem), "--launcher", "local", "--jobs",
         str(min(4, len(bundle.cells))), "--shards", "5"]
        for path, bundle in bundles.items()
    ]  # fmt: skip
    # Without pytest plug-ins, which such a machine may lack.
    apart = [
        sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "--noconftest", "--import-mode=importlib", "-m", "gpu",
        "tests/gpu",
    ]  # fmt: skip
    plan = [
        Stage("apart", 20, 90, [apart]),
        Stage("speed", 45, 150, [[*speed, "--at-least", "20"] if gpus else speed]),
        Stage("cells", 45, 120, [one_each, *each_precision], lambda: check_cells(work, gpus)),
        Stage("bundles", 45, math.inf, found, lambda: f"{sum(len(held.cells) for held in bundles.values())} cells."),
        Stage("paper-net", 45, 110, [paper_net]),
    ]
    return plan if gpus else [replace(stage, most=math.inf) for stage in plan[1:-1]]


def check_cells(work: Path, gpus: int) -> str:
    """Return what the cells of a precision and of each GPU show; raise :class:`BenchError` where it is wrong."""
    seen = sorted(note for record in RunDir(work / DEVICES).read_records().found for note in record.notes)
    if gpus and len({note for note in seen if note.endswith("alone")}) != gpus:
        raise BenchError(f"{gpus} cells were to see one GPU each; they saw: {', '.join(seen)}.")
    records = RunDir(work / "precision").read_records().found
    found = {str(record.cell.precision): record.utility for record in records}
    wrong, said = [], []
    for name, utility in found.items():
        if utility is None:
            raise BenchError(f"the cell in {name} failed.")
        said.append(f"{name} {100 * utility.accuracy:.2f}%")
        base = found["float32"]
        spread = math.sqrt(2 * utility.accuracy * (1 - utility.accuracy) / utility.test_records)
        if base is not None and gpus and base.accuracy - utility.accuracy > 4 * spread + 0.01:
            wrong.append(name)
    text = f"Accuracy in {', '.join(said)}. Cells saw {', '.join(seen)}."
    if wrong:
        raise BenchError(f"less accurate than float32: {', '.join(wrong)}. {text}")
    return text


def main() -> int:
    """Run the stages; return the exit status: 1 where one failed, 128 and the signal's number when stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path, help="files of `bench bundle`")
    parser.add_argument("--into", type=Path, required=True, help="run directory that gets the records")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "gpu", help="where runs and logs lie")
    parser.add_argument("--minutes", type=float, default=9.0, help="when everything is over; 9 if not given")
    parser.add_argument("--cpu", action="store_true", help="leave GPUs alone")
    given = parser.parse_args()
    begin = time.monotonic()
    if len({path.stem for path in given.bundles} | {DEVICES, "precision", "data"}) < len(given.bundles) + 3:
        raise BenchError(f"bundles need names of their own, and none of {DEVICES}, precision and data.")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["HF_HUB_OFFLINE"] = "1"
    plan = Plan(given.work.resolve(), given.into, begin + 60 * given.minutes - GRACE)
    bundles = {path.resolve(): unpack(path, plan.work / "data", Progress()) for path in given.bundles}
    import torch

    gpus = 0 if given.cpu else torch.cuda.device_count()
    name = torch.cuda.get_device_name(0) if gpus else "the CPU"
    say(f"{max(1, gpus)} x {name}, torch {torch.__version__}; {given.minutes:g} minutes")
    try:
        with stopping_signals(once=True):
            for stage in stages(bundles, plan.work, gpus):
                say(f"{stage.name}: {plan.run(stage)}")
    except Stopped as stop:
        say("stopped; the same command goes on.")
        return 128 + stop.number
    say(f"{time.monotonic() - begin:.0f} s in all; records are in {given.into}")
    return int(plan.failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"error: {error}")
