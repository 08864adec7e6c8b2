"""A published row stays readable, and its board can be rebuilt, without its plug-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.publishing.publish import examine, rebuild, write
from bench.publishing.reproduce import missing_plugin
from bench.publishing.validate import vet_audit, vet_record
from bench.reports.pages import gather
from bench.results.record import Record, parse_record
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.paths import BOARD
from helpers.publishing import AUDIT, PATE, put, refusals, values_of

WHY = "plug-in private-knn 0.3.1 not installed here"
KEY = PATE.replace("pate", "private-knn")


@pytest.fixture
def board(into: Path) -> Path:
    """The board of the other tests, with a record and an audit of a method that is not installed."""
    put(into, foreign())
    text = (BOARD / "audits" / f"{AUDIT}.json").read_text()
    (into / "audits").mkdir()
    (into / "audits" / f"{AUDIT.replace(PATE, KEY)}.json").write_text(
        text.replace(PATE, KEY).replace('"method": "pate"', '"method": "private-knn"')
    )
    return into


def foreign() -> dict[str, object]:
    values = values_of(PATE)
    values["key"] = KEY
    values["cell"] |= {
        "method": "private-knn",
        "plugin": {"distribution": "private-knn", "version": "0.3.1", "source_sha256": "5" * 64},
    }
    values["student"]["file"] = f"released/{KEY}.safetensors"
    return values


def record_of(board: Path) -> Record:
    return parse_record((board / "records" / f"{KEY}.json").read_text())


def test_the_pages_name_the_plugin(board: Path) -> None:
    rebuild(board)
    (line,) = [line for line in (board / "leaderboard.md").read_text().splitlines() if "private-knn |" in line]
    assert "plug-in private-knn 0.3.1" in line
    assert "plug-in private-knn 0.3.1" in (board / "leaderboard.csv").read_text()
    assert "not in this repository" in (board / "site" / "methods" / "private-knn.html").read_text()
    assert gather([board]).warnings == []


@pytest.mark.parametrize(
    "words", [("leaderboard",), ("ls",), ("show", KEY, "-o"), ("report", "--paper", "dgd", "--table", "I", "-q")]
)
def test_commands_read_the_board(board: Path, words: tuple[str, ...], tmp_path: Path) -> None:
    out = ("--into", tmp_path / "out") if words[0] in ("leaderboard", "report") else ()
    done = bench(*words, board, *out)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if words[0] in ("ls", "show"):
        assert WHY in done.stdout


def test_checks_that_need_it_are_skipped_with_the_reason(board: Path) -> None:
    record = record_of(board)
    assert missing_plugin(record) == WHY
    vetted = vet_record(record, published=True)
    assert vetted.problems == []
    assert vetted.unchecked == [f"key, settings and epsilons: {WHY}"]
    edited = record.model_copy(update={"notes": ["read from /home/alice/data/x.npy"]})
    assert vet_record(edited, published=True).problems  # checks that need no method still run
    (audit,) = RunDir(board).read_audits()[0]
    assert vet_audit(audit, record) == []


def test_it_cannot_be_added_without_its_plugin(into: Path, tmp_path: Path) -> None:
    put(tmp_path / "runs", foreign())
    assert any("install its package" in line for line in refusals(tmp_path / "runs", into))


def test_other_records_are_published_beside_it(board: Path, run: Path) -> None:
    write(examine([run], board), board)
    rebuild(board)
    text = (board / "leaderboard.md").read_text()
    assert "| pate | 10 (claimed)" in text
    assert "| private-knn | 10 (claimed)" in text
