"""Estimates from earlier records, and the time that a whole plan takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.config import Grid, Preset
from bench.core.rows import Change
from bench.core.types import Facts
from bench.experiments.plan import Cell, Dataset, expand
from bench.launchers import runtime_estimate
from bench.launchers.runtime_estimate import EarlierRuns, RunningTime, duration, earlier_records, total
from bench.results.record import Record
from helpers.records import failed, provenance, record

FACTS = {
    "mnist": Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28)),
    "cifar10": Facts("cifar10", 40_000, 9_000, 1_000, 10, (3, 32, 32)),
}


def cell(dataset: str = "mnist", **changes: Any) -> Cell:
    grid = Grid(**{"methods": ("pate",), "datasets": (dataset,), "epsilons": (10.0,), **changes})
    (made,) = expand(grid, lambda name: Dataset(name, FACTS[name], "sha256:0"))
    return made


def ran(seconds: float, *, seed: int, made: int = 0, found: int = 0, device: str = "cpu", **changes: Any) -> Record:
    where = provenance(
        wall_seconds=seconds, device=device, artefacts={"teachers": (made, found)} if made or found else {}
    )
    reduced = list(cell(changes.get("dataset", "mnist")).reduced)
    return record(seed=seed, provenance=where, **{"reduced": reduced, **changes})


def test_nothing_is_said_without_a_near_record() -> None:
    assert EarlierRuns([]).estimate(cell(), True) is None
    others = [ran(5, seed=0, preset="paper"), ran(5, seed=1, method="dgd"), failed(seed=2)]
    assert EarlierRuns(others).estimate(cell(), True) is None


def test_cells_that_make_and_cells_that_find_are_kept_apart() -> None:
    runs = [ran(600, seed=0, made=25), *(ran(10.0 + seed, seed=seed, found=25) for seed in (1, 2, 3))]
    known = EarlierRuns(runs)
    assert known.estimate(cell(), True) == RunningTime(600, "1 earlier record")
    assert known.estimate(cell(), False) == RunningTime(12, "3 earlier records")
    one_sided = EarlierRuns(runs[1:])
    assert one_sided.estimate(cell(), True) == RunningTime(12, "3 earlier records, cache hits where this one misses")
    assert EarlierRuns(runs[:1]).estimate(cell(), False) == RunningTime(
        600, "1 earlier record, cache misses where this one hits"
    )


def test_records_that_shared_nothing_serve_both() -> None:
    known = EarlierRuns([ran(7, seed=0)])
    assert known.estimate(cell(), True) == known.estimate(cell(), False) == RunningTime(7, "1 earlier record")


def test_older_records_count_artefacts_of_all_kinds_together() -> None:
    older = ran(5, seed=0).model_copy(update={"provenance": provenance(wall_seconds=5, artefacts_made=3)})
    known = EarlierRuns([older])
    assert known.estimate(cell(), True) == RunningTime(5, "1 earlier record")
    assert known.estimate(cell(), False) == RunningTime(5, "1 earlier record, cache misses where this one hits")


def test_fallbacks_from_near_to_far() -> None:
    far = ran(40, seed=0, dataset="cifar10", private_records=40_000)
    strange = ran(90, seed=1, reduced=[Change.of("teachers", 250, 3)])
    assert EarlierRuns([far]).estimate(cell(), True) == RunningTime(
        60, "1 earlier record, other data set, scaled by records"
    )
    assert EarlierRuns([far, strange]).estimate(cell(), True) == RunningTime(90, "1 earlier record, other settings")
    near = ran(50, seed=2)
    assert EarlierRuns([far, strange, near]).estimate(cell(), True) == RunningTime(50, "1 earlier record")


def test_refused_cell_takes_no_time() -> None:
    refused = cell(overrides=("teachers=70000",))
    assert refused.refused
    found = EarlierRuns([]).estimate(refused, True)
    assert found is not None
    assert found.seconds == 0


def test_a_record_counts_once() -> None:
    known = EarlierRuns([ran(5, seed=0), ran(9, seed=0)])
    assert known.estimate(cell(), True) == RunningTime(9, "1 earlier record")


def test_records_of_the_directory_and_of_the_project_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert earlier_records(tmp_path / "none") == [] or runtime_estimate.COMMITTED.is_dir()
    own, run = tmp_path / "own", tmp_path / "run"
    monkeypatch.setattr(runtime_estimate, "COMMITTED", own)
    for folder, seed in ((own, 0), (run, 1), (run, 2)):
        folder.mkdir(exist_ok=True)
        (folder / f"{seed}.json").write_text(record(seed=seed).to_json())
    (run / "damaged.json").write_text("{")
    assert sorted(found.seed for found in earlier_records(run)) == [0, 1, 2]
    assert len(earlier_records(run, most=1)) <= 2
    assert [found.seed for found in earlier_records(own)] == [0]


def test_committed_records_give_an_estimate_for_the_board() -> None:
    if not runtime_estimate.COMMITTED.is_dir():
        pytest.skip("not run from the repository")
    found = EarlierRuns(earlier_records(runtime_estimate.COMMITTED)).estimate(cell(preset=Preset.QUICK), False)
    assert found is not None
    assert 1 < found.seconds < 10_000


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[float], list[list[int]]]:
    seconds = draw(st.lists(st.floats(0, 1000), min_size=1, max_size=20))
    needs = [draw(st.lists(st.integers(0, max(i - 1, 0)), max_size=3)) if i else [] for i in range(len(seconds))]
    return seconds, needs


@given(plans(), st.integers(1, 6))
def test_list_scheduling_lies_between_its_bounds(plan: tuple[list[float], list[list[int]]], slots: int) -> None:
    seconds, needs = plan
    found = total([RunningTime(value, "") for value in seconds], slots, needs)
    finish: list[float] = []
    for value, needed in zip(seconds, needs, strict=True):
        finish.append(value + max((finish[first] for first in needed), default=0.0))
    lower = max(max(finish), sum(seconds) / slots)
    assert lower * (1 - 1e-9) <= found <= sum(seconds) * (1 + 1e-9)
    # Graham 1969: no list schedule is longer than this.
    assert found <= (sum(seconds) / slots + (1 - 1 / slots) * max(finish)) * (1 + 1e-9) + 1e-9


@given(st.lists(st.floats(0, 1000), max_size=20))
def test_one_slot_takes_the_sum(seconds: list[float]) -> None:
    assert total([RunningTime(value, "") for value in seconds], 1) == pytest.approx(sum(seconds))


def test_schedule_by_hand() -> None:
    first, second, third = RunningTime(10, ""), RunningTime(2, ""), RunningTime(3, "")
    assert total([first, second, third], 2) == 10
    assert total([first, second, third], 2, [[], [0], [0]]) == 13
    assert total([first, None, third], 2, [[], [0], [1, 1]]) == 13
    assert total([], 3) == 0


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (0.3, "under 1 s"), (4.4, "about 4 s"), (42, "about 40 s"), (57.4, "about 55 s"), (59, "about 1 min"),
        (89, "about 1 min"), (150, "about 2 min"), (3569, "about 59 min"), (3599, "about 1 h"),
        (7800, "about 2 h 10 min"), (2 * 86400, "about 2 days"), (3 * 86400 + 7000, "about 3 days 2 h"),
    ],
)  # fmt: skip
def test_duration(seconds: float, says: str) -> None:
    assert duration(seconds) == says


@given(st.floats(0, 1e8))
def test_durations_are_near(seconds: float) -> None:
    said = duration(seconds).removeprefix("about ").removeprefix("under ").split()
    units = {"s": 1, "min": 60, "h": 3600, "days": 86400}
    value = sum(float(number) * units[unit] for number, unit in zip(said[::2], said[1::2], strict=True))
    assert value == pytest.approx(seconds, rel=0.34, abs=1)
