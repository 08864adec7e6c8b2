"""Audits in many processes: each is made once, whoever launches them, and nothing is left behind."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.core.types import AuditKind
from bench.evaluation.audit.audit import audit_key
from bench.evaluation.audit.options import AuditOptions
from bench.launchers.status import overview
from bench.results.attack_record import AuditRecord
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.launches import until
from helpers.slurm_node import SlurmNode, slurm_node, why_not

# A few seconds for each; every process of an audit trains.
OPTIONS = ["--minutes", "0.05", "--draws", "0", "--no-power", "--workers", "1"]


@pytest.fixture(scope="module")
def students(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("students") / "runs"
    done = bench("run", "-m", "dgd", "-d", "digits", "-e", "1,10", "-p", "tiny", "-o", out, "--workers", "1", "-q")
    assert done.returncode == 0, done.stderr
    return out


def start(*words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.launchers.commands", "-m", "bench", *words]  # ends with this process
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def audits(out: Path) -> dict[str, AuditRecord]:
    return {audit.student: audit for audit in RunDir(out).read_audits()[0]}


@pytest.mark.slow
def test_audits_join_the_directory_and_leave_out_what_another_process_makes(out: Path) -> None:
    run_dir = RunDir(out)
    options = AuditOptions(minutes=0.05, draws=0, power=False)
    keys = {record.key: audit_key(record, options) for record in run_dir.read_records().found}
    first, second = keys
    with run_dir.joined():
        held = run_dir.claim(keys[second])
        assert held is not None
        with held:
            done = bench("audit", "-o", out, *OPTIONS, "-q")
        assert done.stderr == f"skipped: {keys[second]}, which another process is making\n"
        assert {audit.key for audit in audits(out).values()} == {keys[first]}


@pytest.mark.slow
def test_local_processes_make_the_audits_of_the_inline_launcher(out: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(out, alone)
    assert bench("audit", "-o", alone, *OPTIONS, "-q").returncode in (0, 1)
    done = bench("audit", "-o", out, *OPTIONS, "--launcher", "local", "--jobs", "2", "--json")
    assert "failed" not in done.stderr
    shown = {audit["key"]: audit["student"] for audit in json.loads(done.stdout)["audits"]}
    made, inline = audits(out), audits(alone)
    assert shown == {audit.key: student for student, audit in made.items()}
    assert len(made) == 2
    for student, audit in made.items():
        assert audit.pairs, audit.failure
        drawn = {"pairs", "epsilon", "provenance"}
        assert audit.model_dump(exclude=drawn) == inline[student].model_dump(exclude=drawn)
        names = {(bound.instrument, bound.tests, bound.seen) for bound in audit.pairs}
        assert names == {(bound.instrument, bound.tests, bound.seen) for bound in inline[student].pairs}
    assert len(list(out.glob("launches/*/attempts/*.log"))) == 2
    again = bench("audit", "-o", out, *OPTIONS, "--launcher", "local", "-q")
    assert again.returncode == done.returncode
    assert len(list(out.glob("launches/*/attempts/*.log"))) == 2, "audits that are kept need no process"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_runs_after_the_launcher(out: Path, number: signal.Signals) -> None:
    words = ["audit", "-o", str(out), "--minutes", "10", "--launcher", "local", "--jobs", "2", "--workers", "1"]
    launcher = start(*words)
    run_dir = RunDir(out)
    until(lambda: len(run_dir.running()) == 2)
    assert overview(out).launches[-1].state == "at work"
    owners = [owner.pid for owner in run_dir.claims().values()]
    launcher.send_signal(number)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == (-number if number == signal.SIGKILL else 128 + number), errors.decode()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in owners))
    assert audits(out) == {}
    for claim in out.glob("claims/*"):  # of killed processes
        assert number == signal.SIGKILL
        claim.unlink()


@pytest.mark.slow
def test_a_process_makes_an_audit_with_canaries(out: Path) -> None:
    student = next(record.key for record in RunDir(out).read_records().found if record.epsilon == 10)
    canaries = ["--kind", "one-run", "--canaries", "20", "--guesses", "10", "--draws", "0", "--no-power"]
    done = bench("audit", student, "-o", out, *canaries, "--launcher", "local", "--jobs", "1", "-q")
    (found,) = audits(out).values()
    assert (done.returncode, found.student, found.kind) == (int(bool(found.failure)), student, AuditKind.ONE_RUN)
    (launch,) = [row for row in overview(out).launches if row.kind == "local"]
    assert (launch.cells, launch.done + launch.failed, launch.state) == (1, 1, "finished")


def test_flags_of_another_launcher_are_refused(out: Path) -> None:
    partition = bench("audit", "-o", out, "--partition", "main")
    assert "--launcher inline does not use --partition" in partition.stderr
    short = bench("audit", "-o", out, "--minutes", "10", "--launcher", "slurm", "--time", "15")
    assert "--time 15 is too short for audits of --minutes 10: at least 20" in short.stderr


@pytest.mark.slow
def test_a_process_that_fails_is_told_with_its_log(out: Path) -> None:
    done = bench("audit", "-o", out, *OPTIONS, "--device", "cuda:99", "--launcher", "local", "--jobs", "2", "-q")
    assert done.returncode == 1
    assert done.stderr.count("its process ended with status 2 (log: ") == 2
    log = Path(done.stderr.splitlines()[-1].partition("(log: ")[2].rstrip(")"))
    assert "error: " in log.read_text()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNode]:
    if why_not():
        pytest.skip(why_not())
    with slurm_node(tmp_path_factory.mktemp("slurm")) as node:
        yield node


@pytest.mark.slurm
def test_an_array_of_slurm_makes_the_audits_though_jobs_are_cancelled_or_put_back(node: SlurmNode, out: Path) -> None:
    words = ["--partition", "low", "--time", "30", "-q"]
    launcher = start("audit", "-o", str(out), *OPTIONS, "--launcher", "slurm", *words)
    until(lambda: len(node.queue()) == 2)
    cancelled, put_back = sorted(node.queue())
    until(lambda: len(RunDir(out).running()) == 2)
    node.run("scancel", cancelled)
    node.run("scontrol", "requeue", put_back)
    output, errors = launcher.communicate(timeout=500)
    assert launcher.returncode in (0, 1), errors.decode()
    assert "failed" not in errors.decode()
    assert len(audits(out)) == 2
    assert all(audit.pairs for audit in audits(out).values())
    assert output.decode().count("digits-dgd") >= 2
    assert node.queue() == {}


@pytest.mark.slurm
@pytest.mark.parametrize("command", ["interrupt", "cancel"])
def test_no_job_is_left_after_the_launcher(node: SlurmNode, out: Path, command: str) -> None:
    launcher = start("audit", "-o", str(out), "--minutes", "10", "--launcher", "slurm", "--workers", "1", "-q")
    until(lambda: len(RunDir(out).running()) == 2)
    if command == "cancel":
        done = bench("cancel", "-o", out)
        assert "ended the launcher of" in done.stdout
    else:
        launcher.send_signal(signal.SIGINT)
    _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 128 + (signal.SIGTERM if command == "cancel" else signal.SIGINT), errors.decode()
    assert node.queue() == {}
    assert audits(out) == {}
    until(lambda: not RunDir(out).running())
