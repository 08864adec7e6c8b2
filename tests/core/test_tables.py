"""Tables on the terminal: at any width, no word or number is broken."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from bench.cli.run import print_board
from bench.core.progress import print_table
from bench.core.types import PrivacyUnit
from helpers.records import record

word = st.text("abcdefgh0123456789.-=_", min_size=1, max_size=40)
cell = st.lists(word, max_size=8).map(" ".join)


def printed(width: int, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    with mock.patch.dict(os.environ, COLUMNS=str(width)), redirect_stdout(StringIO()) as out:
        print_table("a title", columns, rows)
    return out.getvalue().splitlines()


tables = st.integers(1, 12).flatmap(
    lambda n: st.tuples(st.tuples(*[word] * n), st.lists(st.tuples(*[cell] * n), min_size=1, max_size=4))
)


@given(st.integers(30, 200), tables)
def test_no_word_is_broken_and_no_line_too_long(
    width: int, table: tuple[tuple[str, ...], list[tuple[str, ...]]]
) -> None:
    columns, rows = table
    lines = printed(width, columns, rows)
    for row in rows:
        for each in " ".join(row).split():
            assert any(each in line for line in lines), each
    for line in lines:
        longest = max(map(len, line.split()))
        assert len(line.rstrip()) <= max(width, longest + 4)


ROW = ("mnist-pate-eps1-quick-s0-0869602f3157", "0.98", "a remark that is long enough to fold on narrow terminals" * 2)
COLUMNS = ("key", "claimed", "remarks")


def test_a_narrow_terminal_gets_a_block_for_each_row() -> None:
    lines = printed(80, COLUMNS, [ROW, (ROW[0], "1.00", "")])
    assert lines[:3] == ["a title", f"key: {ROW[0]}", "  claimed: 0.98"]
    assert lines[3].startswith("  remarks: a remark")
    assert lines[-2:] == [f"key: {ROW[0]}", "  claimed: 1.00"], "an empty cell gets no line"


def test_a_wide_terminal_gets_a_table_that_folds_between_words() -> None:
    lines = printed(100, COLUMNS, [ROW])
    assert sum("│" in line for line in lines) > 1
    assert "claimed" in lines[2]


def test_what_fits_is_a_table_on_a_narrow_terminal() -> None:
    assert "│ pate │ 0.98    │" in printed(40, ("key", "claimed"), [("pate", "0.98")])


def test_no_row_is_said() -> None:
    assert printed(80, COLUMNS, []) == ["a title: none"]


def test_a_board_that_would_fold_has_one_line_per_row_and_its_remarks_below() -> None:
    seen = "the student is trained on all private records without noise"
    records = [record(method=name, bypasses=(seen,)) for name in ("the-first-of-them", "the-other-one")]
    records.append(record(method="sound"))
    with mock.patch.dict(os.environ, COLUMNS="160"), redirect_stdout(StringIO()) as out:
        print_board(records, [], json_=False)
    lines = out.getvalue().splitlines()
    rows = [line for line in lines if line.startswith("│")]
    assert len(rows) == 3
    assert sum(seen in line for line in lines) == 1
    number = next(line for line in lines if seen in line).split(":")[0]
    assert [number in row.split("│")[-2] for row in rows].count(True) == 2


def test_a_board_of_one_unit_leaves_out_the_others() -> None:
    records = [record(method="of-records"), record(method="of-labels", unit=PrivacyUnit.LABEL)]
    for json_ in (False, True):
        with redirect_stdout(StringIO()) as out:
            print_board(records, [], json_=json_, units={PrivacyUnit.LABEL})
        assert "of-labels" in out.getvalue()
        assert "of-records" not in out.getvalue()


def test_a_board_stays_a_table_at_80_columns_and_names_what_it_hides() -> None:
    records = [record(), record(method="scatter-linear", accuracy=0.9)]
    with mock.patch.dict(os.environ, COLUMNS="80"), redirect_stdout(StringIO()) as out:
        print_board(records, [], json_=False)
    lines = out.getvalue().splitlines()
    (row,) = (line for line in lines if line.startswith("│ scatter-linear"))
    assert [cell.strip() for cell in row.strip("│").split("│")][1:4] == ["10 (claimed)", "4.00", "holds"]
    assert "not shown at this width: claimed; " in out.getvalue()
    assert max(map(len, lines)) <= 80
