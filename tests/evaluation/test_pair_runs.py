"""Runs of every method on a pair; an audit's training processes end immediately, whatever they are doing."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bench.core.config import Preset, build_config
from bench.core.types import Basis, Budget, Facts, PrivateData, Released
from bench.evaluation.audit.pair_runs import Crew, Runs, release, transcript
from bench.evaluation.audit.pairs import worst_pairs
from bench.evaluation.audit.release_score import best_score
from bench.interface.registry import METHODS
from bench.training.divergence import CollapsedError
from helpers.paths import ROOT


def large(number: int) -> NDArray[np.float64]:
    return np.full(300_000, float(number))  # larger than a pipe: its sender is often in the middle of it


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_crew_that_is_closed_while_results_are_on_their_way_ends(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        crew = Crew(2, apart=True)
        calls = [functools.partial(large, number) for number in range(40)]
        seen = dict(found for found, _ in zip(crew.each(calls, lambda: True), range(3), strict=False))
        crew.close()
        assert all((result == position).all() for position, result in seen.items())
    assert capfd.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_calls_that_run_past_a_crew_s_patience_end_and_others_follow(capfd: pytest.CaptureFixture[str]) -> None:
    """Without patience, the audit of a slow method would last until its run ends, whatever --minutes says."""
    crew = Crew(1, apart=True)
    assert list(crew.each([functools.partial(time.sleep, 3_600)], lambda: False, 1.0)) == []
    begin = time.monotonic()
    assert list(crew.each([functools.partial(time.sleep, 3_600)], lambda: time.monotonic() < begin + 1, 1.0)) == []
    assert [len(found) for _, found in crew.each([functools.partial(large, 1)], lambda: True, 1.0)] == [300_000]
    crew.close()
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_processes_start_where_the_folder_of_temporary_files_has_a_long_name(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    # A server of processes listens at such a socket.
    code = """
from multiprocessing.connection import Listener
from tempfile import gettempdir
from bench.evaluation.check.processes import fresh_processes
fresh_processes()
Listener(family="AF_UNIX").close()
print(gettempdir())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(folder)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, f"{folder}\n"), done.stderr


class Collapsing(METHODS.get("dp-merf")):  # type: ignore[misc]  # local, so that it runs in this process
    """Its images are as gray as a record."""

    def train_student(self, private: PrivateData, *given: Any) -> Released:
        images = private.images[:1].repeat(3, 1, 1, 1)
        raise CollapsedError("the generator collapsed", images, torch.tensor([0, 1, 2]))


def test_the_images_of_a_run_whose_generator_collapses_are_compared() -> None:
    facts = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))
    config = Collapsing(build_config(Collapsing, Preset.TINY, facts)[0], facts).calibrate(Budget(10.0, 1e-5))
    pair = next(pair for pair in worst_pairs(Collapsing, config, facts, 1e-5) if len(pair.first))
    dark, bright = (
        dataclasses.replace(side, images=torch.full_like(side.images, level))
        for side, level in ((pair.first, 0), (pair.first, 255))
    )
    runs = Runs(Collapsing, dataclasses.replace(pair, first=dark, second=bright))
    found = [[release(runs, side, seed) for seed in range(4)] for side in (0, 1)]
    assert all(run["failure"] == 1 for side in found for run in side)
    assert best_score(*found).quality == 1
    assert "images differ" in transcript(runs, False, 0.0, 1e-5).difference


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS.names() if METHODS.get(name).private])
def test_every_method_runs_on_its_first_pair(name: str) -> None:
    method = METHODS.get(name)
    facts = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))
    config, _ = build_config(method, Preset.QUICK, facts)
    config = method(config, facts).calibrate(Budget(10.0, 1e-5, Basis.CLAIMED))
    pair = worst_pairs(method, config, facts, 1e-5)[0]
    found = transcript(Runs(method, pair), False, 0.0, 1e-5)
    assert bool(found.difference) <= bool(method.bypass), found.difference
    assert found.calls > 0 or method.bypass
