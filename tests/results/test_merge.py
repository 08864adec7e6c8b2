"""Merging run directories keeps every finished row once and complete, and overwrites nothing."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.results.merge import merge
from bench.results.record import Failure, ImageGrid, Record, Status, Student
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.pairs import pair_audit
from helpers.records import record
from helpers.site import attack

WEIGHTS = b"weights"


def put(run: RunDir, row: Record, weights: bytes = WEIGHTS) -> Record:
    run.create()
    row = row.model_copy(
        update={
            "student": Student(
                name="small_cnn", options={}, parameters=1, file=f"released/{row.key}.safetensors",
                sha256=hashlib.sha256(WEIGHTS).hexdigest(),
            )
        }
    )  # fmt: skip
    assert row.student is not None
    (run.path / row.student.file).parent.mkdir(exist_ok=True)
    (run.path / row.student.file).write_bytes(weights)
    run.write_record(row)
    return row


@pytest.fixture
def runs(tmp_path: Path) -> tuple[RunDir, RunDir, RunDir]:
    first, second, into = (RunDir(tmp_path / name) for name in ("first", "second", "into"))
    return first, second, into


def test_rows_of_several_directories_come_together_with_their_files(runs: tuple[RunDir, RunDir, RunDir]) -> None:
    first, second, into = runs
    made = [put(first, record(seed=0)), put(second, record(seed=1))]
    second.write_row(pair_audit(student=made[1].key))
    (second.cache_path / "private").mkdir(parents=True)
    done = merge([first, second], into)
    assert done.added == [made[0].key, made[1].key, f"{made[1].key}--audit-1"]
    assert into.read_records().found == made
    assert into.read_audits()[0] == second.read_audits()[0]
    assert all((into.path / row.student.file).read_bytes() == WEIGHTS for row in made if row.student)
    assert not list(into.cache_path.glob("*")), "what is private stays where it is"
    again = merge([first, second], into)
    assert (again.added, again.left_out) == ([], [])
    assert again.there == done.added


def test_another_row_of_the_same_key_stays_but_a_failure_gives_way(runs: tuple[RunDir, RunDir, RunDir]) -> None:
    first, _, into = runs
    put(first, record(seed=0, accuracy=0.5))
    here = put(into, record(seed=0, accuracy=0.6))
    failed = record(seed=1, status=Status.FAILED, failure=Failure(kind="error", reason="killed"), utility=None)
    into.write_record(failed)
    success = put(first, record(seed=1))
    done = merge([first], into)
    assert done.added == [success.key]
    assert [line.partition(":")[0] for line in done.left_out] == [here.key]
    assert into.read_record(here.key) == here
    assert into.read_record(success.key) == success
    back = merge([into], first)
    assert back.there == [success.key]


def test_a_row_without_its_files_is_left_out(runs: tuple[RunDir, RunDir, RunDir], tmp_path: Path) -> None:
    first, _, into = runs
    other = put(first, record(seed=0), weights=b"other weights")
    missing = put(first, record(seed=1))
    assert missing.student is not None
    (first.path / missing.student.file).unlink()
    (tmp_path / "secret").write_bytes(b"")
    grid = ImageGrid(file="../secret", sha256="")
    outside = put(first, record(seed=2, image_grid=grid))
    (first.path / "released" / "grid.png").write_bytes(b"other picture")
    drawn = put(first, record(seed=3, image_grid=ImageGrid(file="released/grid.png", sha256="0" * 64)))
    first.write_row(pair_audit(student="not-here"))
    done = merge([first], into)
    assert done.added == []
    reasons = dict(line.split(": ", 1) for line in done.left_out)
    assert "is not what was released" in reasons[other.key]
    assert "grid.png is not what was released" in reasons[drawn.key]
    assert "cannot be read (No such file" in reasons[missing.key]
    assert "outside" in reasons[outside.key]
    assert "no record of its student" in reasons["not-here--audit-1"]
    assert not into.read_records().found


def test_an_attack_on_other_weights_is_left_out(runs: tuple[RunDir, RunDir, RunDir]) -> None:
    first, second, into = runs
    here, same = put(into, record(seed=0)), put(first, record(seed=1))
    there = record(seed=0).model_copy(update={"noise_salt": "5" * 64})
    there = there.model_copy(update={"student": here.student.model_copy(update={"sha256": "0" * 64})})
    second.create().write_record(there)
    second.write_row(attack(here.key))
    first.write_row(attack(same.key))
    done = merge([first, second], into)
    assert [row.student for row in into.read_attacks()[0]] == [same.key]
    assert f"{attack(here.key).key}: it attacked another student than the one that is there." in done.left_out


def test_a_cell_that_runs_in_the_target_is_left_alone(runs: tuple[RunDir, RunDir, RunDir]) -> None:
    first, _, into = runs
    row = put(first, record(seed=0))
    held = into.create().claim(row.key)
    assert held is not None
    with held:
        assert merge([first], into).left_out == [f"{row.key}: it is running in {into.path}."]
        assert into.read_record(row.key) is None
    assert merge([first], into).added == [row.key]


def test_the_command_says_what_it_did(runs: tuple[RunDir, RunDir, RunDir]) -> None:
    first, second, into = runs
    put(first, record(seed=0))
    done = bench("merge", first.path, "--out", into.path)
    assert (done.returncode, done.stdout) == (0, f"1 added to {into.path}, 0 already there, 0 left out\n")
    put(second, record(seed=0, accuracy=0.1))
    done = bench("merge", second.path, "--out", into.path)
    assert done.returncode == 1
    assert "another one is there" in done.stderr
    with pytest.raises(BenchError, match="is the target of the merge"):
        merge([into], into)
    assert bench("merge", first.path.parent / "nowhere", "--out", into.path).returncode == 2


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "link out", "folder that is a link out"])
def test_a_strangers_file_that_is_no_plain_one_is_left_out(
    kind: str, runs: tuple[RunDir, RunDir, RunDir], tmp_path: Path
) -> None:
    first, _, into = runs
    row = put(first, record())
    assert row.student is not None
    path = first.path / row.student.file
    outside = tmp_path / "outside"
    path.parent.rename(outside)
    if kind == "folder that is a link out":
        path.parent.symlink_to(outside)
    else:
        path.parent.mkdir()
        os.mkfifo(path) if kind == "pipe" else path.symlink_to(outside / path.name)
    done = merge([first], into)
    (line,) = done.left_out
    assert "not a regular file" in line or "outside of its directory" in line
    assert (done.added, list(into.released_path.iterdir())) == ([], [])
