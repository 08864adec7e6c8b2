"""60 cells of methods of MNIST's board, one after the other and by two processes: `pytest -m performance -n 0 -s FILE`.

The runs are paired: 20 cells of one seed at a time, in both orders, each run with its own cache. The test prints ratios
of wall-clock time, including the start of processes, and of CPU time. It fetches MNIST if it is not stored.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.launches import outcome
from helpers.paths import ROOT

METHODS = "pate,pate-gnmax,pate-confident,pate-bayes,diet-pate,dpsd,dpsd-sound,dgd,dgd-plus,dgd-sound"


def cpu() -> float:
    """Return the CPU seconds of all processes so far; the fork server, which nobody waits for, ends as a child here."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(out: Path, seed: int, *options: str) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a run of 20 cells."""
    command = [
        sys.executable, "-m", "bench", "run", "-m", METHODS, "-d", "mnist", "-e", "5,10", "-s", str(seed), "-p", "tiny",
        "--device", "cpu", "--noise-salt", "none", "-q", "-o", str(out), *options,
    ]  # fmt: skip
    begin, used = time.perf_counter(), cpu()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in (0, 1), done.stderr  # 1: a row fails, in both runs, if too few of the ten teachers agree
    return time.perf_counter() - begin, cpu() - used


@pytest.mark.performance
@pytest.mark.timeout(3600)
def test_two_processes_give_the_records_of_one_for_little_more_work(tmp_path: Path) -> None:
    adopt_orphans = 36  # linux/prctl.h: PR_SET_CHILD_SUBREAPER
    ctypes.CDLL(None).prctl(adopt_orphans, 1)
    subprocess.run([sys.executable, "-m", "bench", "data", "get", "mnist"], check=True, capture_output=True, cwd=ROOT)
    launchers = {"inline": ("--launcher", "inline"), "local": ("--launcher", "local", "--jobs", "2")}
    waited, worked = [], []
    for seed in range(3):
        order = list(launchers) if seed % 2 == 0 else list(launchers)[::-1]
        took = {name: run(tmp_path / f"{name}-{seed}", seed, *launchers[name]) for name in order}
        assert len(outcome(tmp_path / f"inline-{seed}")) == 20
        assert outcome(tmp_path / f"local-{seed}") == outcome(tmp_path / f"inline-{seed}")
        waited.append(took["local"][0] / took["inline"][0])
        worked.append(took["local"][1] / took["inline"][1])
        print(f"20 cells: inline {took['inline'][0]:.0f} s, local {took['local'][0]:.0f} s; "
              f"CPU {took['inline'][1]:.0f} and {took['local'][1]:.0f} s", flush=True)  # fmt: skip
    mean = [math.prod(ratios) ** (1 / 3) for ratios in (waited, worked)]
    print(f"two processes to one, of 60 cells: {mean[0]:.2f} of the time, {mean[1]:.2f} of the CPU time")
    assert mean[1] < 1.5
