"""`bench report` for users: its output and its error messages."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli import report_output
from bench.core.config import Grid
from bench.core.errors import BenchError
from bench.core.options import GridOptions
from bench.launchers import grid
from bench.launchers.grid import Ran
from bench.launchers.settings import Cluster
from bench.launchers.worker import Outcome
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
    assert "nan.json is damaged (field utility.accuracy: it must be a finite number)" in done.stderr
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
        (("--paper", "dgd", "--all", "--launcher", "local"), "--launcher makes what --missing lists: give both"),
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


def test_a_launcher_gets_the_grids_of_the_printed_commands(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Grid] = []
    commands: list[list[str]] = []

    def run(grids: Sequence[Grid], out: Path, progress: object, settings: Cluster, *_: object) -> Ran:
        assert (out, settings.launcher, settings.jobs) == (tmp_path / "made", "local", 2)
        asked.extend(grids)
        return Ran([], [], Outcome())

    def command(words: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        commands.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(grid, "run_grid", run)
    monkeypatch.setattr(report_output.subprocess, "run", command)
    words = ["--paper", "pate", str(runs), "--missing"]
    listed = json.loads(bench(*words, "--json").stdout)["missing"]
    printed = {line for one in listed if one["reason"] != "no data" for line in one["commands"]}
    done = bench(*words, "--launcher", "local", "--jobs", "2", "-o", str(tmp_path / "made"), "-q")
    assert done.returncode == 0, done.stderr
    of_runs = {line for line in printed if line.startswith("python -m bench run ")}
    assert of_runs
    assert _by_epsilon(asked) == _by_epsilon(map(_grid, of_runs))
    assert {shlex.join(["python", *words[1:-7]]) for words in commands} == printed - of_runs
    assert all(words[-5:] == ["--launcher", "local", "--jobs", "2", "--quiet"] for words in commands)


def _grid(line: str) -> Grid:
    words = shlex.split(line)[4:]
    given = {flag[2:]: value for flag, value in zip(words[::2], words[1::2], strict=True) if flag != "--set"}
    given["set_"] = [value for flag, value in zip(words[::2], words[1::2], strict=True) if flag == "--set"]
    return GridOptions(**given).grid()


def _by_epsilon(grids: Iterable[Grid]) -> set[Grid]:
    return {replace(one, epsilons=(epsilon,)) for one in grids for epsilon in one.epsilons}
