"""`--launcher submitit:NAME` and the launchers of other packages: whatever runs the jobs, the records are the same."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from bench.core.errors import BenchError, UnknownNameError
from bench.core.options import ONE_CPU, LaunchOptions
from bench.core.progress import Progress
from bench.launchers import executors, settings, slurm
from bench.launchers.attempts import attempt
from bench.launchers.executors import Executor, executor_of, run_apart, run_by_executor
from bench.launchers.manifest import Options, begin
from bench.launchers.schedule import Pack, units_of
from bench.launchers.settings import Cluster, JobResources, launch_settings
from bench.results.record import Record, Status
from bench.results.run_dir import RunDir
from helpers.cells import METHOD, cells
from helpers.fake_slurm import FakeSlurm
from helpers.installed_launcher import EXAMPLE, install, with_path
from helpers.launches import finish, nothing_is_left_over, outcome, until
from helpers.records import record
from helpers.slurm_jobs import running, start


class FakeExecutor:
    """Runs each job at once; the first job of a cell in `loses` leaves nothing."""

    def __init__(self, run_dir: RunDir, loses: str) -> None:
        self.run_dir, self.loses, self.jobs = run_dir, loses, list[tuple[str, ...]]()

    def submit(self, keys: tuple[str, ...]) -> FakeExecutor:
        self.jobs.append(keys)
        for key in keys:
            if key != self.loses:
                self.run_dir.write_record(record(key=key))
        self.loses = ""
        return self

    def done(self) -> bool:
        return True

    def why(self, _job: FakeExecutor) -> str:
        return "its node burnt"

    def end(self, jobs: Sequence[FakeExecutor]) -> None:
        assert not jobs


class Said(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines = list[str]()

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_a_job_follows_what_it_waits_for_and_a_lost_one_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "POLL_SECONDS", 0.01)
    run_dir = RunDir(tmp_path / "runs").create()
    units = units_of(cells(3, 1))
    launch = begin(run_dir, "submitit:fake", units, Options(resources=ONE_CPU), [METHOD])
    executor = FakeExecutor(run_dir, units[0].key)

    @contextlib.contextmanager
    def fake(*_: object) -> Iterator[Executor]:
        yield executor

    monkeypatch.setattr(executors, "executor_of", fake)
    packs = [Pack((unit,), unit.after, "") for unit in units]
    made, told = list[Record](), Said()
    run_by_executor(launch, packs, Cluster(launcher="submitit:fake"), run_dir, told, made.append)
    assert {one.key for one in made} == {unit.key for unit in units}
    first, second, *others = executor.jobs
    assert first == second == (units[0].key,)  # lost, and again before those that wait for it
    assert sorted(others) == sorted((unit.key,) for unit in units[1:])
    assert told.lines == ["1 cell has lost the job (its node burnt): submitted again"]


def test_names_and_parameters_that_submitit_does_not_know(tmp_path: Path) -> None:
    launch = begin(RunDir(tmp_path / "runs").create(), "submitit:none", (), Options(resources=ONE_CPU))
    for asked, wrong, words in (
        (Cluster(launcher="submitit:locale"), UnknownNameError, r"unknown executor of submitit 'locale'. Did you mean"),
        (
            Cluster(launcher="submitit:local", extra={"qso": "low"}), BenchError,
            "submitit:local does not take these settings: Unknown argument 'qso'",
        ),
    ):  # fmt: skip
        with pytest.raises(wrong, match=words), executor_of(asked, launch, 1):
            pass


def threads(parallel: int, prefix: str = "") -> ThreadPoolExecutor:
    return ThreadPoolExecutor(parallel, prefix)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher `threads` of another package, and one that cannot be imported."""
    there = {"threads": f"{__name__}:threads", "no": "no_such:x"}
    points = [EntryPoint(name, value, settings.ENTRY_POINTS) for name, value in there.items()]
    monkeypatch.setattr(settings, "entry_points", lambda group: points if group == settings.ENTRY_POINTS else [])
    monkeypatch.setattr(EntryPoint, "load", lambda self: threads if self.name == "threads" else __import__(self.module))


@pytest.mark.usefixtures("installed")
def test_a_package_brings_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = RunDir(tmp_path / "runs").create()
    units = units_of(cells(2, 2))
    losses = [units[0].key]

    def apart(folder: str, keys: Sequence[str], scratch: str | None) -> str:
        assert (Path(folder), scratch) == (launch.folder.resolve(), "$TMPDIR")
        if losses and losses[0] in keys:
            return f"no record of {losses.pop()}"
        for key in keys:
            run_dir.write_record(record(key=key))
        return ""

    monkeypatch.setattr(executors, "run_apart", apart)
    monkeypatch.setattr(executors, "POLL_SECONDS", 0.01)
    chosen = Cluster(launcher="threads", scratch="$TMPDIR", extra={"prefix": "cells"}, parallel=2)
    launch = begin(run_dir, "threads", units, Options(resources=ONE_CPU), [METHOD])
    told = Said()
    packs = [Pack((unit,), unit.after, "") for unit in units]
    outcome = run_by_executor(launch, packs, chosen, run_dir, told, lambda record: None)
    assert {one.key for one in outcome.records} == {unit.key for unit in units}
    assert told.lines == [f"1 cell has lost the job (no record of {units[0].key}): submitted again"]


@pytest.mark.usefixtures("installed")
def test_a_cell_that_ends_its_jobs_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = RunDir(tmp_path / "runs").create()
    first, *others = units = units_of(cells(3, 1))

    def apart(folder: str, keys: Sequence[str], scratch: str | None) -> str:
        for key in keys:
            with contextlib.suppress(ZeroDivisionError), attempt(Path(folder), key):
                if key == first.key:
                    raise ZeroDivisionError
            if key == first.key:
                return "out of memory"
            run_dir.write_record(record(key=key))
        return ""

    monkeypatch.setattr(executors, "run_apart", apart)
    monkeypatch.setattr(executors, "POLL_SECONDS", 0.01)
    launch = begin(run_dir, "threads", units, Options(resources=ONE_CPU, retries=1), [METHOD])
    told = Said()
    outcome = run_by_executor(
        launch, [Pack(tuple(units), (), "")], Cluster(launcher="threads"), run_dir, told, lambda record: None
    )
    assert {one.key: one.status for one in outcome.records} == {
        first.key: Status.FAILED, **{unit.key: Status.DONE for unit in others},
    }  # fmt: skip
    assert told.lines == [
        "3 cells have lost the job (out of memory): submitted again",
        "3 cells have lost the job (out of memory): 1 of them given up",
    ]


def test_the_process_of_a_cancelled_job_gets_one_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would kill it while it closes."""
    process = tmp_path / "python"
    process.write_text(
        f"""#!{sys.executable}
import pathlib, signal, time
here = pathlib.Path({str(tmp_path)!r})
signal.signal(signal.SIGTERM, lambda *_: (here / "signals").open("a").write("x"))
(here / "cancelled").touch()
while not (here / "signals").exists():
    time.sleep(0.01)
time.sleep(0.2)
"""
    )
    process.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(process))
    monkeypatch.setattr(executors, "POLL_SECONDS", 0.01)
    assert run_apart(str(tmp_path), ["key"], None) == ""
    assert (tmp_path / "signals").read_text() == "x"


@pytest.mark.usefixtures("installed")
def test_what_an_installed_launcher_does_not_take(tmp_path: Path) -> None:
    launch = begin(RunDir(tmp_path / "runs").create(), "threads", (), Options(resources=ONE_CPU))
    for asked, words in (
        (Cluster(launcher="threads", extra={"x": 1}), "threads does not take these settings: .*unexpected keyword"),
        (Cluster(launcher="no"), "--launcher no: no_such:x failed to import: ModuleNotFoundError: No module named"),
    ):
        with pytest.raises(BenchError, match=words), executor_of(asked, launch, 1):
            pass
    with pytest.raises(BenchError, match=r"--launcher threads does not use --partition. Use --launcher slurm"):
        launch_settings(LaunchOptions(launcher="threads", partition="gpu", parallel=2))
    with pytest.raises(BenchError, match="inline, local, slurm, threads, no and submitit:NAME"):
        launch_settings(LaunchOptions(launcher="sge"))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "bin", monkeypatch)


def test_what_a_container_and_several_nodes_need_reaches_the_script(tmp_path: Path, fake: FakeSlurm) -> None:
    settings = Cluster(nodes=2, python="apptainer exec a.sif python3", srun_args=["--mpi=none", "--label"])
    launch = begin(RunDir(tmp_path / "runs").create(), "slurm", (), Options())
    assert slurm.submit_array(launch, [str, str], settings, settings.of("")) == ["1_0", "1_1"]
    (script,) = {path.read_text() for path in launch.folder.glob("jobs/*_submission.sh")}
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n" in script
    assert " --mpi=none --label apptainer exec a.sif python3 -u -m submitit.core._submit " in script


def test_the_node_expands_the_path_of_scratch() -> None:
    settings = Cluster(setup=["module load cuda"], scratch="$TMPDIR/bench")
    assert slurm.job_parameters(settings, JobResources(), "id", [])["setup"] == [
        "module load cuda", 'export BENCH_SCRATCH="$TMPDIR/bench"',
    ]  # fmt: skip


@pytest.mark.slow
def test_submitits_own_processes_make_the_same_records(tmp_path: Path) -> None:
    inline, out = tmp_path / "inline" / "runs", tmp_path / "grid" / "runs"
    grid = ["--eps", "1,2", "--seeds", "0"]
    finish(start(inline, *grid))
    disk = tmp_path / "disk"
    disk.mkdir()
    finish(start(out, *grid, "--launcher", "submitit:local", "--pack", "0", "--scratch", str(disk)))
    assert outcome(out) == outcome(inline)
    assert list(disk.glob("private-student-bench-*/*.safetensors"))  # what the cells share
    nothing_is_left_over(out)


@pytest.fixture
def dask(tmp_path: Path) -> dict[str, str]:
    """Where the example's package is installed."""
    pytest.importorskip("distributed", reason="the example needs Dask: pip install distributed")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    (point,) = project["entry-points"]["bench.launchers"].items()
    return with_path(EXAMPLE, install(tmp_path / "installed", *point))


@pytest.mark.slow
def test_dask_makes_the_same_records_though_a_worker_is_killed(tmp_path: Path, dask: dict[str, str]) -> None:
    local, out = tmp_path / "local" / "runs", tmp_path / "dask" / "runs"
    grid = ["--eps", "1,2", "--seeds", "0,1"]
    finish(start(local, *grid, "--launcher", "local", "--jobs", "2"))
    launcher = start(out, *grid, "--launcher", "dask", "--parallel", "2", "--pack", "0", environment=dask, seconds=4.0)
    until(lambda: len(running(out)) > 0)
    owner = RunDir(out).claims()[next(iter(running(out)))]
    parent = int(Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent not in (launcher.pid, os.getpid())
    os.kill(parent, signal.SIGKILL)  # Dask's worker, and with it the process of its cell
    said = finish(launcher)
    assert "1 cell has lost the job (KilledWorker: " in said
    assert outcome(out) == outcome(local)
    nothing_is_left_over(out)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_cell_outlives_a_launcher_of_dask(tmp_path: Path, dask: dict[str, str], number: signal.Signals) -> None:
    out = tmp_path / "dask" / "runs"
    grid = ["--eps", "1", "--seeds", "0,1"]
    launcher = start(
        out, *grid, "--launcher", "dask", "--parallel", "2", "--pack", "0", environment=dask, seconds=100.0
    )
    until(lambda: len(running(out)) == 2)
    owners = [owner.pid for owner in RunDir(out).claims().values()]
    launcher.send_signal(number)
    launcher.communicate()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in owners), 60)
    assert not running(out)
    finish(start(out, *grid))
    nothing_is_left_over(out)
