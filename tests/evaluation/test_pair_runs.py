"""The processes that train for an audit: they end at once, whatever they are doing."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.evaluation.pair_runs import Crew


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
