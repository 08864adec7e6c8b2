"""Intervals of accuracies over seeds and test records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.metrics.intervals import accuracy_interval


@pytest.mark.parametrize(
    ("accuracies", "records", "interval"),
    [
        ([0.5], 100, (0.403830, 0.596170)),  # by scipy.stats.binomtest(...).proportion_ci(method="wilson")
        ([0.0], 10, (0.0, 0.277533)),
        ([0.97] * 3, 1000, (0.957497, 0.978906)),  # equal seeds leave the test records alone
        ([0.96, 0.97, 0.98], 10**9, (0.945159, 0.994841)),  # 4.302653 * 0.01 / sqrt(3) about the mean
    ],
)
def test_intervals_of_known_cases(accuracies: list[float], records: int, interval: tuple[float, float]) -> None:
    assert accuracy_interval(accuracies, records) == pytest.approx(interval, abs=2e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers(1, 10_000))
def test_an_interval_holds_the_mean_and_lies_among_shares(accuracies: list[float], records: int) -> None:
    low, high = accuracy_interval(accuracies, records)
    mean = float(np.mean(accuracies))
    assert -1e-9 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1 + 1e-9


@given(st.lists(st.floats(0.2, 0.8), min_size=2, max_size=5), st.integers(50, 1_000))
def test_seeds_that_differ_and_fewer_test_records_widen_it(accuracies: list[float], records: int) -> None:
    def width(found: list[float], count: int) -> float:
        low, high = accuracy_interval(found, count)
        return high - low

    mean = float(np.mean(accuracies))
    assert width(accuracies, records) >= width([mean] * len(accuracies), records) - 1e-9
    assert width([mean], records) > width([mean], 2 * records)


def test_it_covers_the_expected_accuracy_as_often_as_it_says() -> None:
    """Three seeds whose accuracies differ, measured on the same test records of shared difficulty."""
    draws, seeds, records, spread = np.random.default_rng(0), 3, 500, 0.02
    truth, held = 0.9, 0
    for _ in range(400):
        luck = draws.normal(0, np.sqrt(truth * (1 - truth) / records))  # of the test records, for all seeds
        low, high = accuracy_interval(list(np.clip(truth + luck + draws.normal(0, spread, seeds), 0, 1)), records)
        held += low <= truth <= high
    assert held >= 0.93 * 400
