"""Large plans, and the glance at a record that their states come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.config import Grid
from bench.core.types import Facts
from bench.experiments.plan import Cell, Dataset, State, expand, keyed, states
from bench.results.record import Glance, Record, Status, Student, glance, parse_record
from bench.results.run_dir import RunDir
from helpers.paths import ROOT
from helpers.records import failed, record

FACTS = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))


def large_plan(seeds: int) -> list[Cell]:
    grid = Grid(
        methods=("pate", "pate-gnmax", "dgd", "dpsd", "dpsd-sound"),
        epsilons=tuple(float(epsilon) for epsilon in range(1, 21)),
        seeds=tuple(range(seeds)),
    )
    return expand(grid, lambda name: Dataset(name, FACTS, "sha256:0"))


def with_student(key: str) -> Record:
    student = Student(name="small_cnn", options={}, parameters=9, file=f"released/{key}.safetensors", sha256="0" * 64)
    return record(key=key, student=student)


def test_every_cell_of_a_large_plan_has_a_key_and_is_found_done(tmp_path: Path) -> None:
    cells = large_plan(10)
    assert len(cells) == len({cell.key for cell in cells}) == 1_000
    run_dir = RunDir(tmp_path).create()
    text = with_student("KEY").to_json()
    for cell in cells:
        run_dir.record_path(cell.key).write_text(text.replace("KEY", cell.key))
        (run_dir.released_path / f"{cell.key}.safetensors").touch()
    assert set(states(cells, run_dir).values()) == {State.DONE}


def test_keys_of_a_plan_are_those_of_its_cells() -> None:
    for cell in large_plan(10)[::97]:
        assert keyed(cell).key == cell.key


@pytest.mark.parametrize("made", [with_student("a"), record(key="a"), failed(key="a")])
def test_a_look_tells_what_a_plan_needs(made: Record) -> None:
    file = None if made.student is None else made.student.file
    assert glance(made.to_json().encode()) == Glance("a", made.status, file)


def test_committed_records_look_as_they_parse() -> None:
    for path in sorted((ROOT / "leaderboards" / "records").glob("*.json")):
        data = path.read_bytes()
        found = parse_record(data.decode())
        assert glance(data) == Glance(found.key, found.status, found.student.file if found.student else None)


HARD = st.text(st.sampled_from('{}[]",:\\\n\0é \x7f') | st.characters(codec="utf-8"), max_size=30)


@given(reason=HARD, option=HARD, note=HARD)
def test_texts_do_not_mislead_the_look(reason: str, option: str, note: str) -> None:
    student = Student(
        name=option,
        options={option: '\n "student": null,\n', "file": {"file": option}},
        parameters=1,
        file="released/a.safetensors",
        sha256="0" * 64,
    )
    made = record(key="a", student=student, notes=[note, '\n "student": null,\n'], config={option: note})
    assert glance(made.to_json().encode()) == Glance("a", Status.DONE, "released/a.safetensors")
    assert glance(failed(reason, key="a").to_json().encode()) == Glance("a", Status.FAILED, None)


@given(st.data())
def test_record_that_lost_a_part_is_not_done(data: st.DataObject) -> None:
    whole = with_student("a").to_json().encode()
    end = data.draw(st.integers(0, len(whole) - 2))
    assert glance(whole[:end]) is None
    start = data.draw(st.integers(0, len(whole) - 1))
    zeros = bytes(data.draw(st.integers(1, len(whole) - start)))
    assert glance(whole[:start] + zeros + whole[start + len(zeros) :]) is None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"1", b"\xff\xfe\x00", b"\0" * 4096, b'{"schema_version": 99}',
        b'{"schema_version": 3, "key": 2}',
        b'{"schema_version": 3, "key": "KEY", "status": "done", "student": {"file": 3}}',
        b'{"schema_version": 3, "key": "KEY", "status": "well", "student": null}',
        b'{"schema_version": 99, "key": "KEY", "status": "done", "student": null}',
    ],
)  # fmt: skip
def test_garbage_is_not_done(tmp_path: Path, content: bytes) -> None:
    run_dir = RunDir(tmp_path).create()
    (cell,) = expand(Grid(methods=("pate",), epsilons=(10.0,)), lambda name: Dataset(name, FACTS, "sha256:0"))
    run_dir.record_path(cell.key).write_bytes(content.replace(b"KEY", cell.key.encode()))
    assert states([cell], run_dir) == {cell.key: State.TODO}


def test_student_that_is_gone_and_record_under_another_name_are_not_done(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path).create()
    one, two = expand(Grid(methods=("pate",)), lambda name: Dataset(name, FACTS, "sha256:0"))
    run_dir.write_record(with_student(one.key))
    run_dir.record_path(two.key).write_text(record(key=one.key).to_json())
    assert states([one, two], run_dir) == {one.key: State.TODO, two.key: State.TODO}
    (run_dir.released_path / f"{one.key}.safetensors").touch()
    assert states([one, two], run_dir) == {one.key: State.DONE, two.key: State.TODO}
