"""`bench report` for users: its output and its error messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.results.record import Record
from bench.results.run_dir import RunDir
from helpers.commands import Done
from helpers.commands import bench as run_bench
from helpers.records import record


def bench(*words: str) -> Done:
    return run_bench("report", *words)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = RunDir(tmp_path_factory.mktemp("report") / "runs").create()
    kept: list[Record] = [record(seed=seed, key=f"p{seed}") for seed in range(3)]
    for one in kept:
        run_dir.write_record(one)
    nan = record(key="nan", method="dgd").to_json().replace('"accuracy": 0.95', '"accuracy": "NaN"')
    (run_dir.records_path / "nan.json").write_text(nan)
    (run_dir.records_path / "torn.json").write_text("{")
    return run_dir.path


def test_the_command_draws_and_says_what_is_missing(runs: Path, tmp_path: Path) -> None:
    done = bench("--paper", "pate", "--table", "4", "--figure", "3", str(runs), "--into", str(tmp_path), "-q")
    assert done.returncode == 0, done.stderr
    for words in ("table 4", "figure 3", "3 of 22", "no cells", "python -m bench run --methods pate"):
        assert words in done.stdout
    assert done.stdout.splitlines()[-1] == "3 of 22 cells are filled"
    assert "torn.json is damaged" in done.stderr
    assert "nan.json is damaged (field utility.accuracy: Input should be a finite number)" in done.stderr
    index = (tmp_path / "index.md").read_text()
    assert "![Gap between the two largest votes](pate/figure-3.png)" in index
    assert "torn.json" in index
    assert (runs / "records" / "torn.json").exists()


def test_the_command_in_json(runs: Path, tmp_path: Path) -> None:
    done = bench("--paper", "pate", "--table", "4", str(runs), "--into", str(tmp_path), "--json")
    told = json.loads(done.stdout)
    (table,) = told["artefacts"]
    assert (table["paper"], table["number"], table["wanted"]) == ("pate", "4", 22)
    assert all(command.startswith("python -m bench ") for command in told["commands"])
    assert len(told["warnings"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--paper", "dgd"), "say what to draw: --figure N, --table N or --all"),
        (("--figure", "3"), "need --paper, one of: dgd"),
        (("--paper", "dgd", "--all", "--table", "I"), "either --all, or --figure and --table"),
        (("--paper", "dgf", "--all"), "Did you mean 'dgd'?"),
        (("--paper", "dgd", "--figure", "1"), "Accepted: 3, 4, 5, 6, 7, 8, 9."),
        (("--paper", "dgd", "--table", "7"), "there is no drawing for table '7' of dgd"),
        (("--paper", "dgd", "--table", "I", "/nowhere/at/all"), "no such run directory"),
    ],
)
def test_mistakes_are_told_in_one_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    from bench.cli.main import app

    with pytest.raises(BenchError) as caught:
        app(["report", *words, "--into", str(tmp_path / "out")], standalone_mode=False)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_mistake_has_no_traceback(tmp_path: Path) -> None:
    done = bench("--paper", "dgd", "--figure", "1", "--into", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no drawing for figure '1' of dgd")
    assert "Traceback" not in done.stderr
