"""Launches as files, and cells in the jobs of other launches."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from bench.core.errors import BenchError, UnknownNameError
from bench.core.options import Resources
from bench.core.progress import Progress
from bench.experiments.plan import Dataset
from bench.launchers import slurm, slurm_run, worker
from bench.launchers.manifest import Launch, Options, begin, launches, load
from bench.launchers.schedule import Unit, units_of
from bench.launchers.settings import Cluster
from bench.launchers.slurm_cli import Limits
from bench.launchers.slurm_run import in_hand, other_launches
from bench.launchers.worker import work_through
from bench.results.run_dir import RunDir
from bench.storage import locks
from helpers.cells import FACTS, METHOD, cells, describe
from helpers.records import record


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "runs").create()


def launched(run_dir: RunDir, units: list[Unit], kind: str = "slurm") -> Launch:
    return begin(run_dir, kind, units, Options(resources=Resources("cpu", workers=2), retries=5), [METHOD])


def test_a_launch_is_read_as_it_was_written(run_dir: RunDir) -> None:
    first = units_of(cells(50, 4), shards=2, before=lambda cell: (7, cell.seed) if cell.seed else None)
    assert sum(unit.shard is None for unit in first) == 200
    launch = launched(run_dir, first)
    again = load(launch.folder)
    assert again == launch
    assert again.units(describe) == first
    assert again.here
    assert not again.cancelled
    some = {unit.key for unit in first[5:17]}
    assert {unit.key for unit in again.units(describe, some.__contains__)} == some
    assert launch.folder.stat().st_mode & 0o077 == 0
    assert list(launches(run_dir)) == [launch]
    assert {entry.key for entry in launch.records} == {unit.key for unit in first if unit.shard is None}


def test_a_launch_of_another_program_or_data_set_is_refused(run_dir: RunDir) -> None:
    launch = launched(run_dir, units_of(cells()))
    with pytest.raises(BenchError, match=r"another revision of digits\. Give the `run` command again"):
        launch.units(lambda name: Dataset(name, FACTS, "sha256:1"))
    first = launch.entries[0]
    other = first.model_copy(update={"cell": first.cell.model_copy(update={"key": "other"})})
    with pytest.raises(BenchError, match=r"other does not follow from its own settings\. Give the `run` command again"):
        launch.model_copy(update={"entries": (other,)}).units(describe)
    path = launch.folder / "launch.json"
    written = json.loads(path.read_text())
    for text in (json.dumps({**written, "version": 0}), "{}", "", "[]"):
        path.write_text(text)
        with pytest.raises(BenchError, match="Give the `run` command again"):
            load(launch.folder)
        assert list(launches(run_dir)) == []


@pytest.mark.parametrize("where", [(), ("options",), ("entries", 1), ("entries", 1, "cell")])
def test_a_launch_with_other_fields_is_refused(run_dir: RunDir, where: tuple[str | int, ...]) -> None:
    """Values are read by name: a field that is new, gone or renamed never shifts the others."""
    launch = launched(run_dir, units_of(cells()))
    path = launch.folder / "launch.json"
    text = path.read_text()
    for name in sorted(functools.reduce(lambda part, step: part[step], where, json.loads(text))):
        written = json.loads(text)
        part = functools.reduce(lambda part, step: part[step], where, written)
        part["renamed"] = part.pop(name)
        path.write_text(json.dumps(written))
        with pytest.raises(BenchError, match=f"another version of this program .*({name}|renamed): .*Give the `run`"):
            load(launch.folder)
        assert list(launches(run_dir)) == []


def test_cells_in_the_jobs_of_others(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    queued: set[str] = set()
    monkeypatch.setattr(slurm, "queue", lambda name, over=False: {"1": ("PENDING", "")} if name in queued else {})
    units = units_of(cells())
    names = iter(["20260101-000000-a", "20260101-000001-b", "20260101-000002-c"])
    monkeypatch.setattr("bench.launchers.manifest.time.strftime", lambda form: next(names) if "-%H" in form else "then")
    old, mine, young = (launched(run_dir, units) for _ in range(3))
    others = other_launches(mine, run_dir)
    assert {other.id for other in others} == {old.id, young.id}
    keys = [unit.key for unit in units]
    # All three live. Each waits for older ones only, so that no two wait for each other.
    assert in_hand(mine, run_dir, others) == {old.id: set(keys)}
    queued.add(young.id)
    assert in_hand(mine, run_dir, others) == {old.id: set(keys), young.id: set(keys)}
    monkeypatch.setattr("bench.launchers.manifest.alive", lambda pid, begun: False)
    assert in_hand(mine, run_dir, others) == {young.id: set(keys)}
    run_dir.write_record(record(key=keys[0]))
    assert in_hand(mine, run_dir, others) == {young.id: set(keys[1:])}
    queued.clear()
    assert in_hand(mine, run_dir, others) == {}


def test_a_job_waits_until_it_is_known_that_an_owner_elsewhere_is_dead(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(
        worker, "run_unit", lambda launch, unit, *rest: run_dir.write_record(record(key=unit.key)) and None
    )
    units = units_of(cells(1, 2))
    launch = launched(run_dir, units)

    def go() -> list[str]:
        run: list[str] = []
        work_through(
            launch, units, run_dir, None, Progress(), resources=Resources("cpu"), wait=False,  # type: ignore[arg-type]
            done=lambda unit, record: run.append(unit.key),
        )  # fmt: skip
        return run

    dead = {"machine": "other/1", "pid": 1, "start": "1", "beat": 3, "attempts": {}, "seconds": 1.0, "about": {}}
    (run_dir.claims_path / units[0].key).write_text(json.dumps(dead))
    with locks.holding(run_dir.claims_path / units[1].key):  # one that lives: left to it
        assert go() == [units[0].key]
    assert go() == [unit.key for unit in units]


def test_what_is_unknown_among_methods(run_dir: RunDir) -> None:
    launch = launched(run_dir, units_of(cells()))
    with pytest.raises(UnknownNameError, match="grid-test"):
        slurm_run.start(launch, [], Cluster(methods={"grid-tset": {}}), run_dir, Progress(), Limits())
