"""Attacks in many processes: each is made once, resumed, shown while it runs, and drawn beside the others."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cli.attack_jobs import Attacks
from bench.core.config import Reuse
from bench.core.options import ONE_CPU, Students
from bench.evaluation.attack.workplace import AttackOptions
from bench.launchers.status import overview
from bench.results.attack_record import AttackRecord
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.launches import until
from helpers.slurm_node import SlurmNode, slurm_node, why_not

TINY = ["-p", "tiny", "--workers", "1"]
LOCAL = ["--launcher", "local", "--jobs", "2"]


@pytest.fixture(scope="module")
def students(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("students") / "runs"
    done = bench("run", "-m", "nonprivate,dp-sgd", "-d", "digits", "-e", "10", "-o", out, *TINY,
                 "--student", "small_cnn", "-q")  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def attacks(out: Path) -> dict[str, AttackRecord]:
    return {attack.key: attack for attack in RunDir(out).read_attacks()[0]}


def logs(out: Path) -> set[str]:
    return {path.name for path in out.glob("launches/*/attempts/*.log")}


def start(*words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.launchers.commands", "-m", "bench", *words]  # ends with this process
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


@pytest.mark.slow
def test_local_processes_make_what_is_missing(out: Path) -> None:
    keys = [record.key for record in RunDir(out).read_records().found]
    done = bench("attack", keys[0], "-o", out, "-a", "label-gap", *TINY, "-q")
    assert done.returncode == 0, done.stderr
    (first,) = attacks(out)
    before = RunDir(out).file_signature(f"attacks/{first}.json")
    words = ["attack", "-o", out, "-a", "label-gap", *TINY, *LOCAL, "--json"]
    done = bench(*words)
    assert (done.returncode, {a["student"] for a in json.loads(done.stdout)["attacks"]}) == (0, set(keys)), done.stderr
    assert set(attacks(out)) >= {first}
    assert len(attacks(out)) == 2
    assert RunDir(out).file_signature(f"attacks/{first}.json") == before
    assert logs(out) == {f"{keys[1]}--membership.1.log"}
    launch = overview(out).launches[-1]
    assert (launch.kind, launch.cells, launch.done, launch.left, launch.state) == ("local", 1, 1, 0, "finished")
    assert bench(*words).returncode == 0
    assert len(logs(out)) == 1, "attacks that are kept need no process"


def test_attacks_join_the_directory_and_leave_out_what_another_process_makes(out: Path) -> None:
    words = ["attack", "-o", out, "-a", "label-gap", *TINY, "-q"]
    assert bench(*words).returncode == 0
    made = attacks(out)
    held_key = next(iter(made))
    (out / "attacks" / f"{held_key}.json").unlink()
    run_dir = RunDir(out)
    with run_dir.joined():
        held = run_dir.claim(held_key, title="elsewhere")
        assert held is not None
        with held:
            done = bench(*words)
    assert (done.returncode, done.stderr) == (0, f"skipped: {held_key}, which another process is making\n")
    assert set(attacks(out)) == set(made) - {held_key}


def test_settings_of_one_attack_do_not_reach_the_jobs_of_another(tmp_path: Path) -> None:
    given = ("robustness.records=20", "restarts=2")
    names = "mi-face,robustness,label-gap"
    asked = Attacks(Students(out=tmp_path), names, AttackOptions(overrides=given), Reuse.DONE, ONE_CPU, True)
    for name, mine in (("robustness", given[:1]), ("mi-face", given[1:]), ("label-gap", ())):
        words = asked.words([name], Reuse.DONE)
        assert tuple(words[n + 1] for n, word in enumerate(words) if word == "--set") == mine


@pytest.mark.slow
def test_local_processes_make_the_attacks_and_pictures_of_the_inline_launcher(out: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(out, alone)
    words = ["-a", "mi-face,label-gap,loss", *TINY, "-q"]
    assert bench("attack", "-o", alone, *words).returncode == 0
    assert bench("attack", "-o", out, *words, *LOCAL).returncode == 0
    made, inline = attacks(out), attacks(alone)
    assert made.keys() == inline.keys()
    for key, attack in made.items():
        # Shadow runs of a private method draw their own noise.
        drawn = {"provenance", *(("targets", "no_power") if attack.goal == "membership" else ())}
        assert attack.model_dump(exclude=drawn) == inline[key].model_dump(exclude=drawn)
    pictures, others = (
        {path.name: path.read_bytes() for path in folder.glob("attacks/*.png")} for folder in (out, alone)
    )
    assert pictures.keys() == others.keys()
    inversions = {name for name in pictures if "mi-face" in name}
    assert len(inversions) == 3, "one for each student, and one of both"
    assert all(pictures[name] == others[name] for name in inversions)
    assert "compare-digits-mi-face.1.log" in logs(out)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["interrupt", "cancel"])
def test_status_names_what_runs_and_nothing_runs_after_the_launcher(out: Path, how: str) -> None:
    launcher = start("attack", "-o", str(out), "-a", "rmia", "--shadow-runs", "2000", *TINY, *LOCAL)
    titles = {f"rmia on {record.key}" for record in RunDir(out).read_records().found}
    until(lambda: {row.title for row in overview(out).running} == titles)
    seen = overview(out)
    assert (seen.launches[-1].state, seen.launches[-1].running, seen.launches[-1].left) == ("at work", 2, 2)
    if how == "cancel":
        assert "ended the launcher of" in bench("cancel", "-o", out).stdout
    else:
        launcher.send_signal(signal.SIGINT)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + (signal.SIGTERM if how == "cancel" else signal.SIGINT), errors.decode()
    until(lambda: not RunDir(out).running())
    assert len(overview(out).waiting) == 2


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNode]:
    if why_not():
        pytest.skip(why_not())
    with slurm_node(tmp_path_factory.mktemp("slurm")) as node:
        yield node


@pytest.mark.slurm
def test_an_array_of_slurm_makes_the_attacks_though_jobs_are_cancelled_or_put_back(node: SlurmNode, out: Path) -> None:
    launcher = start("attack", "-o", str(out), "-a", "mi-face,label-gap", *TINY, "--launcher", "slurm",
                     "--partition", "low", "--time", "30", "-q")  # fmt: skip
    until(lambda: len(node.queue()) == 4)
    until(lambda: len(RunDir(out).running()) > 0)
    cancelled, put_back = sorted(node.queue())[:2]
    node.run("scancel", cancelled)
    node.run("scontrol", "requeue", put_back)
    _, errors = launcher.communicate(timeout=500)
    assert launcher.returncode == 0, errors.decode()
    assert len(attacks(out)) == 4
    assert (out / "attacks" / "compare-digits-mi-face.png").exists()
    assert node.queue() == {}
