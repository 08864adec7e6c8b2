"""Ratios of running times: `pytest -m performance -n 0 -s tests/performance`."""

from __future__ import annotations

import pytest

from performance.ensembles import Setting, close, rows_of


@pytest.mark.performance
def test_on_a_cpu_this_projects_loop_is_not_slower_than_a_plain_one() -> None:
    setting = Setting(data="synthetic", teachers=4, in_loop=4, steps=150)
    # Time both orders, because other processes on the machine may slow down either run.
    rows = rows_of(setting, ["plain loop", "this project's loop", "this project's loop", "plain loop"])
    plain, ours = (min(rows[i].milliseconds for i in places) for places in ((0, 3), (1, 2)))
    assert ours < 1.1 * plain
    assert close(rows[0], rows[1])
