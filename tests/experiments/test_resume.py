"""A killed and resumed run ends like an uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.commands import bench

GRID = [
    "--methods", "pate,pate-confident,dp-sgd,nonprivate", "--datasets", "digits", "--eps", "8,10", "--preset", "tiny",
    "--workers", "1", "--set", "teachers=25", "--noise-salt", "5" * 64,
]  # fmt: skip


SIX = ["--methods", "nonprivate", "--datasets", "digits", "--seeds", "0,1,2,3,4,5", "--preset", "tiny"]


def start(out: Path, grid: list[str] = GRID) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench", "run", *grid, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def finish(out: Path, grid: list[str] = GRID) -> str:
    done = bench("run", *grid, "--out", out)
    assert done.returncode == 0, done.stderr
    return done.stderr


def outcome(out: Path) -> dict[str, str]:
    """Return all records as text, without provenance, and the released files' hashes."""
    found = {}
    for path in sorted((out / "records").glob("*.json")):
        record = json.loads(path.read_text())
        assert record.pop("provenance")["wall_seconds"] > 0
        assert record["status"] == "done", record["failure"]
        assert (out / record["student"]["file"]).exists()
        found[path.name] = json.dumps(record)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], float]:
    """What an undisturbed run leaves, and its seconds."""
    out = tmp_path_factory.mktemp("undisturbed") / "runs"
    begin = time.monotonic()
    finish(out)
    return outcome(out), time.monotonic() - begin


def kill_and_continue(out: Path, kills: int, length: float, number: signal.Signals, seed: int) -> None:
    """Kill the run `kills` times, each at a random moment, and let it end.

    A run that ends before it is killed is removed and begun again, so that every kill strikes.
    """
    moments, struck = random.Random(seed), 0
    while struck < kills:
        process = start(out)
        time.sleep(moments.uniform(0.2, max(1.0, length)))
        if process.poll() is None:
            os.killpg(process.pid, number)
            struck += 1
        process.communicate(timeout=120)
        if process.returncode == 0:
            shutil.rmtree(out)
    finish(out)


def no_leftovers(out: Path) -> None:
    assert not list(out.glob("**/*.damaged"))
    assert not list(out.glob("records/damaged/*"))
    assert not list(out.glob("claims/*"))


@pytest.mark.slow
def test_killed_twice(undisturbed: tuple[dict[str, str], float], tmp_path: Path) -> None:
    expected, length = undisturbed
    kill_and_continue(tmp_path / "runs", 2, length / 2, signal.SIGKILL, seed=1)
    assert outcome(tmp_path / "runs") == expected
    no_leftovers(tmp_path / "runs")


@pytest.mark.slow
def test_killed_twenty_times(undisturbed: tuple[dict[str, str], float], tmp_path: Path) -> None:
    expected, length = undisturbed
    kill_and_continue(tmp_path / "runs", 20, length / 2, signal.SIGKILL, seed=2)
    assert outcome(tmp_path / "runs") == expected
    no_leftovers(tmp_path / "runs")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_signal_ends_the_run_in_order(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path / "runs", SIX)
    assert process.stderr is not None
    for line in process.stderr:  # the first finished cell says so
        if b"accuracy" in line:
            break
    process.send_signal(number)
    rest = process.stderr.read().decode()
    assert process.wait(60) == 128 + number
    assert "cells are left" in rest
    assert "Traceback" not in rest
    assert not list((tmp_path / "runs" / "claims").iterdir())
    said = finish(tmp_path / "runs", SIX)
    assert re.search(r"\d of 6 cells (is|are) done already", said)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs" / "records").glob("*.json")}
    assert "6 of 6 cells are done already" in finish(tmp_path / "runs", SIX)
    assert {path: path.stat().st_mtime_ns for path in before} == before
