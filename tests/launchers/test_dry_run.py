"""The forecast of a grid: its time with packed jobs on a cluster of some size, its words, and what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from bench.core.config import Reuse
from bench.experiments import calibration_cache
from bench.interface.registry import METHODS
from bench.launchers import dry_run
from bench.launchers.dry_run import START_SECONDS, DryRun, forecast
from bench.launchers.runtime_estimate import RunningTime
from bench.launchers.schedule import Unit, units_of
from bench.launchers.settings import Cluster
from bench.results.run_dir import RunDir
from bench.storage.array_store import data_root
from helpers.cells import cells
from helpers.commands import bench


@pytest.fixture(autouse=True)
def _cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell takes 20 s; Slurm has two nodes of two cores."""
    sinfo = tmp_path / "bin" / "sinfo"
    sinfo.parent.mkdir()
    sinfo.write_text("#!/bin/sh\necho 'main*|(null)|2|4000|infinite|up|2'\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", str(sinfo.parent))

    def twenty(units: Sequence[Unit], run_dir: RunDir) -> dict[str, RunningTime | None]:
        return {unit.key: RunningTime(20.0, "") for unit in units}

    monkeypatch.setattr(dry_run, "running_times", twenty)


def told(epsilons: int, **settings: float) -> DryRun:
    todo = cells(epsilons, 1)
    cluster = Cluster.model_validate({"launcher": "slurm", **settings})
    return forecast(todo, units_of(todo), RunDir(Path("none")), cluster, Reuse.DONE)


def test_the_cells_of_a_job_run_in_turn() -> None:
    seen = told(10)
    assert seen.totals["jobs"] == 2  # what the others share is made in a job of its own
    assert seen.totals["seconds"] == 2 * START_SECONDS + 20 + 9 * 20
    assert "Time: about 4 min with 2 at a time on an empty cluster, by earlier records." in seen.notes


@pytest.mark.parametrize(
    ("settings", "slots", "turns"), [({}, 4, 4), ({"cpus": 2}, 2, 6), ({"parallel": 2}, 2, 6), ({"parallel": 90}, 4, 4)]
)
def test_no_more_jobs_run_at_once_than_the_cluster_holds(settings: dict[str, int], slots: int, turns: int) -> None:
    seen = told(10, pack=0, **settings)
    assert (seen.totals["slots"], seen.totals["seconds"]) == (slots, turns * (START_SECONDS + 20))


def test_without_slurm_all_jobs_are_taken_to_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    seen = told(10, pack=0)
    assert seen.totals["slots"] == 10
    assert "Slurm does not answer here, so its limits on jobs are not known." in seen.notes


def test_the_plan_says_what_slurm_takes_at_once(tmp_path: Path) -> None:
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text("#!/bin/sh\necho 'MaxArraySize = 11'; echo 'MaxJobCount = 4'\n")
    scontrol.chmod(0o755)
    seen = told(10, pack=0)
    (note,) = [note for note in seen.notes if "MaxJobCount" in note]
    assert note.startswith("Slurm takes 3 jobs (MaxJobCount in slurm.conf), in arrays of at most 11: the others are")
    assert seen.totals["slots"] == 3
    assert not [note for note in told(1, pack=0).notes if "MaxJobCount" in note]


def test_a_long_plan_shows_its_beginning() -> None:
    seen = told(dry_run.SHOWN + 1)
    assert len(seen.table()[2]) == dry_run.SHOWN
    assert len(seen.as_dict()["cells"]) == dry_run.SHOWN + 1
    assert seen.notes[0] == "The table shows 200 of 201 rows; --json has all."


def test_one_is_singular() -> None:
    seen = told(1)
    assert seen.title == "1 cell; 1 would run, in this order"
    assert "1 job of Slurm in 1 wave, any number at a time." in seen.notes
    assert "2 jobs of Slurm in 2 waves, any number at a time." in told(2).notes


def test_refused_cells_do_not_count_as_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DATA", str(data_root()))
    words = ["-d", "digits", "-p", "tiny", "-e", "5", "--basis", "proven", "-o", tmp_path / "runs", "--dry-run"]
    both = bench("run", "-m", "dgd,dp-sgd", *words)
    assert "2 cells; 1 would run, in this order; 1 refused" in both.stdout, both.stderr
    none = bench("run", "-m", "dgd", *words)
    assert "1 cell; 0 would run; 1 refused" in none.stdout, none.stderr
    assert "time" not in none.stdout.lower()


def test_a_dry_run_keeps_its_calibrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DATA", str(data_root()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration_cache, "SLOW", 0.0)
    words = ["run", "-m", "dp-sgd", "-d", "digits", "-p", "tiny", "-e", "5", "-o", tmp_path / "runs", "--dry-run"]
    first = bench(*words)
    assert first.returncode == 0, first.stderr

    def again(*_: object) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(METHODS.get("dp-sgd"), "calibrate", again)
    second = bench(*words)
    assert (second.returncode, second.stdout) == (0, first.stdout), second.stderr
    assert not (tmp_path / "runs").exists()


def test_a_slurm_that_does_not_answer_sets_no_limits(tmp_path: Path) -> None:
    for name in ("sinfo", "scontrol"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\necho 'no configuration source' >&2; exit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    seen = told(10, pack=0)
    assert seen.totals["slots"] == 10
    assert "Slurm does not answer here, so its limits on jobs are not known." in seen.notes
