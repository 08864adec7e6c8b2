"""Work on ten times as much takes about ten times as long: `pytest -m performance -n 0 tests/performance`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.core.config import Grid
from bench.core.types import Facts
from bench.data.splits import ranks
from bench.experiments.plan import Cell, Dataset, State, expand, states
from bench.metrics.roc import membership_metrics
from bench.results.record import Student
from bench.results.run_dir import RunDir
from helpers.records import record

pytestmark = pytest.mark.performance

FACTS = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of the fastest of three calls."""
    taken = []
    for _ in range(3):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def plan(seeds: int) -> list[Cell]:
    methods = ("pate", "pate-gnmax", "dgd", "dpsd", "dpsd-sound")
    grid = Grid(methods, epsilons=tuple(float(epsilon) for epsilon in range(1, 21)), seeds=tuple(range(seeds)))
    return expand(grid, lambda name: Dataset(name, FACTS, "sha256:0"))


def test_a_plan_of_ten_times_the_cells() -> None:
    plan(1)  # calibrations are cached, and their number does not grow with the seeds
    assert seconds(lambda: plan(100)) < 20 * seconds(lambda: plan(10))


def test_states_of_ten_times_the_cells(tmp_path: Path) -> None:
    taken = []
    for seeds in (10, 100):
        cells, run_dir = plan(seeds), RunDir(tmp_path / str(seeds)).create()
        student = Student(name="small_cnn", options={}, parameters=9, file="released/KEY.safetensors", sha256="0" * 64)
        text = record(key="KEY", student=student).to_json()
        for cell in cells:
            run_dir.record_path(cell.key).write_text(text.replace("KEY", cell.key))
            (run_dir.released_path / f"{cell.key}.safetensors").touch()
        taken.append(seconds(lambda cells=cells, run_dir=run_dir: states(cells, run_dir)))
        assert set(states(cells, run_dir).values()) == {State.DONE}
    assert taken[1] < 20 * taken[0]


def test_ranks_of_ten_times_the_records() -> None:
    assert seconds(lambda: ranks("imagenet", 1_300_000, "x")) < 20 * seconds(lambda: ranks("imagenet", 130_000, "x"))


def test_a_bootstrap_of_ten_times_the_scores() -> None:
    import numpy as np

    def bootstrap(count: int) -> float:
        truth = np.arange(count) % 2 == 0
        scores = np.random.default_rng(0).normal(truth.astype(float))
        return seconds(lambda: membership_metrics(scores, truth))

    assert bootstrap(20_000) < 25 * bootstrap(2_000)


def test_divergences_of_ten_times_the_votes() -> None:
    """The teachers agree on most votes, as the authors' teachers do."""
    import numpy as np

    from bench.privacy.accounting import pate

    generator = np.random.default_rng(0)
    votes = generator.multinomial(250, [0.91] + [0.01] * 9, 8_500).astype(float)
    orders = np.linspace(2, 52, 100)
    tenth = seconds(lambda: pate.gnmax_rdp(votes[:850], 40, orders))
    assert seconds(lambda: pate.gnmax_rdp(votes, 40, orders)) < 20 * tenth
