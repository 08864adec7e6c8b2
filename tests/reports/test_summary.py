"""The README's table lists the best methods by rank and names the others."""

from __future__ import annotations

from bench.reports.leaderboard import build_board
from bench.reports.summary import MOST, summary
from helpers.records import record


def test_methods_beyond_the_table_are_named_below_it() -> None:
    records = [record(method=f"m{n:02}", key=f"m{n:02}", accuracy=0.5 + n / 100) for n in range(MOST + 2)]
    text = summary(build_board(records))
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| m")]
    assert rows == ["method", *(f"m{n:02}" for n in range(MOST + 1, 1, -1))]
    assert text.endswith("Further methods on the board: m01, m00.\n")
    assert "Further" not in summary(build_board(records[2:]))


def test_a_rank_at_the_first_budget_comes_before_accuracy() -> None:
    at_one = {"epsilon": 1.0, "claimed": 1.0, "proven": 0.9}
    lucky = record(method="lucky", key="lucky", accuracy=0.99, **at_one)
    found = [record(method="sure", key=f"sure{s}", seed=s, accuracy=0.5, **at_one) for s in range(3)]
    text = summary(build_board([lucky, *found, record(method="dear", key="dear", accuracy=0.97)]))
    assert text.index("| sure |") < text.index("| lucky |") < text.index("| dear |")
    assert "| – ¹° | 99.00" in text


def test_a_row_stands_where_its_proof_puts_it_whatever_was_asked() -> None:
    """A row calibrated to 1 that proves 4 does not appear at epsilon 1."""
    text = summary(build_board([record(epsilon=1.0, claimed=1.0, proven=4.0)]))
    (line,) = [line for line in text.splitlines() if line.startswith("| pate |")]
    assert [cell.strip() for cell in line.split("|")][2:7] == ["–"] * 5
