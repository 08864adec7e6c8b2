"""Two different results for one key, in directories that are read together, are an error; equal ones count once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import bench
from bench.cli.main import app
from bench.core.errors import BenchError
from bench.reports.papers.evidence import read_evidence
from bench.reports.runs import read_runs
from bench.results.answers import Answers
from bench.results.record import Student
from bench.results.run_dir import RunDir
from helpers.paths import BOARD
from helpers.records import failed, provenance, record
from helpers.site import attack, audit


def command(*words: str) -> Callable[[list[Path], Path], None]:
    def call(folders: list[Path], aside: Path) -> None:
        done = CliRunner().invoke(app, [*words, *map(str, folders), "--into", str(aside)])
        if done.exit_code:
            raise done.exception if isinstance(done.exception, BenchError) else AssertionError(done.output)

    return call


READERS = {
    "leaderboard": command("leaderboard"),
    "report": command("report", "--all"),
    "load_results": lambda folders, aside: bench.load_results(folders),
    "evidence": lambda folders, aside: read_evidence(folders),
}


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "one", tmp_path / "other"]
    for path in made:
        RunDir(path).create().write_record(record())
    return made


@pytest.mark.parametrize("name", READERS)
def test_different_results_of_one_key_are_an_error_that_names_both_places(
    name: str, folders: list[Path], tmp_path: Path
) -> None:
    RunDir(folders[1]).write_record(record(accuracy=0.25))
    for order in (folders, folders[::-1]):
        with pytest.raises(
            BenchError, match=f"{order[0]} and {order[1]} contain different results for the key"
        ) as error:
            READERS[name](order, tmp_path / "pages")
        assert record().key in str(error.value)


@pytest.mark.parametrize("name", ["leaderboard", "load_results"])
def test_the_same_result_twice_counts_once(name: str, folders: list[Path], tmp_path: Path) -> None:
    RunDir(folders[1]).write_record(record(provenance=provenance(wall_seconds=99.0)))
    READERS[name](folders, tmp_path / "pages")
    (found,) = bench.load_results(folders).to_dict("records")
    assert found["wall_seconds"] == 12.5


def test_a_success_counts_instead_of_a_failure(folders: list[Path]) -> None:
    RunDir(folders[0]).write_record(failed())
    for order in (folders, folders[::-1]):
        read = read_runs(order, "")
        assert [one.status for one in read.records.values()] == ["done"]
        assert read.homes == {record().key: folders[1]}


def test_different_audits_and_attacks_of_one_key_are_an_error(folders: list[Path]) -> None:
    for path, epsilon in zip(folders, (0.7, 0.8), strict=True):
        RunDir(path).write_row(audit(record().key).model_copy(update={"epsilon": epsilon}))
    with pytest.raises(BenchError, match=r"different results for the key .*--audit-1"):
        read_runs(folders, "")
    for path, seed in zip(folders, (0, 1), strict=True):
        shutil.rmtree(path / "audits")
        RunDir(path).create().write_row(attack(record().key, seed=seed))
    with pytest.raises(BenchError, match=r"different results for the key .*--mi-face-1"):
        read_runs(folders, "")


def test_the_committed_directories_agree() -> None:
    assert len(read_runs([BOARD, BOARD / "ablations"], "").records) > 1000


def test_a_run_that_adds_only_the_answers_counts_as_the_same_result(folders: list[Path]) -> None:
    """Records of older versions lack them."""
    student = Student(name="linear", options={}, parameters=1, sha256="0" * 64, file="released/a.safetensors")
    whole = record(student=student)
    assert whole.utility is not None
    answers = Answers.of(torch.eye(10), torch.zeros(10, dtype=torch.int64))
    utility = whole.utility.model_copy(update={"answers": answers, "test_records": 10, "accuracy": 0.1})
    whole = whole.model_copy(update={"utility": utility.model_copy(update={"answers": None})})
    RunDir(folders[0]).write_record(whole)
    RunDir(folders[1]).write_record(whole.model_copy(update={"utility": utility}))
    for order in (folders, folders[::-1]):
        (read,) = read_runs(order, "none").records.values()
        assert read.utility == utility
    RunDir(folders[0]).write_record(record(student=student, accuracy=0.25))
    with pytest.raises(BenchError, match="contain different results"):
        read_runs(folders, "none")
