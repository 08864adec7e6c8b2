"""The command for machines with GPUs, on this CPU: its plan of time, and the whole of it at preset tiny."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.core.config import Grid, Preset
from bench.core.progress import Progress
from bench.launchers.bundle import pack, unpack
from bench.results.run_dir import RunDir
from gpu.run import Plan, Stage, stages
from helpers.launches import nothing_is_left_over, until
from helpers.paths import ROOT


def python(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", text]


def test_stages_that_do_not_fit_are_left_out_and_slow_ones_are_stopped(tmp_path: Path) -> None:
    plan = Plan(tmp_path / "work", tmp_path / "all", time.monotonic() + 30)
    assert plan.run(Stage("long", 40, 60, [python("")])).startswith("left out: it takes 40 s or more, and ")
    begin = time.monotonic()
    child = tmp_path / "child"
    slow = f"import os, time; open({str(child)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    assert plan.run(Stage("slow", 0, 1, [python(slow), python("")])).startswith("stopped after 1 s")
    assert time.monotonic() - begin < 5
    assert not Path("/proc", child.read_text()).exists()
    assert not plan.failed


def test_a_stage_that_passed_is_not_repeated_and_one_that_failed_is(tmp_path: Path) -> None:
    plan = Plan(tmp_path / "work", tmp_path / "all", time.monotonic() + 30)
    assert plan.run(Stage("good", 0, 20, [python("print('ratio 21')")])) == "passed in 0 s: ratio 21"
    assert plan.run(Stage("good", 0, 20, [python("raise SystemExit(1)")])) == "passed before: ratio 21"
    assert not plan.failed
    bad = Stage("bad", 0, 20, [python("print('ratio 19'); raise SystemExit(1)")])
    assert plan.run(bad).startswith("FAILED after 0 s: ratio 19")
    assert plan.failed
    assert plan.run(bad).startswith("FAILED")


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_every_stage_starts_python(gpus: int, tmp_path: Path) -> None:
    source = tmp_path / "some.zip"
    pack(Grid(("pate",), ("digits",), (2.04,), preset=Preset.TINY), source, Progress())
    planned = stages({source: unpack(source, tmp_path / "data", Progress())}, tmp_path, gpus)
    assert [stage.name for stage in planned if stage.name == "apart"] == ["apart"] * min(gpus, 1)
    for command in (command for stage in planned for command in stage.commands):
        assert command[0] == sys.executable
        assert [word for word in command[1:2] if word == "-m" or Path(word).is_file()], command


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_command_at_preset_tiny_without_a_network_killed_and_given_again(tmp_path: Path) -> None:
    source = tmp_path / "papers.zip"
    pack(Grid(("pate", "dpsd", "dgd"), ("digits",), (2.04,), preset=Preset.TINY), source, Progress())
    alone = ["unshare", "-rn"] if shutil.which("unshare") else []
    if alone and subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        alone = []
    work, into = tmp_path / "work", tmp_path / "all"
    command = [
        *alone, sys.executable, str(ROOT / "tests" / "gpu" / "run.py"), str(source), "--cpu", "--into", str(into),
        "--work", str(work), "--minutes", "30",
    ]  # fmt: skip
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "empty"), "PYTHONPATH": ""}
    environment.pop("BENCH_DATA", None)
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("cells: passed"):
            break
    # Until a record lies below `work`, and not yet in `into`: it is merged all the same.
    until(lambda: any(work.glob("papers/records/*.json")) or first.poll() is not None, 300)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 128 + signal.SIGTERM
    first.stdout.close()
    assert any("eps2.04" in record.key for record in RunDir(into).read_records().found)
    again = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "speed: passed before: largest ratio" in again.stdout
    assert "cells: passed before: Accuracy in bf16" in again.stdout
    assert "bundles: passed in" in again.stdout
    records = RunDir(into).read_records().found
    assert sorted((record.cell.method, str(record.cell.precision)) for record in records) == [
        ("dgd", "float32"),
        ("dpsd", "float32"),
        ("pate", "bf16"),
        ("pate", "float32"),
        ("pate", "float32"),
    ]
    nothing_is_left_over(into)
