"""Print how long planning takes here: ``python tests/performance/planning.py``. Needs no data set but digits."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.core.config import Grid  # noqa: E402
from bench.core.types import Basis, Facts  # noqa: E402
from bench.experiments.plan import Cell, Dataset, expand, states  # noqa: E402
from bench.interface.registry import METHODS  # noqa: E402
from bench.results.record import Student  # noqa: E402
from bench.results.run_dir import RunDir  # noqa: E402
from helpers.records import record  # noqa: E402

QUICK = ("pate", "pate-gnmax", "dgd", "dpsd", "dpsd-sound")
EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0)


def _print(what: str, start: float) -> None:
    print(f"{time.perf_counter() - start:8.2f} s  {what}", flush=True)


def _describe(name: str) -> Dataset:
    return Dataset(name, Facts(name, 60_000, 9_000, 1_000, 10, (1, 28, 28), True), "sha256:0")


def _command(what: str, *arguments: str) -> None:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "bench", *arguments], check=True, capture_output=True, cwd=ROOT)
    _print(what, start)


def _fill(run_dir: RunDir, cells: list[Cell]) -> None:
    """Write a done record for each cell, a refused one too: then nothing is left to run."""
    for cell in cells:
        file = f"released/{cell.key}.safetensors"
        (run_dir.path / file).touch()
        student = Student(name="small_cnn", options={}, parameters=9, file=file, sha256="0" * 64)
        made = record(key=cell.key, method=cell.method, seed=cell.seed, epsilon=cell.epsilon, student=student)
        run_dir.record_path(cell.key).write_text(made.to_json())


def _with_everything_done(folder: Path, seeds: int, describe: Callable[[str], Dataset]) -> None:
    grid = Grid(QUICK, ("digits",), EPSILONS, tuple(range(seeds)))
    cells = expand(grid, describe)
    run_dir = RunDir(folder).create()
    _fill(run_dir, cells)
    start = time.perf_counter()
    states(cells, run_dir)
    _print(f"states of {len(cells)} done cells", start)
    start = time.perf_counter()
    run_dir.read_records()
    _print(f"{len(cells)} records read whole", start)
    options = ["-m", ",".join(QUICK), "-d", "digits", "-o", str(folder), "-q"]
    options += ["--eps", ",".join(map(str, EPSILONS)), "--seeds", ",".join(map(str, range(seeds)))]
    _command(f"run with {len(cells)} cells done", "run", *options)


def main() -> None:
    """Measure and print."""
    _command("--help", "--help")
    METHODS.names()
    grid = Grid(QUICK, ("mnist", "fmnist"), EPSILONS, tuple(range(100)))
    for again in ("first", "again"):
        start = time.perf_counter()
        cells = expand(grid, _describe)
        _print(f"plan of {len(cells)} cells, {again}", start)
    for method in ("pate", "trpate", "dp-sgd"):  # their calibration is what costs, not the number of seeds
        for basis in Basis:
            start = time.perf_counter()
            expand(Grid((method,), ("mnist",), (1.0, 10.0), tuple(range(10)), basis=basis), _describe)
            _print(f"plan of {method}, 2 epsilons, 10 seeds, basis {basis.value}", start)
    from bench.core.progress import open_progress
    from bench.experiments.data_source import DataSource

    with open_progress(quiet=True) as progress, tempfile.TemporaryDirectory() as folder:
        source = DataSource(progress)
        for seeds in (1, 200):
            _with_everything_done(Path(folder) / str(seeds), seeds, source.describe)


if __name__ == "__main__":
    main()
