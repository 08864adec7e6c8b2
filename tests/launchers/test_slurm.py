"""Grids as jobs of a real Slurm: the same records, every cell once, whoever is killed, preempted or out of time."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.launchers.status import overview
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.launches import METHOD, finish, lines, nothing_is_left_over, outcome, until
from helpers.slurm_jobs import (
    FOUR,
    SLURM,
    TWENTY_FOUR,
    Background,
    Sampler,
    at_work,
    both_made,
    ended_well,
    log,
    makers_came_first,
    running,
    start,
)
from helpers.slurm_node import HOST, SlurmNode, slurm_node, why_not

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("inline") / "runs"
    finish(start(out, *TWENTY_FOUR))
    assert len(outcome(out)) == 24
    return outcome(out)


@pytest.fixture(scope="module", autouse=True)
def background(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    folder = tmp_path_factory.mktemp("background")
    node = SlurmNode(folder / "node")
    node.start(cpus=8)
    runs = Background(node, folder, {})
    one = [*SLURM, "--eps", "1", "--seeds", "0"]
    try:
        runs.begin("limit", *one, "--time", "2", making=3, parts=35)
        runs.begin("pooled", *one, "--time", "2", "--cpus", "2", making=3, parts=35, pooled=1)
        runs.begin("too often", *one, "--partition", "short", "--time", "1", "--retries", "0", seconds=100)
        runs.begin("dies", *SLURM, "--eps", "1,2", "--seeds", "0", "--set", "dies=true", "--retries", "1")
        settings = folder / "cluster.yaml"
        settings.write_text("launcher: slurm\nsetup: [echo no such module, exit 3]\n")
        runs.begin("broken", "--cluster", str(settings), "--eps", "1", "--seeds", "0", "--retries", "0")
        yield runs
    finally:
        for process in runs.processes.values():
            process.kill()
            process.communicate()
        node.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, background: Background) -> Iterator[SlurmNode]:
    # More cores than jobs are allowed: a cap that does nothing is seen.
    with slurm_node(tmp_path_factory.mktemp("slurm"), cpus=4, gpus=2) as node:
        yield node


@pytest.fixture(autouse=True)
def _queue_is_empty(node: SlurmNode) -> Iterator[None]:
    yield
    node.cancel_all()


@pytest.mark.timeout(1_800)  # each job imports torch, which takes long on a busy machine
def test_the_same_records_with_two_jobs_at_a_time(node: SlurmNode, inline: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    with Sampler(node) as sampler:
        said = finish(start(out, *TWENTY_FOUR, *SLURM, "--parallel", "2"), seconds=1_500)
    assert sampler.most == 2
    ended_well(out, inline, 24)
    assert outcome(out) == inline
    assert {name: count for name, count in lines(out).items() if count > 1} == {}
    assert sum(name.startswith("made") for name in lines(out)) == 8
    makers_came_first(out)
    assert "24 cells in 24 jobs of Slurm" in said
    assert node.queue() == {}  # none is still about to leave: an attack on the directory can begin


def test_small_cells_share_a_job(node: SlurmNode, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    said = finish(start(out, "--eps", "1,2,3,4", "--launcher", "slurm"))
    assert "4 cells in 2 jobs of Slurm" in said  # who makes what the others share has a job alone
    assert all(json.loads(text)["status"] == "done" for text in outcome(out).values())
    assert len(outcome(out)) == 4
    makers_came_first(out)


def test_without_a_cap_a_follower_waits_for_its_maker_alone(
    node: SlurmNode, inline: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    finish(start(out, *FOUR, *SLURM, making=1))
    ended_well(out, inline)
    makers_came_first(out)
    scripts = "".join(path.read_text() for path in out.glob("launches/*/jobs/*_submission.sh"))
    waits = [line for line in scripts.splitlines() if line.startswith("#SBATCH --dependency")]
    assert len(set(waits)) == len(waits) == 2
    assert all(re.fullmatch(r"#SBATCH --dependency=afterany:\d+_\d", line) for line in waits)


def test_killed_requeued_and_slurmd_restarted(node: SlurmNode, inline: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    process = start(out, "--eps", "1,2,3,4", "--seeds", "0,1", *SLURM, seconds=8)
    until(lambda: both_made(out))
    owners = [owner for owner in RunDir(out).claims().values() if owner.held and "title" in owner.about]
    os.kill(owners[0].pid, signal.SIGKILL)
    node.restart_slurmd()
    node.run("scontrol", "requeue", str(owners[1].about["job"]))
    said = finish(process)
    ended_well(out, inline, 8)
    assert "1 cell has lost its job (" in said
    assert sum(line.startswith("start") for line in log(out)) == 10  # 8, and one more for each that was hit
    assert node.queue() == {}


def test_a_node_that_crashes_with_its_jobs(node: SlurmNode, inline: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    process = start(out, *FOUR, *SLURM, seconds=8)
    until(lambda: len(at_work(out)) == 2)
    node.crash()
    node.start_slurmd()
    said = finish(process)
    ended_well(out, inline)
    assert "submitted again" not in said  # Slurm itself puts them back
    assert sum(line.startswith("start") for line in log(out)) == 6


def test_preemption(node: SlurmNode, inline: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    process = start(out, "--eps", "1,2", "--seeds", "0", *SLURM, "--partition", "low", "--cpus", "3", seconds=6)
    until(lambda: len(at_work(out)) == 1)
    other = node.run("sbatch", "--parsable", "-p", "main", "-c", "4", "-o", "/dev/null", "--wrap", "sleep 3").strip()
    until(lambda: node.queue().get(other) == "RUNNING")
    assert not list(out.glob("claims/*"))  # given up in order: it does not count as a death
    said = finish(process)
    ended_well(out, inline, 2)
    assert "submitted again" not in said
    assert sum(line.startswith("start") for line in log(out)) == 3


def test_status_joining_and_cancel(node: SlurmNode, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    command = [*FOUR, *SLURM, "--parallel", "1"]
    said = finish(start(out, *command, "--detach", seconds=100))
    assert "4 cells are left to the jobs, which keep running" in said
    queue = set(node.queue())
    assert len(queue) == 4
    until(lambda: len(at_work(out)) == 1)

    # The same command again waits for the jobs that are there, and leaves them alone.
    again = start(out, *command, seconds=100)
    until(lambda: [launch.state for launch in overview(out).launches] == ["at work"] * 2)
    time.sleep(3)
    again.send_signal(signal.SIGINT)
    said = finish(again, status=130)
    assert "4 cells are in the jobs of an earlier launch, bench-" in said
    assert "4 cells are left to the jobs, which keep running" in said
    assert set(node.queue()) == queue

    seen = json.loads(bench("status", str(out), "--json").stdout)
    first, second = seen["launches"]
    assert (first["kind"], first["state"], first["running"], first["left"]) == ("slurm", "at work", 1, 4)
    assert first["jobs"] == {"RUNNING": 1, "PENDING": 3}
    assert second["jobs"] == {}
    assert f"job {next(iter(running(out).values()))}" in seen["running"][0]["where"]
    assert len(seen["waiting"]) == 3
    (note,) = seen["notes"]
    assert "JobArrayTaskLimit" in note or "Dependency" in note
    shown = bench("status", str(out)).stdout
    assert "3 pending, 1 running" in shown

    done = bench("cancel", str(out))
    assert done.stdout == f"cancelled 4 jobs of bench-{first['id']}\n"
    assert node.queue() == {}
    until(lambda: not node.job_processes(), 10)
    nothing_is_left_over(out)
    assert bench("cancel", str(out)).stdout == "nothing runs here\n"
    assert overview(out).launches[0].state == "stopped"


def test_cancel_ends_the_launcher_too(node: SlurmNode, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    process = start(out, *FOUR, *SLURM, seconds=100)
    until(lambda: len(at_work(out)) == 2)
    said = bench("cancel", str(out)).stdout.splitlines()
    assert "ended the launcher" in said[0]
    assert said[1].startswith("cancelled 4 jobs of bench-")
    assert len(said) == 2
    finish(process, status=128 + signal.SIGTERM)
    assert node.queue() == {}
    until(lambda: not node.job_processes(), 10)


def test_a_launcher_that_is_killed(node: SlurmNode, inline: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    command = [*FOUR, *SLURM, "--parallel", "1"]
    process = start(out, *command, seconds=1)
    until(lambda: len(list(out.glob("records/*.json"))) == 1)
    process.kill()
    process.communicate()
    before = set(node.queue())
    assert before
    said = finish(start(out, *command, seconds=1))
    assert "1 of 4 cells is done already" in said
    assert "3 cells are in the jobs of an earlier launch" in said
    ended_well(out, inline)
    assert {name: count for name, count in lines(out).items() if count > 1} == {}
    assert len(list(out.glob("launches/*/jobs/*_submitted.pkl"))) == 4  # no job was submitted twice


def test_jobs_of_a_dead_launch_leave_a_cell(node: SlurmNode, inline: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    command = ["--eps", "1", "--seeds", "0,1", *SLURM]
    finish(start(out, *command, "--detach", seconds=15))
    until(lambda: both_made(out))
    again = start(out, *command, seconds=1)
    until(lambda: len(list(out.glob("launches/*"))) == 2)
    os.kill(next(owner.pid for owner in RunDir(out).claims().values() if "title" in owner.about), signal.SIGKILL)
    said = finish(again)
    assert "1 cell has lost its job: submitted again" in said
    ended_well(out, inline, 2)


def test_a_launcher_inside_a_job(node: SlurmNode, inline: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    words = ["-m", "bench", "run", "--methods", METHOD, "--datasets", "digits", "--preset", "tiny", "--device", "cpu"]
    grid = ["--noise-salt", "none", "--eps", "1", "--seeds", "0,1"]
    inner = " ".join([sys.executable, *words, "--out", str(out), *grid, *SLURM])
    said = tmp_path / "said"
    node.run(
        "sbatch", "--parsable", "--mem=500", "-n", "2", "--array=3", "-o", str(said),
        f"--export=ALL,GRID_LOG={tmp_path / 'log'},SQUEUE_PARTITION=short,SBATCH_PARTITION=low", "--wrap", inner,
    )  # fmt: skip
    until(lambda: not node.queue(), 100)
    assert "2 cells in 2 jobs of Slurm" in said.read_text()
    assert "submitted again" not in said.read_text()
    ended_well(out, inline, 2)
    partitions = node.run("squeue", "-h", "-t", "all", "-o", "%P %j").splitlines()
    assert f"main bench-{overview(out).launches[0].id}" in partitions


def test_a_cancelled_job_comes_back_while_others_run(node: SlurmNode, inline: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    out.parent.mkdir(exist_ok=True)
    hold = tmp_path / "log.hold"
    hold.touch()
    process = start(out, "--eps", "1", "--seeds", "0,1", *SLURM)
    until(lambda: len(running(out)) == 2)
    cancelled, other = sorted(running(out).values())
    node.run("scancel", cancelled)
    until(lambda: cancelled not in node.queue())
    until(lambda: len(node.queue()) == 2)  # submitted again, though the other still runs
    assert other in node.queue()
    hold.unlink()
    said = finish(process)
    assert f"1 cell has lost its job (job {cancelled} on {HOST}: cancelled): submitted again at once" in said
    ended_well(out, inline, 2)


def test_a_job_that_nothing_will_start_is_told(node: SlurmNode, tmp_path: Path) -> None:
    process = start(tmp_path / "runs", "--eps", "1", "--seeds", "0", *SLURM, "--slurm", "hold")
    assert process.stderr is not None
    until(lambda: b"1 job waits for JobHeldUser, which may never end" in process.stderr.readline())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("limit", "options", "words"),
    [
        ("MaxJobCount=5", ["--detach"], "fewer than 5 jobs in the cluster, MaxJobCount"),
        ("MaxArraySize=0", [], "takes no job arrays"),
    ],
)
def test_limits_of_a_cluster_are_told(tmp_path: Path, limit: str, options: list[str], words: str) -> None:
    with slurm_node(tmp_path / "node", more=f"{limit}\n") as other:
        said = refused(tmp_path / "runs", *options, environment=other.environment)
        assert words in said
        assert other.queue() == {}


def test_a_cluster_of_short_arrays(inline: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "grid" / "runs"
    with slurm_node(tmp_path / "node", cpus=4, more="MaxArraySize=2\n") as other:
        process = start(out, "--eps", "1,2,3,4", "--seeds", "0", *SLURM, environment=other.environment)
        assert "4 cells in 4 jobs of Slurm" in finish(process)
    ended_well(out, inline)


def refused(out: Path, *options: str, methods: str = METHOD, environment: dict[str, str] | None = None) -> str:
    words = ["--eps", "1,2,3,4,5", "--seeds", "0", *SLURM, "--quiet", *options]
    process = start(out, *words, methods=methods, environment=environment)
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 2, errors.decode()
    assert output == b""
    (line,) = errors.decode().splitlines()  # one line, and nothing of the libraries below
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--partition", "mian"], ["'mian'", "main"]),
        (["--gpus", "3"], ["--gpus 3", "2 GPUs of a node of partition main"]),
        (["--cpus", "5"], ["--cpus 5", "4 cores of a node of partition main"]),
        (["--memory", "100"], ["--memory 100", "GB of a node"]),
        (["--partition", "short", "--time", "2"], ["--time 2", "1 minute of partition short"]),
        (["--slurm", "nodes=2"], ["--slurm nodes=2", "1 node of partition main"]),
        (["--time", "soon"], ["time", "'soon'"]),
        (["--slurm", "constraint=none"], ["Invalid feature specification"]),
        (["--slurm", "no-such-directive=1"], ["unrecognized option '--no-such-directive=1'"]),
        (["--slurm", "job-name=mine"], ["job-name is set by this program"]),
        (["--slurm", "KEY VALUE"], ["--slurm"]),
    ],
)
def test_what_cannot_run_is_refused(node: SlurmNode, tmp_path: Path, options: list[str], words: list[str]) -> None:
    said = refused(tmp_path / "runs", *options)
    for word in words:
        assert word in said
    assert node.queue() == {}


def test_no_slurm(node: SlurmNode, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(Path(sys.executable).parent)}
    said = refused(tmp_path / "runs", environment=environment)
    for word in ("no Slurm on this machine", "--launcher local", "slurm-wlm"):
        assert word in said


def test_later_jobs_refused_take_the_earlier_ones_with_them(node: SlurmNode, tmp_path: Path) -> None:
    settings = tmp_path / "cluster.yaml"
    settings.write_text("launcher: slurm\nmethods:\n  grid-test:\n    extra: {constraint: none}\n")
    said = refused(tmp_path / "runs", "--cluster", str(settings), methods=f"nonprivate,{METHOD}")
    assert "Invalid feature specification" in said
    assert node.queue() == {}


@pytest.mark.parametrize("cell", ["limit", "pooled"])  # alone, and with processes of its own
def test_a_time_limit_is_no_deadline(cell: str, background: Background, inline: dict[str, str]) -> None:
    out, said = background.finish(cell)
    ended_well(out, inline, 1)
    assert sum(line.startswith("start") for line in log(out)) >= 2
    assert "submitted again" not in said


def test_a_cell_that_kills_its_job_is_given_up_and_nobody_waits_for_it(background: Background) -> None:
    out, said = background.finish("dies", status=1)
    records = {record.status: record for record in RunDir(out).read_records().found}
    assert set(records) == {"done", "failed"}
    failure: Any = records["failed"].failure  # type: ignore[index]
    assert failure.kind == "lost"
    assert lines(out)["start 10-0"] == 2
    assert "1 cell has lost its job (" in said
    assert "task 0: Killed" in said
    assert log(out).index("end 5-0") < len(log(out)) - 1  # the other did not wait for the second try
    assert background.node.queue() == {}


@pytest.mark.parametrize(
    ("cell", "reason", "told"),
    [
        ("too often", "reached its time limit too often", ""),
        ("broken", "its jobs ended without a record", "): given up; the last output of one: no such module"),
    ],
)
def test_a_cell_whose_jobs_all_end_fails(cell: str, reason: str, told: str, background: Background) -> None:
    out, said = background.finish(cell, status=1)
    (record,) = RunDir(out).read_records().found
    assert record.failure is not None
    assert reason in record.failure.reason
    assert told in said
    nothing_is_left_over(out)
