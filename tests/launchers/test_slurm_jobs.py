"""Jobs that end without their results: why, by sacct or scontrol, and what the next one gets. Slurm is a fake."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.core.options import ONE_CPU
from bench.core.progress import Progress
from bench.launchers import slurm_jobs
from bench.launchers.attempts import attempt, attempts_of
from bench.launchers.manifest import Options, begin
from bench.launchers.schedule import Order
from bench.launchers.settings import Cluster, JobResources, More
from bench.launchers.slurm_cli import Limits, limits
from bench.launchers.slurm_ends import End, Reason, ends_of, more_after, reason_of
from bench.launchers.slurm_job import Job
from bench.launchers.slurm_jobs import Jobs
from bench.results.run_dir import RunDir
from helpers.fake_slurm import FakeSlurm


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "bin", monkeypatch)


@pytest.mark.parametrize(
    ("state", "status", "log", "reason"),
    [
        ("TIMEOUT", "0:15", "", Reason.TIME),
        ("FAILED", "124:0", "", Reason.TIME),
        ("FAILED", "140:0", "task 0: User defined signal 2", Reason.TIME),
        ("FAILED", "1:0", "Job not requeued because: timed-out too many times.", Reason.TIME),
        ("OUT_OF_MEMORY", "0:125", "", Reason.MEMORY),
        ("FAILED", "137:0", "slurmstepd: error: Exceeded job memory limit", Reason.KILLED),
        ("FAILED", "137:0", "error: StepId=1.0 exceeded memory limit (411131904 > 104857600)", Reason.MEMORY),
        ("FAILED", "1:0", "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0", Reason.MEMORY),
        ("FAILED", "0:9", "", Reason.KILLED),
        ("FAILED", "137:0", "task 0: Killed", Reason.KILLED),
        ("CANCELLED by 1000", "0:15", "", Reason.CANCELLED),
        ("NODE_FAIL", "0:0", "", Reason.NODE),
        ("FAILED", "3:0", "no such module", Reason.FAILED),
        ("COMPLETED", "0:0", "", Reason.COMPLETED),
        ("", "", "", Reason.UNKNOWN),
        ("", "", "srun: error: n1: task 0: Exited with exit code 124", Reason.TIME),
        (
            "",
            "",
            "*** JOB 7 ON n1 CANCELLED AT 2026-11-26T08:48:38 ***\nsrun: error: n1: task 0: Killed",
            Reason.CANCELLED,
        ),
        ("", "", "*** STEP 1.0 ON n1 CANCELLED AT 2026-11-26T08:48:38 ***\nExceeded memory limit", Reason.MEMORY),
        ("", "", "*** JOB 7 ON n1 CANCELLED AT 2026-11-26T08:48:38 DUE TO TIME LIMIT ***", Reason.TIME),
        ("", "", "*** JOB 7 ON n1 CANCELLED AT 2026-11-26T08:48:38 DUE TO JOB REQUEUE ***", Reason.UNKNOWN),
    ],
)
def test_why_a_job_ended(state: str, status: str, log: str, reason: Reason) -> None:
    assert reason_of(state, status, log) is reason


SACCT = """\
12_0|OUT_OF_MEMORY|0:125|n1||4000M
12_0.batch|OUT_OF_MEMORY|0:125|n1|1024K|
12_0.0|OUT_OF_MEMORY|0:125|n1|3.5G|
12_[1-9]|PENDING|0:0|None assigned||4000M
13|CANCELLED by 0|0:15|n2||4Gn
"""
SCONTROL = """\
JobId=14 ArrayJobId=12 ArrayTaskId=0 JobName=a JobState=TIMEOUT Reason=TimeLimit Dependency=(null) ExitCode=0:15 \
NodeList=n1 BatchHost=n1 TRES=cpu=1,mem=500M,node=1,billing=1
JobId=12 ArrayJobId=12 ArrayTaskId=1-9 JobName=a JobState=PENDING Reason=None ExitCode=0:0 NodeList=(null)
JobId=13 JobName=a JobState=FAILED Reason=NonZeroExitCode ExitCode=137:0 NodeList=n2 TRES=cpu=1,mem=2G,node=1
"""


def test_ends_by_accounting(fake: FakeSlurm, tmp_path: Path) -> None:
    fake.says("sacct", SACCT)
    assert ends_of(["12_0", "13", "99"], tmp_path) == {
        "12_0": End("12_0", Reason.MEMORY, "0:125", "n1", 3584.0, 4000.0),
        "13": End("13", Reason.CANCELLED, "0:15", "n2", None, 4096.0),
        "99": End("99"),
    }
    assert [call.split()[0] for call in fake.calls] == ["sacct"]


def test_ends_without_accounting(fake: FakeSlurm, tmp_path: Path) -> None:
    fake.says("sacct", "Slurm accounting storage is disabled\n", status=1)
    fake.says("scontrol", SCONTROL)
    assert ends_of(["12_0", "13"], tmp_path) == {
        "12_0": End("12_0", Reason.TIME, "0:15", "n1", None, 500.0),
        "13": End("13", Reason.KILLED, "137:0", "n2", None, 2048.0),
    }
    fake.says("scontrol", "slurm_load_jobs error: Invalid job id specified\n", status=1)
    assert ends_of(["12_0"], tmp_path)["12_0"].reason is Reason.UNKNOWN


def test_the_next_job_gets_twice_as_much_up_to_the_limits() -> None:
    own = JobResources(time=60, max_time=200, memory=4, max_memory=20)
    times, memories = [], []
    more = More()
    for _ in range(3):
        more = more_after(End("1", Reason.TIME), own, more)
        times.append(more.time)
    for _ in range(4):
        more = more_after(End("1", Reason.MEMORY), own, more)
        memories.append(more.memory)
    assert times == [120, 200, 200]
    assert memories == [8, 16, 20, 20]
    assert more.words == " with 20 GB and 200 min"
    for reason in set(Reason) - {Reason.TIME, Reason.MEMORY, Reason.KILLED}:
        assert more_after(End("1", reason), own, More()) == More()
    assert more_after(End("1", Reason.TIME), JobResources(time=60), More()) == More()
    assert more_after(End("1", Reason.TIME), JobResources(time=60, max_time=60), More()) == More()
    assert more_after(End("1", Reason.MEMORY), JobResources(memory=2, max_memory=2), More()) == More()
    # Without --memory the cluster's default counts, as Slurm tells it.
    assert more_after(End("1", Reason.KILLED, given=512), JobResources(max_memory=2), More()).memory == 1
    assert more_after(End("1", Reason.KILLED), JobResources(max_memory=2), More()) == More()


class Said(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def jobs(tmp_path: Path, keys: str, found: Limits | None = None, retries: int = 10, **settings: object) -> Jobs:
    run_dir = RunDir(tmp_path / "runs").create()
    launch = begin(run_dir, "slurm", (), Options(resources=ONE_CPU, retries=retries))
    cluster = Cluster.model_validate({"launcher": "slurm", **settings})

    def body(names: tuple[str, ...], own: JobResources, ends_itself: bool) -> Job:
        return Job(str(launch.folder), names, own.time, ends_itself)

    return Jobs(launch, run_dir, cluster, found or Limits(), Said(), body, [Order((key,)) for key in keys])


def scripts(made: Jobs) -> list[str]:
    """Return the scripts given to sbatch, oldest first."""
    found = sorted((made.launch.folder / "jobs").glob("submission_file_*.sh"), key=lambda path: path.stat().st_mtime)
    found += (made.launch.folder / "jobs").glob("*_submission.sh")
    return [path.read_text() for path in sorted(found, key=lambda path: path.stat().st_mtime)]


def said(made: Jobs) -> list[str]:
    assert isinstance(made.progress, Said)
    return made.progress.lines


def test_out_of_memory_and_out_of_time_come_back_with_more(fake: FakeSlurm, tmp_path: Path) -> None:
    made = jobs(tmp_path, "abc", memory=4, max_memory=6, time=60, max_time=100)
    assert made.submit() == 3
    assert made.job_of == {"a": "1_0", "b": "1_1", "c": "1_2"}
    fake.says("sacct", "1_0|OUT_OF_MEMORY|0:125|n1||4G\n1_0.0|OUT_OF_MEMORY|0:125|n1|4000M|\n"
              "1_1|FAILED|124:0|n2||4G\n1_2|CANCELLED by 0|0:15|n3||4G\n")  # fmt: skip
    assert made.again(["a", "b", "c"], "cell") == []
    assert said(made) == [
        "1 cell has lost its job (job 1_0 on n1: out of memory): submitted again with 6 GB",
        "1 cell has lost its job (job 1_1 on n2: out of time): submitted again with 100 min",
        "1 cell has lost its job (job 1_2 on n3: cancelled): submitted again at once",
    ]
    assert made.submit() == 3
    assert sorted(made.job_of.values()) == ["2", "3", "4"]  # each with its own resources
    first, *later = scripts(made)
    assert "--mem=4096M" in first
    assert "--time=60" in first
    assert sorted(re.findall(r"--mem=(\d+)M", "".join(later))) == ["4096", "4096", "6144"]
    assert sorted(re.findall(r"--time=(\d+)", "".join(later))) == ["100", "60", "60"]
    for key, reason, node, peak in (("a", "out of memory", "n1", 4000), ("b", "out of time", "n2", None)):
        (tried,) = attempts_of(made.launch.folder, key)
        assert (tried.reason, tried.node, tried.peak_memory_mib) == (reason, node, peak)
    # The maximum was not enough, so another attempt would end in the same way.
    fake.says("sacct", f"{made.job_of['a']}|OUT_OF_MEMORY|0:125|n1||6G\n")
    assert made.again(["a"], "cell") == ["a"]
    assert said(made)[-1] == f"1 cell has lost its job (job {made.job_of['a']} on n1: out of memory): given up"
    assert made.ends["a"].reason is Reason.MEMORY


def test_a_cell_that_ends_its_jobs_takes_no_other_with_it(
    fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = jobs(tmp_path, "", retries=2)
    made = Jobs(one.launch, one.run_dir, one.cluster, one.limits, one.progress, one.body, [Order(("a", "b", "c"))])
    for number in range(1, 4):
        made.submit()
        monkeypatch.setenv("SLURM_JOB_ID", made.job_of["a"])
        with contextlib.suppress(ZeroDivisionError), attempt(made.launch.folder, "a"):
            raise ZeroDivisionError
        fake.says("sacct", f"{made.job_of['a']}|FAILED|1:0|n1||4G\n")
        assert made.again(["a", "b", "c"], "cell") == (["a"] if number == 3 else [])
    assert [order.keys for order in made.waiting] == [("b", "c")]


CONFIG = "MaxArraySize = 4\nMaxJobCount = 7\nMinJobAge = 9\nAccountingStorageType = accounting_storage/{storage}\n"


def test_more_jobs_than_slurm_holds_are_refused_without_a_launcher_that_waits(fake: FakeSlurm) -> None:
    fake.says("scontrol", "MaxArraySize = 1001\nMaxJobCount = 10\n")
    fake.says("squeue", "1\n" * 4)
    found = limits()
    found.check_room(5)
    assert found.places()[0] == 5
    with pytest.raises(BenchError, match=r"fewer than 10 jobs .*MaxJobCount in slurm.conf; 4 are there.* 6 more"):
        found.check_room(6)
    fake.says("scontrol", "MaxArraySize = 5\n")
    assert limits() == Limits(array=5)
    assert limits().places() == (None, "")


def test_orders_are_submitted_as_places_become_free(fake: FakeSlurm, tmp_path: Path) -> None:
    fake.says("scontrol", CONFIG.format(storage="none"))
    found = limits()
    assert found == Limits(array=4, jobs=7, keep=9)
    assert found.most == 6
    made = jobs(tmp_path, "abcdefghij", found)
    made.waiting[1:] = [Order((key,), ("a",)) for key in "bcdefghij"]  # b to j wait for a
    fake.says("squeue", "99\n")  # another's
    assert made.submit() == 5
    assert made.job_of == {"a": "1", "b": "2_0", "c": "2_1", "d": "2_2", "e": "2_3"}
    assert "--dependency=afterany:1" in scripts(made)[-1]
    assert said(made) == [
        "5 jobs wait for free slots in Slurm and will be submitted as others end (fewer than 7 jobs in the cluster, "
        "MaxJobCount in slurm.conf; 1 are there)"
    ]
    fake.says("squeue", "1\n2_0\n2_1\n2_2\n2_3\n99\n")
    assert made.submit() == 0
    assert made.mine == set("abcdefghij")
    fake.says("squeue", "2_3|RUNNING|None\n1|COMPLETED|None\n")
    assert made.lost("fghij") == []  # they wait for a place, and are not lost
    fake.says("squeue", "2_3\n")
    assert made.submit() == 5
    assert not any("dependency" in text for text in scripts(made)[-2:])  # Slurm has forgotten a's job
    assert len(said(made)) == 1
    assert [int(call) for call in re.findall(r"array=0-(\d+)", "".join(scripts(made)))] == [3, 3]


def test_a_user_who_may_submit_few_jobs(fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SBATCH_ACCOUNT", raising=False)
    fake.says("scontrol", CONFIG.format(storage="slurmdbd"))
    fake.says("sacctmgr", "20|normal\nnormal|5\nlong|2\n")  # both of its tables
    assert limits([JobResources()]).submit == 5
    assert limits([JobResources(qos="long")]).submit == 2
    fake.says("squeue", "1\n2\n3\n")
    assert limits([JobResources()]).places() == (2, "5 jobs of yours, by sacctmgr; 3 are there")
    fake.says("sacctmgr", "denied\n", status=1)
    assert limits([JobResources()]).submit is None


def test_a_controller_that_restarts_does_not_end_a_grid(fake: FakeSlurm, tmp_path: Path) -> None:
    made = jobs(tmp_path, "ab", Limits(jobs=2))
    assert made.submit() == 1
    fake.says("sbatch", "", status=1)
    fake.says("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", status=1)
    assert made.submit() == 0
    assert made.submit() == 0
    assert [order.keys for order in made.waiting] == [("b",)]
    assert len([line for line in said(made) if "Unable to contact slurm controller" in line]) == 1
    assert not [call for call in fake.calls if call.startswith("scancel")]


def test_what_more_does_not_help_is_given_up_after_three(fake: FakeSlurm, tmp_path: Path) -> None:
    made = jobs(tmp_path, "a")
    made.submit()
    for number in range(1, 5):
        fake.says("sacct", f"{number}|FAILED|3:0|n1||4G\n")
        assert made.again(["a"], "cell") == (["a"] if number == 4 else [])
        assert said(made)[-1].startswith(f"1 cell has lost its job (job {number} on n1: failed with status 3): ")
        made.submit()
    assert [tried.job for tried in attempts_of(made.launch.folder, "a")] == ["1", "2", "3", "4"]


def test_a_cancelled_cell_is_lost_at_once_and_others_after_a_while(
    fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = jobs(tmp_path, "abc")
    made.submit()
    fake.says("squeue", "1_0|CANCELLED|None\n1_1|FAILED|NonZeroExitCode\n1_2|RUNNING|None\n")
    assert made.lost("abc") == ["a"]
    monkeypatch.setattr(slurm_jobs, "GRACE_SECONDS", 0.0)
    assert made.lost("abc") == ["a", "b"]
    fake.says("squeue", "slurm_load_jobs error: Unable to contact slurm controller\n", status=1)
    assert made.lost("abc") == []  # nothing is known


def test_how_an_attempt_ended_is_written_by_its_process_or_for_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), attempt(tmp_path, "key"):
        raise RuntimeError
    with attempt(tmp_path, "key") as trial:
        assert attempts_of(tmp_path, "key")[1].reason == ""
        trial.reason = "done"
    assert trial.log == tmp_path / "attempts" / "key.2.log"
    first, second = attempts_of(tmp_path, "key")
    assert (first.reason, second.reason) == ("failed", "done")
    assert second.node
    assert second.peak_memory_mib
    assert second.peak_memory_mib > 1
    assert (tmp_path / "attempts").stat().st_mode & 0o077 == 0
