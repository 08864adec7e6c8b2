"""The coverage page counts as the report does, adds up, and gives reasons for empty cells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.cli.main import app
from bench.reports.papers.coverage import Reason, coverage_page
from bench.reports.reported.numbers import read_reported
from bench.results.run_dir import RunDir
from helpers.paths import BOARD
from helpers.records import failed, record


def rows_of(page: str) -> dict[str, list[int]]:
    lines = re.findall(r"^\| ([\w ]+) \| (.*) \|$", page, re.MULTILINE)
    return {
        name: [int(text.replace(",", "")) for text in rest.split(" | ")] for name, rest in lines if rest[0].isdigit()
    }


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board")
    run = RunDir(folder).create()
    run.write_record(record(method="dgd", epsilon=1.0, accuracy=0.75))
    run.write_record(failed(method="dgd", epsilon=10.0))
    return folder


@pytest.mark.slow
def test_counts_are_those_of_the_report(board: Path, tmp_path: Path) -> None:
    words = ["report", str(board), "--paper", "dgd", "--all", "--into", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    rows = rows_of(coverage_page(board, read_reported()))
    for item in json.loads(done.stdout)["artefacts"]:
        assert rows[f"dgd {item['kind']} {item['number']}"][:2] == [item["wanted"], item["filled"]]
    assert rows["dgd table I"][1] > 0


@pytest.mark.slow
def test_missing_lists_each_empty_cell_with_its_reason_and_draws_nothing(board: Path, tmp_path: Path) -> None:
    words = ["report", str(board), "--paper", "dgd", "--missing", "--into", str(tmp_path / "out")]
    told = CliRunner().invoke(app, words)
    rows = rows_of(coverage_page(board, read_reported()))
    whole, filled = (sum(row[n] for name, row in rows.items() if name.startswith("dgd ")) for n in (0, 1))
    assert told.output.endswith(f"{filled} of {whole} cells are filled\n"), told.output
    assert re.search(r"^dgd table II: 6 not run\.\n  python -m bench run ", told.output, re.MULTILINE)
    assert not (tmp_path / "out").exists()
    listed = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert len(listed["missing"]) == whole - filled == whole - listed["filled"]
    one = next(cell for cell in listed["missing"] if cell["item"] == "dgd table II")
    assert one["reason"] == "not run"
    assert one["commands"][0].startswith("python -m bench run")


def test_the_sum_stands_above_the_table(board: Path) -> None:
    page = coverage_page(board, read_reported())
    cells, filled, accuracies, there, *_ = rows_of(page)["all"]
    assert f"**{filled:,} of {cells:,} cells are filled, {there:,} of {accuracies:,} accuracies.**" in page


@pytest.mark.slow
@pytest.mark.parametrize("folder", [BOARD, None], ids=["committed", "small"])
def test_every_empty_cell_has_one_reason_and_columns_add_up(folder: Path | None, board: Path) -> None:
    rows = rows_of(coverage_page(folder or board, read_reported()))
    total = rows.pop("all")
    assert [sum(column) for column in zip(*rows.values(), strict=True)] == total
    for cells, filled, accuracies, there, *empty in rows.values():
        assert len(empty) == len(Reason)
        assert filled + sum(empty) == cells
        assert there <= accuracies <= cells


def test_each_reason_is_told_with_its_command(board: Path) -> None:
    page = coverage_page(board, read_reported())
    table = page.partition("## dgd table I:")[2].partition("\n## ")[0]
    assert "failed: " in table
    assert "more teachers than records" in table
    assert "not run." in table
    assert "python -m bench run --methods dgd-sound" in table
    assert re.search(r"no data: .*celeba-g", page)
    assert re.search(r"not built: .*a t-SNE needs", page)
