"""`bench logs`: the output of each attempt, of cells that share a job too, and `status` by what a launch makes."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from bench.core.errors import BenchError, UnknownNameError
from bench.core.options import ONE_CPU
from bench.core.progress import LineProgress
from bench.launchers import worker
from bench.launchers.attempts import attempt, ended, output_into
from bench.launchers.logs import Attempts
from bench.launchers.manifest import Launch, Options, Task, begin
from bench.launchers.schedule import units_of
from bench.launchers.status import overview
from bench.launchers.worker import work_through
from bench.results.run_dir import RunDir
from helpers.cells import METHOD, cells
from helpers.commands import bench
from helpers.records import record


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "runs").create()


def launched(run_dir: RunDir, kind: str = "local") -> Launch:
    tasks = [Task.of(run_dir, "audit-1", "audit of a student", "audits/audit-1.json")]
    tasks += [
        Task.of(run_dir, f"student-{name}", f"{name} on a student", f"attacks/student-{name}.json").model_copy(
            update={"command": "student--membership"}
        )
        for name in ("lira", "rmia")
    ]
    return begin(run_dir, kind, units_of(cells(1, 2)), Options(resources=ONE_CPU), [METHOD], tasks)


def test_each_cell_of_a_job_has_its_own_log(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    launch = launched(run_dir)

    def run_unit(launch: Launch, unit: worker.Unit, *_: object) -> object:
        os.write(1, f"hello from {unit.key}\n".encode())  # as a child process does
        made = record(key=unit.key)
        run_dir.write_record(made)
        return made

    monkeypatch.setattr(worker, "run_unit", run_unit)
    units = units_of(cells(1, 2))
    work_through(launch, units, run_dir, None, LineProgress(), resources=ONE_CPU)  # type: ignore[arg-type]
    for unit in units:
        found = Attempts(run_dir.path, unit.key)
        assert [path.read_text() for path in found.chosen(None).logs] == [f"hello from {unit.key}\n"]
        assert list(found.followed(None))[1] == f"hello from {unit.key}\n"  # and it ends
        assert found.all()[0].attempt.reason == "done"
    assert capfd.readouterr().out == ""


def test_attempts_of_several_launches_are_numbered_on(run_dir: RunDir) -> None:
    for said in ("one", "two"):
        launch = launched(run_dir, "slurm")
        key = launch.entries[0].key
        with attempt(launch.folder, key) as trial, output_into(trial.log):
            os.write(1, f"{said}\n".encode())
        time.sleep(1.1)  # names of launches have seconds
    (launch.folder / "jobs").mkdir()
    (launch.folder / "jobs" / "12_0_0_log.out").write_text("no such module\n")
    ended(launch.folder, key, "12_0", "n1", "failed", None)  # a job that never came to the cell
    found = bench("logs", key[:-3], "-o", run_dir.path)
    assert found.stdout == "no such module\n"
    assert found.stderr.startswith(f"-- {key}, attempt 3: job 12_0 on n1, failed")
    assert bench("logs", key, "-o", run_dir.path, "--attempt", "1").stdout == "one\n"
    listed = bench("logs", key, "-o", run_dir.path, "--list").stdout.splitlines()
    assert [line[:2] for line in listed] == ["1:", "2:", "3:"]
    assert "peak memory" in listed[1]
    again = bench("logs", key, "-o", run_dir.path, "--attempt", "4")
    assert (again.returncode, again.stderr) == (2, f"error: --attempt 4: {key} has 3 attempts, from 1.\n")


def test_mistaken_keys(run_dir: RunDir, tmp_path: Path) -> None:
    launch = launched(run_dir)
    key = launch.entries[0].key
    with pytest.raises(UnknownNameError, match=r"unknown key 'audit-2'.*'audit-1'.*bench status"):
        Attempts(run_dir.path, "audit-2")
    with pytest.raises(BenchError, match="'student-' is a prefix of 2 keys: student-lira, student-rmia"):
        Attempts(run_dir.path, "student-")
    with pytest.raises(BenchError, match=f"{key} has no log: it has not begun"):
        Attempts(run_dir.path, key).chosen(None)
    with pytest.raises(BenchError, match="no such run directory"):
        Attempts(tmp_path / "none", key)


def test_a_run_on_the_terminal_has_no_log(run_dir: RunDir) -> None:
    key = launched(run_dir, "inline").entries[0].key
    with pytest.raises(BenchError, match="it ran without --launcher, and its output went to the terminal"):
        Attempts(run_dir.path, key).chosen(None)


def test_attacks_of_one_command_share_its_log(run_dir: RunDir) -> None:
    launch = launched(run_dir)
    with attempt(launch.folder, "student--membership") as trial:
        trial.log.write_text("both\n")
    for key in ("student-lira", "student-rmia"):
        (log,) = Attempts(run_dir.path, key).chosen(None).logs
        assert log.read_text() == "both\n"


def test_following_goes_on_to_the_next_attempt_until_the_record_is_there(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.launchers.logs.POLL_SECONDS", 0.02)
    launch = launched(run_dir)
    key = launch.entries[0].key

    def two_attempts() -> None:
        with attempt(launch.folder, key) as trial:
            for line in ("a\n", "b\n"):
                with trial.log.open("a") as log:
                    log.write(line)
                time.sleep(0.1)
            trial.reason = "out of time"
        time.sleep(0.1)
        with attempt(launch.folder, key) as trial:
            trial.log.write_text("c\n")
            run_dir.write_record(record(key=key))
            trial.reason = "done"

    writer = threading.Thread(target=two_attempts)
    found = Attempts(run_dir.path, key)
    writer.start()  # the follower waits for the first
    said = "".join(found.followed(None))
    writer.join()
    lines = said.splitlines()
    assert [line for line in lines if not line.startswith("--")] == ["a", "b", "c"]
    assert any(line.startswith("-- attempt 1: ") and "out of time" in line for line in lines)


def test_status_says_what_a_launch_makes(run_dir: RunDir) -> None:
    launched(run_dir)
    (row,) = overview(run_dir.path).launches
    assert row.what == "2 attacks, 1 audit, 2 cells"
    shown = bench("status", "-o", run_dir.path).stdout
    assert "2 attacks, 1 audit, 2 cells" in " ".join(shown.split())
