"""`--launcher submitit:NAME`: any executor that submitit knows. The real one is submitit's own, of local processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.core.errors import BenchError, UnknownNameError
from bench.core.options import ONE_CPU
from bench.core.progress import Progress
from bench.launchers import slurm, submitit_run
from bench.launchers.manifest import Options, begin
from bench.launchers.schedule import Pack, units_of
from bench.launchers.settings import Cluster, JobResources
from bench.launchers.submitit_run import executor_of, run_submitit
from bench.results.record import Record
from bench.results.run_dir import RunDir
from helpers.cells import METHOD, cells
from helpers.fake_slurm import FakeSlurm
from helpers.launches import finish, nothing_is_left_over, outcome
from helpers.records import record
from helpers.slurm_jobs import start


class FakeExecutor:
    """Runs each job at once; the first job of a cell in `loses` leaves nothing."""

    def __init__(self, run_dir: RunDir, loses: str) -> None:
        self.run_dir, self.loses, self.jobs = run_dir, loses, list[tuple[str, ...]]()

    def submit(self, job: Any) -> FakeExecutor:
        self.jobs.append(job.keys)
        for key in job.keys:
            if key != self.loses:
                self.run_dir.write_record(record(key=key))
        self.loses = ""
        return self

    def done(self) -> bool:
        return True


def test_a_job_follows_what_it_waits_for_and_a_lost_one_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitit_run, "POLL_SECONDS", 0.01)
    run_dir = RunDir(tmp_path / "runs").create()
    units = units_of(cells(3, 1))
    launch = begin(run_dir, "submitit:fake", units, Options(resources=ONE_CPU), [METHOD])
    executor = FakeExecutor(run_dir, units[0].key)
    monkeypatch.setattr(submitit_run, "executor_of", lambda *_: executor)
    packs = [Pack((unit,), unit.after, "") for unit in units]
    made: list[Record] = []
    run_submitit(launch, packs, Cluster(launcher="submitit:fake"), run_dir, Progress(), made.append)
    assert {one.key for one in made} == {unit.key for unit in units}
    first, second, *others = executor.jobs
    assert first == second == (units[0].key,)  # lost, and again before those that wait for it
    assert sorted(others) == sorted((unit.key,) for unit in units[1:])


def test_names_and_parameters_that_submitit_does_not_know(tmp_path: Path) -> None:
    launch = begin(RunDir(tmp_path / "runs").create(), "submitit:none", (), Options(resources=ONE_CPU))
    with pytest.raises(UnknownNameError, match=r"unknown executor of submitit 'locale'. Did you mean 'local'"):
        executor_of(Cluster(launcher="submitit:locale"), launch)
    with pytest.raises(BenchError, match="submitit:local does not take these settings: Unknown argument 'qso'"):
        executor_of(Cluster(launcher="submitit:local", extra={"qso": "low"}), launch)


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
