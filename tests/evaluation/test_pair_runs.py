"""Runs on a pair, of every method; the processes that train for an audit end at once, whatever they are doing."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.core.config import Preset, build_config
from bench.core.types import Basis, Budget, Facts
from bench.evaluation.pair_runs import Crew, Runs, transcript
from bench.evaluation.pairs import worst_pairs
from bench.interface.registry import METHODS


def large(number: int) -> NDArray[np.float64]:
    return np.full(300_000, float(number))  # larger than a pipe: its sender is often in the middle of it


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
@pytest.mark.parametrize("name", [name for name in METHODS.names() if METHODS.get(name).private])
def test_every_method_runs_on_its_first_pair(name: str) -> None:
    method = METHODS.get(name)
    facts = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))
    config, _ = build_config(method, Preset.QUICK, facts)
    config = method.calibrate(config, Budget(10.0, 1e-5, Basis.CLAIMED), facts)
    pair = worst_pairs(method, config, facts, 1e-5)[0]
    found = transcript(Runs(method, pair), False, 0.0, 1e-5)
    assert found.calls > 0 or method.bypass or found.difference
