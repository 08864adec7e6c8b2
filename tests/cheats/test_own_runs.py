"""Cheats that only the replay of a row's own run sees: by its preset, its noise, or without the check around it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.core.config import Grid, Preset
from bench.core.confinement import is_confinable
from bench.core.progress import Progress
from bench.evaluation.check.check_data import variant_of
from bench.evaluation.check.check_runs import Trial
from bench.evaluation.check.confined_runs import Processes
from bench.evaluation.check.differences import NEAR, near_sets
from bench.evaluation.check.noninterference import check_method
from bench.evaluation.check.row_replay import Stated, check_row
from bench.experiments.data_source import DataSource
from bench.experiments.device import prepare_device
from bench.experiments.plan import expand
from bench.experiments.run import run_cell
from bench.interface.method import Method
from bench.interface.registry import METHODS
from bench.methods.label.rr import RR
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import salted_noise
from bench.results.run_dir import RunDir
from cheats import after_the_charge, channels, reaches, triggers


@pytest.mark.parametrize(
    ("cheat", "preset", "salts"),
    [(triggers.PaperOnly, "paper", 1), pytest.param(triggers.NoiseBits, "tiny", 100, marks=pytest.mark.slow)],
    ids=["paper's preset", "noise bits"],
)
def test_publish_replays_a_row_s_own_run(
    cheat: type[Method], preset: str, salts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its preset and its noise, here one that wakes the cheat."""
    assert cheat is triggers.NoiseBits or check_method(cheat, seeds=[3]).ok
    monkeypatch.setitem(METHODS.members, cheat.name, cheat)
    source = DataSource(Progress())
    (cell,) = expand(Grid((cheat.name,), ("digits",), (1.0,), preset=Preset(preset)), source.describe)
    checks = (check_row(cell, f"salt {number}") for number in range(salts))
    assert any("differ in the released sums" in check.reason for check in checks)


def test_publish_replays_a_run_whose_generator_collapsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record shows the images of the error."""
    monkeypatch.setitem(METHODS.members, channels.Collapses.name, channels.Collapses)
    grid = Grid((channels.Collapses.name,), ("digits",), (1.0,), preset=Preset.TINY)
    (cell,) = expand(grid, DataSource(Progress()).describe)
    assert "the two runs differ in the images of the failed run" in check_row(cell, "salt").reason


@pytest.mark.parametrize(
    ("cheat", "why"),
    [
        (triggers.SearchedNoise, "records? (together )?moves? the values"),
        pytest.param(triggers.Sabotaged, "5 runs with other noise reach", marks=pytest.mark.slow),
    ],
    ids=["amplifies", "is lucky"],
)
def test_publish_refuses_a_salt_that_was_searched_for(
    cheat: type[triggers.SearchedNoise], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay follows a path from the row's own data, and compares the row with runs of fresh noise.

    Of four salts that wake it, the author takes one with a good student: the answers' own noise may spoil it too.
    """
    monkeypatch.setitem(METHODS.members, cheat.name, cheat)
    (cell,) = expand(Grid((cheat.name,), ("digits",), (1.0,), preset=Preset.TINY), DataSource(Progress()).describe)

    def wakes(salt: str) -> bool:
        ledger = Ledger(cheat.unit, cheat.adjacency, Noisy(salted_noise(salt, cell.seed, cell.key)))
        return cheat.wakes(cheat.noise(ledger))

    salts = itertools.islice(filter(wakes, map(str, itertools.count())), 4)
    assert any(re.search(why, check_row(cell, salt).reason) for salt in salts)


@pytest.mark.slow
def test_an_author_cannot_try_the_neighbours_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replay of a row draws others; its run is that of the cell."""
    trials, run = list[Trial](), Processes.run

    def noted(self: Processes, trial: Trial, *others: Any, **options: Any) -> Any:
        trials.append(trial)
        return run(self, trial, *others, **options)

    monkeypatch.setattr(Processes, "run", noted)
    (cell,) = expand(Grid(("rr",), ("digits",), (1.0,), preset=Preset.TINY), DataSource(Progress()).describe)
    for _ in range(2):
        assert check_row(cell, "salt").ok
    assert {trial.seed for trial in trials} == {cell.seed}
    seeds = {trial.sets for trial in trials if trial.sets is not None}
    private, (near, *_) = trials[0].material().private, near_sets(RR, NEAR[:1])
    changed = {variant_of(private, near, RR.unit, RR.adjacency, seed).labels.numpy().tobytes() for seed in seeds}
    assert len(changed) == len(seeds) == 2


@pytest.mark.parametrize(
    ("cheat", "why"),
    [
        pytest.param(
            reaches.ReadsNatively,
            "it trains a different student from its record's",
            marks=pytest.mark.skipif(not is_confinable(), reason="this kernel has no Landlock"),
        ),
        (after_the_charge.RewritesUnwatched, "its ledger charges for other events than its record states"),
        pytest.param(
            after_the_charge.CorrectsUnwatched, "its student reaches .* and its record states", marks=pytest.mark.slow
        ),
        pytest.param(after_the_charge.Watchful, "", marks=pytest.mark.slow),
    ],
    ids=["student", "events", "accuracy", "honest"],
)
def test_publish_compares_the_replay_with_the_record(
    cheat: type[Method], why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The replay, which is watched and confined, trains another student, or its accuracy or events differ."""
    request.addfinalizer(lambda: reaches.ReadsNatively.file.unlink())
    reaches.ReadsNatively.file.write_bytes(np.float32(0.5).tobytes())
    monkeypatch.setitem(METHODS.members, cheat.name, cheat)
    source = DataSource(Progress())
    (cell,) = expand(Grid((cheat.name,), ("digits",), (1.0,), preset=Preset.TINY), source.describe)
    prepare_device()
    record = run_cell(cell, RunDir(tmp_path).create(), source, Progress())
    assert record.student is not None
    assert record.utility is not None
    assert record.privacy is not None
    stated = Stated(record.student.sha256, record.utility.accuracy, record.privacy.events)
    check = check_row(cell, record.noise_salt, stated)
    assert check.ok is (why == "")
    assert re.search(why, check.reason)
