"""The Slurm node for tests starts, runs, survives what tests do to it, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers import slurm_node as tools
from helpers.slurm_node import SlurmNode, slurm_node, why_not

TOOL = Path(tools.__file__)

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNode]:
    with slurm_node(tmp_path_factory.mktemp("slurm"), gpus=2) as node:
        yield node


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "too late"
        time.sleep(0.2)


def submit(node: SlurmNode, command: str, *words: str) -> str:
    return node.run("sbatch", "--parsable", "-o", str(node.folder / "%j.txt"), *words, "--wrap", command).strip()


def text(node: SlurmNode, job: str) -> str:
    return (node.folder / f"{job}.txt").read_text()


def test_jobs_run(node: SlurmNode) -> None:
    assert os.environ["SLURM_CONF"] == str(node.conf)
    job = submit(node, "hostname; srun --mpi=none hostname; echo $CUDA_VISIBLE_DEVICES", "--gpus-per-node=2")
    until(lambda: job not in node.queue())
    assert text(node, job).split() == [tools.HOST, tools.HOST, "0,1"]


def test_what_the_node_has_is_told_and_no_more_is_given(node: SlurmNode) -> None:
    lines = node.run("sinfo", "-h", "-o", "%R|%l|%c|%m|%G").split()
    assert lines == ["main|infinite|2|4000|gpu:2", "short|1:00|2|4000|gpu:2", "low|infinite|2|4000|gpu:2"]
    for words in (["-p", "none"], ["--gpus-per-node=3"], ["--mem=4001"]):
        with pytest.raises(RuntimeError, match="sbatch: error: "):
            submit(node, "hostname", *words)


def test_jobs_outlive_slurmd_and_come_back_after_a_crash(node: SlurmNode) -> None:
    job = submit(node, "echo start; sleep 5; echo end")
    until(lambda: node.queue().get(job) == "RUNNING")
    node.restart_slurmd()
    until(lambda: job not in node.queue())
    assert text(node, job).split() == ["start", "end"]

    job = submit(
        node, "echo start $SLURM_RESTART_COUNT; sleep $((SLURM_RESTART_COUNT ? 0 : 100))", "--open-mode=append"
    )
    until(lambda: node.queue().get(job) == "RUNNING")
    until(lambda: (node.folder / f"{job}.txt").exists() and "start" in text(node, job))
    node.crash()
    assert node.job_processes() == []
    node.start_slurmd()
    until(lambda: job not in node.queue())
    assert text(node, job).split() == ["start", "start", "1"]


def test_preemption_puts_a_job_back(node: SlurmNode) -> None:
    low = submit(node, "sleep 100", "-p", "low", "-c", "2")
    until(lambda: node.queue().get(low) == "RUNNING")
    high = submit(node, "sleep 1", "-p", "main", "-c", "2")
    until(lambda: high not in node.queue())
    assert low in node.queue()
    assert "Restarts=1" in node.run("scontrol", "show", "job", low)
    node.cancel_all()
    assert node.queue() == {}


def test_two_nodes_beside_each_other_and_nothing_left(node: SlurmNode, tmp_path: Path) -> None:
    before = dict(os.environ)
    with slurm_node(tmp_path / "other", cpus=3, partitions={"only": "Default=YES"}) as other:
        stubborn = submit(other, "trap '' TERM; while :; do sleep 1; done")
        until(lambda: other.queue().get(stubborn) == "RUNNING")
        until(lambda: other.job_processes() != [])
        assert stubborn not in node.queue()
        assert other.run("sinfo", "-h", "-o", "%R %c").split() == ["only", "3"]
        pids = [other.pid(daemon) for daemon in tools.DAEMONS]
        assert None not in pids
    assert dict(os.environ) == before
    assert other.job_processes() == []
    assert [other.pid(daemon) for daemon in tools.DAEMONS] == [None] * 3
    assert "idle" in node.run("sinfo", "-h", "-o", "%T")


def test_a_killed_suite_leaves_no_daemon(tmp_path: Path) -> None:
    body = "from helpers.slurm_node import SlurmNode; SlurmNode(sys.argv[1]).start(); print(1, flush=True)"
    words = [sys.executable, "-c", f"import sys, time; {body}; time.sleep(600)", str(tmp_path / "node")]
    environment = {**os.environ, "PYTHONPATH": str(TOOL.parent.parent)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as suite:
        assert suite.stdout is not None
        assert suite.stdout.readline() == b"1\n"
        other = SlurmNode(tmp_path / "node")
        pids = [other.pid(daemon) for daemon in tools.DAEMONS]
        assert None not in pids
        job = submit(other, "sleep 600")
        until(lambda: other.queue().get(job) == "RUNNING")
        suite.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids) and not other.job_processes())


def test_the_command_line(tmp_path: Path) -> None:
    def tool(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(TOOL), *words], capture_output=True, text=True, timeout=90)

    folder = tmp_path / "node"
    try:
        started = tool("start", str(folder))
        assert (started.returncode, started.stdout) == (0, f"export SLURM_CONF={folder}/slurm.conf\n")
        again = tool("start", str(folder))
        assert again.returncode == 1
        assert "runs already" in again.stderr
        pid = SlurmNode(folder).pid("slurmd")
        assert tool("restart-slurmd", str(folder)).returncode == 0
        assert SlurmNode(folder).pid("slurmd") not in (None, pid)
    finally:
        assert tool("stop", str(folder)).returncode == 0
    assert [SlurmNode(folder).pid(daemon) for daemon in tools.DAEMONS] == [None] * 3
    assert tool("begin", str(folder)).returncode == 2
