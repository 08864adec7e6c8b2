"""What tests of printed numbers share."""

from __future__ import annotations

from bench.reports.reported.numbers import Reported, read_reported

ROWS = read_reported()


def one(paper: str, table: str, system: str, dataset: str, epsilon: float | None, setting: str = "") -> Reported:
    """Return the one accuracy that a place of a paper prints."""
    found = {
        r.value: r
        for r in ROWS
        if (r.paper, r.table, r.system, r.dataset, r.epsilon, r.setting, r.measure)
        == (paper, table, system, dataset, epsilon, setting, "accuracy")
    }
    (row,) = found.values()
    return row
