"""A launcher on a Slurm node of the tests: started, watched, and its cells compared."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench.results.run_dir import RunDir
from helpers.launches import METHOD, finish, lines, nothing_is_left_over, outcome
from helpers.slurm_node import SlurmNode

TWENTY_FOUR = ["--eps", "1,2,3,4,5,6", "--seeds", "0,1,2,3"]


FOUR = ["--eps", "1,2", "--seeds", "0,1"]


# A job for each cell: packed, these would all be in a few.
SLURM = ["--launcher", "slurm", "--pack", "0"]


def start(
    out: Path, *options: str, methods: str = METHOD, environment: dict[str, str] | None = None, **lengths: float
) -> Process:
    """Begin a run, which ends with this process; `lengths` are those of grid_method.length."""
    out.parent.mkdir(exist_ok=True)
    command = [
        sys.executable, "-m", "bench.launchers.commands", "-m", "bench", "run", "--methods", methods, "--datasets",
        "digits", "--preset", "tiny", "--device", "cpu", "--noise-salt", "none", "--out", str(out), *options,
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env={
            **(os.environ if environment is None else environment), "GRID_LOG": str(out.parent / "log"),
            "OMP_NUM_THREADS": "1", **{f"GRID_{name.upper()}": str(value) for name, value in lengths.items()},
        },
    )  # fmt: skip


def log(out: Path) -> list[str]:
    path = out.parent / "log"
    return [line.rpartition(" ")[0] for line in path.read_text().splitlines()] if path.exists() else []


def running(out: Path) -> dict[str, str]:
    """Return the cells that run now, key to job."""
    return {
        key: str(owner.about.get("job", ""))
        for key, owner in RunDir(out).claims().items()
        if owner.held and "title" in owner.about
    }


def at_work(out: Path) -> set[str]:
    """Return the cells whose work has begun and not ended, as the log has it."""
    count: Counter[str] = Counter()
    for line in log(out):
        what, _, name = line.partition(" ")
        count[name] += {"start": 1, "end": -1}.get(what, 0)
    return {name for name, open_ in count.items() if open_ > 0}


def both_made(out: Path) -> bool:
    """Return whether two makers have written what they share: a kill amid it leaves half a file until the next run."""
    return sum(line.startswith("made") for line in log(out)) == 4


def ended_well(out: Path, inline: dict[str, str], cells: int = 4) -> None:
    found = outcome(out)
    assert len(found) == cells
    assert found == {name: inline[name] for name in found}
    assert not [line for line in log(out) if line.startswith("OVERLAP")]
    made = {name: count for name, count in lines(out).items() if name.startswith(("made", "end")) and count > 1}
    assert made == {}  # no artefact and no cell twice
    nothing_is_left_over(out)


def makers_came_first(out: Path) -> None:
    """Check that no cell of a seed began before the first had made what they share."""
    seen: Counter[str] = Counter()
    for line in log(out):
        words = line.split()
        if words[0] == "made":
            seen[words[1]] += 1
        elif words[0] == "start" and not words[1].startswith("10-"):
            assert seen[words[1].rpartition("-")[2]] == 2, line


class Sampler:
    """Counts the running jobs of a node again and again."""

    def __init__(self, node: SlurmNode) -> None:
        self.most, self._node, self._stop = 0, node, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.3):
            self.most = max(self.most, Counter(self._node.queue().values())["RUNNING"])

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


Process = subprocess.Popen[bytes]


@dataclass
class Background:
    """Runs that mostly wait, on a node of their own while the other tests run."""

    node: SlurmNode
    folder: Path
    processes: dict[str, Process]

    def begin(self, name: str, *options: str, **lengths: float) -> None:
        out = self.folder / name / "runs"
        self.processes[name] = start(out, *options, environment=self.node.environment, **lengths)

    def finish(self, name: str, status: int = 0) -> tuple[Path, str]:
        return self.folder / name / "runs", finish(self.processes.pop(name), status)
