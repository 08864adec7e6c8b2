"""The README's table holds the best methods, and names the others."""

from __future__ import annotations

from bench.reports.leaderboard import build_board
from bench.reports.summary import MOST, summary
from helpers.records import record


def test_methods_beyond_the_table_are_named_below_it() -> None:
    records = [record(method=f"m{n:02}", key=f"m{n:02}", accuracy=0.5 + n / 100) for n in range(MOST + 2)]
    text = summary(build_board(records))
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| m")]
    assert rows == ["method", *(f"m{n:02}" for n in range(MOST + 1, 1, -1))]
    assert text.endswith("\n\nFurther methods on the board: m01, m00.\n")
    assert "Further" not in summary(build_board(records[2:]))


def test_a_method_with_one_of_the_two_targets_comes_after_those_with_both() -> None:
    both = [record(method="both", key=f"both{epsilon}", epsilon=epsilon, accuracy=0.5) for epsilon in (1.0, 10.0)]
    found = summary(build_board([record(method="one", key="one", accuracy=0.9), *both]))
    assert found.index("| both |") < found.index("| one |")
