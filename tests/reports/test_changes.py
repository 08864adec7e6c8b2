"""Changes between two boards."""

from __future__ import annotations

import csv
import io

import pytest

from bench.core.errors import BenchError
from bench.reports.changes import changes
from bench.reports.leaderboard import build_board, to_csv
from helpers.records import record


def test_rows_that_are_new_gone_or_changed_are_listed() -> None:
    steady = record(method="pate", epsilon=1.0)
    before = to_csv(build_board([steady, record(method="dgd", epsilon=1.0), record(method="dpsd", accuracy=0.5)]))
    after = to_csv(build_board([steady, record(method="dpsd", accuracy=0.75), record(method="dp-sgd", epsilon=3.0)]))
    said = changes(before, after)
    assert said.startswith("2 rows are on both boards.")
    added, removed, changed = (said.split(f"## {title}: 1\n")[1] for title in ("Added", "Removed", "Changed"))
    assert "| dp-sgd | 3 (claimed) |" in added.split("##")[0]
    assert "| dgd |" in removed.split("##")[0]
    assert "| dpsd |" in changed
    assert "| accuracy | 50.00 | 75.00 |" in changed
    assert "pate" not in said
    assert changes(after, after) == "3 rows are on both boards.\n"


def test_bounds_stay_bounds_when_printed() -> None:
    board = to_csv(build_board([record(method="pate", epsilon=1.0)]))
    (line,) = csv.DictReader(board.splitlines())
    text = io.StringIO()
    table = csv.DictWriter(text, line)
    table.writeheader()
    table.writerow({**line, "method": "dgd", "proven": "7.88398", "audited": "2.12822"})
    said = changes(board, text.getvalue())
    assert "| 7.89 |" in said
    assert "| 2.12 |" in said


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "dataset,method\nmnist,pate\n"])
def test_another_table_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match=r"this is not a leaderboard\.csv"):
        changes(text, text)
