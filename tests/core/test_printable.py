"""Text that a terminal, browser or spreadsheet would interpret stays text in every output."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench.core.printable import printable
from bench.core.progress import LineProgress, TreeProgress, echo, print_table
from bench.results.attack_record import AttackRecord
from bench.results.record import Record
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.pairs import pair_audit, release
from helpers.records import failed, record
from helpers.site import attack, audit

ESC = "\x1b]0;title\x07\x1b[31m\x9b1m\u202e\u2066\r[/x][bold]"
"""A title, colours in two notations, text from right to left, a carriage return, and rich's markup."""
SEEN = "␛]0;title␇␛[31m\ufffd1m\ufffd\ufffd␍[/x][bold]"
OBEYED = ("\x1b", "\x07", "\x9b", "\u202e", "\r")


@given(st.text())
def test_only_what_is_obeyed_changes(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert printable(shown) == shown
    assert all(a == b or a < " " or a > "~" for a, b in zip(text, shown, strict=True))


def test_the_signs() -> None:
    assert printable(ESC) == SEEN
    assert printable("a\tb\nc é ∞ 😀") == "a\tb\nc é ∞ 😀"
    assert printable("\udc80\x00\x7f") == "\ufffd␀\ufffd"


def test_tables_and_lines_print_data_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(ESC, (ESC, "b"), [(ESC, "x")])
    echo(ESC)
    with LineProgress().stage(ESC, 1):
        pass
    out, err = capsys.readouterr()
    assert out.count(SEEN) == 4
    assert SEEN in err
    assert not any(sign in out + err for sign in OBEYED)


def test_the_display_of_a_terminal_prints_data_as_it_is() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=200, color_system=None)
    tree = TreeProgress(console)
    with tree.bars, tree.stage(ESC, 1):
        tree.say(ESC + ":smile:")
        tree.doing([(ESC, 0, 1)])
    assert file.getvalue().count(SEEN) >= 3
    assert ":smile:" in file.getvalue()
    assert "\x1b]0;" not in file.getvalue()


def nasty() -> Iterator[Record]:
    yield record(method=ESC, key="a", notes=[ESC], citation=ESC, bypasses=(ESC,), public_data=f"={ESC}")
    yield failed(ESC, method="b", key="b")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run_dir = RunDir(tmp_path / "runs").create()
    for one in nasty():
        run_dir.write_record(one)
    run_dir.write_row(audit("a").model_copy(update={"notes": [ESC]}))
    run_dir.write_row(pair_audit(release(0.2, pair=ESC, seen=ESC), student="a", bypassed=ESC, allowed=math.inf))
    broken: AttackRecord = attack("a", no_power=ESC)
    run_dir.write_row(broken)
    return run_dir.path


@pytest.mark.parametrize("words", [("ls",), ("show", "a", "-o"), ("show", "b", "-o"), ("status",), ("leaderboard",)])
def test_no_command_obeys_a_record(words: tuple[str, ...], run: Path) -> None:
    done = bench(*words, run)
    assert done.returncode == 0, done.stderr
    assert "␛" in done.stdout
    assert not any(sign in done.stdout + done.stderr for sign in OBEYED)


def test_no_page_holds_what_is_obeyed(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "pages"
    assert bench("leaderboard", run, "--into", out).returncode == 0
    report = bench("report", "--paper", "pate", "--table", "4", run, "--into", out / "report", "-q")
    assert report.returncode == 0, report.stderr
    texts = {path: path.read_bytes().decode() for path in out.rglob("*.*") if path.suffix in (".html", ".md", ".csv")}
    assert {path.name for path in texts} >= {
        "index.html",
        "a.html",
        "leaderboard.md",
        "leaderboard.csv",
        "audits.md",
        "attacks.md",
    }
    assert [path for path, text in texts.items() if any(sign in text for sign in OBEYED)] == []
    assert {path.suffix for path, text in texts.items() if "␛" in text} == {".html", ".md", ".csv"}
    assert "'=" in (out / "leaderboard.csv").read_text()


def test_errors_of_a_plugin_do_not_reach_the_terminal(tmp_path: Path) -> None:
    plugin = tmp_path / "evil.py"
    plugin.write_text(f"from bench.core.errors import BenchError\nraise BenchError({ESC!r})\n")
    done = bench("check", plugin)
    assert done.returncode == 2
    assert SEEN in done.stderr
