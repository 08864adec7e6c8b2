"""Atomic files, damaged records, locks, full disks, other layouts; and the schema fixture."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.errors import BenchError
from bench.core.rows import Change
from bench.privacy.events.base_event import restored, stored
from bench.privacy.events.events import LNMax
from bench.results.record import SCHEMA_VERSION, parse_record
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic
from helpers.paths import FIXTURES
from helpers.records import failed, record

FIRST = json.loads((FIXTURES / "record-schema-1.json").read_text())


def test_record_survives_its_file(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs").create()
    given = record(claimed=math.inf, proven=math.inf)
    path = run_dir.write_record(given)
    assert run_dir.read_record(given.key) == given
    assert '"Infinity"' in path.read_text()
    json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@given(st.floats(min_value=0), st.text(max_size=40))
def test_any_figure_and_text_survive(figure: float, text: str) -> None:
    given = record(claimed=figure, notes=[text])
    assert parse_record(given.to_json()) == given


def test_records_of_earlier_schemas_stay_readable() -> None:
    paths = sorted(FIXTURES.glob("record-schema-*.json"))
    assert {int(path.stem.rsplit("-", 1)[1]) for path in paths} == set(range(1, SCHEMA_VERSION + 1))
    for path in paths:
        assert parse_record(path.read_text()).schema_version == SCHEMA_VERSION


def test_a_record_of_schema_2_is_read_with_equal_successive_events_once() -> None:
    quiet, loud = LNMax(0.1, 1), LNMax(0.2, 1)
    events = [*[quiet] * 3, loud, quiet]
    data = json.loads((FIXTURES / "record-schema-2.json").read_text())
    data["privacy"]["events"] = [event.as_dict() for event in events]
    read = parse_record(json.dumps(data)).privacy
    assert read is not None
    assert [event.get("times") for event in read.events] == [3, None, None]
    assert restored(read.events) == events


def test_equal_events_are_stored_once_in_the_order_of_their_first_use() -> None:
    quiet, loud = LNMax(0.1, 1), LNMax(0.2, 1)
    kept = stored([quiet, loud] * 3 + [LNMax(0.3, 1)])
    assert [(event["gamma"], event.get("times")) for event in kept] == [(0.1, 3), (0.2, 3), (0.3, None)]
    assert restored(kept) == [quiet] * 3 + [loud] * 3 + [LNMax(0.3, 1)]


@pytest.mark.parametrize("times", [0, -1, True, 1.5, "2", None])
def test_an_event_runs_a_whole_number_of_times(times: object) -> None:
    data = json.loads((FIXTURES / "record-schema-3.json").read_text())
    data["privacy"]["events"] = [{**LNMax(0.1, 1).as_dict(), "times": times}]
    with pytest.raises(ValueError, match=r"field privacy.events.0: .*whole number of at least 1"):
        parse_record(json.dumps(data))


def test_a_few_bytes_do_not_become_a_ledger_that_fills_the_memory() -> None:
    with pytest.raises(BenchError, match="more than 10,000,000 events"):
        restored([{**LNMax(0.1, 1).as_dict(), "times": 10**9}] * 2)


@pytest.mark.parametrize(
    "change",
    [
        Change.of("beta", None, 1e-5), Change.of("batched", True, False), Change.of("epochs", 40.0, 30),
        Change.of("student", "pate_mnist", "10_cnn"), Change.of("weights", "auto", "source: a -> b"),
    ],
)  # fmt: skip
def test_what_differed_in_words_is_typed(change: Change) -> None:
    data = {**FIRST, "reduced": [str(change)]}
    assert parse_record(json.dumps(data)).reduced == [change]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (None, {"overrides": None}),
        ("rm -rf .", {"overrides": None}),
        ("python -m bench run --methods 'pate", {"overrides": None}),
        ("python -m bench run --methods pate --eps 10", {"overrides": {}}),
        (
            "python -m bench run --methods PATH/mine.py --datasets folder:PATH@1x28x28 --eps 10 --seeds 0 "
            "--teacher small_cnn --set gamma=0.1 --set 'weights=file:PATH/w=1.pth'",
            {
                "method_file": "mine.py", "image_shape": "1x28x28",
                "overrides": {"teacher": "small_cnn", "gamma": "0.1", "weights": "file:PATH/w=1.pth"},
            },
        ),
    ],
)  # fmt: skip
def test_what_a_command_told_is_part_of_the_cell(command: str | None, told: dict[str, object]) -> None:
    provenance = {**FIRST["provenance"], "command": command, "unread": {"command": "PATH is a folder", "threads": "?"}}
    read = parse_record(json.dumps({**FIRST, "provenance": provenance}))
    assert read.cell == record().cell.model_copy(update={"dataset": FIRST["dataset"], **told})
    assert read.provenance.unread == {"threads": "?"}
    assert parse_record(read.to_json()) == read


def test_words_that_tell_no_change_are_refused() -> None:
    data = {**FIRST, "reduced": ["anything"]}
    with pytest.raises(ValueError, match="field reduced"):
        parse_record(json.dumps(data))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("privacy.proven.order", "NaN"), ("privacy.proven.epsilon", "NaN"), ("privacy.claimed.epsilon", -1),
        ("cell.epsilon", "Infinity"), ("utility.accuracy", 1.5), ("provenance.wall_seconds", "-Infinity"),
    ],
)  # fmt: skip
def test_figures_that_are_none_are_refused(field: str, value: object) -> None:
    data = json.loads(record().to_json())
    *parts, last = field.split(".")
    part = data
    for name in parts:
        part = part[name]
    part[last] = value
    with pytest.raises(ValueError, match=f"field {field}: it must be"):
        parse_record(json.dumps(data))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        ('{"schema_version": 99}', "schema version 99"),
        ('{"schema_version": 1}', "field key"),
    ],
)
def test_damaged_record_is_named_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        parse_record(text)
    assert "\n" not in str(caught.value)


def test_unknown_field_is_refused() -> None:
    data = json.loads(record().to_json())
    with pytest.raises(ValueError, match="surprise"):
        parse_record(json.dumps({**data, "surprise": 1}))


def test_damaged_record_is_set_aside_and_the_rest_read(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path).create()
    good, bad = record(seed=0), record(seed=1)
    run_dir.write_record(good)
    path = run_dir.write_record(bad)
    path.write_text(path.read_text()[:100])
    (run_dir.records_path / "stranger.json").write_text(record(seed=2).to_json())
    (run_dir.records_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    records = run_dir.read_records()
    assert records.found == [good]
    assert len(records.damaged) == 3
    assert any(path.name in line for line in records.damaged)
    assert (run_dir.records_path / "damaged" / path.name).exists()
    assert run_dir.read_records().damaged == []


def test_reading_without_setting_aside_changes_nothing(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path).create()
    path = run_dir.record_path("x")
    path.write_text("{")
    assert len(run_dir.read_records(set_aside=False).damaged) == 1
    assert path.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_leaves_the_old_file_and_no_part_of_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "record.json"
    write_atomic(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BenchError, match="disk is full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["record.json"]


def test_really_full_disk() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with pytest.raises(OSError, match="No space") as caught, open("/dev/full", "wb") as file:
        file.write(b"x" * 8192)
    from bench.storage.files import explain_os_error

    assert "disk is full" in str(explain_os_error(caught.value, Path("x")))


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match=r"not a directory|could not be written"):
        RunDir(tmp_path / "file").create()
    with pytest.raises(BenchError):
        RunDir(Path("/proc/nowhere/runs")).create()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_directory_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BenchError, match="cannot be written"):
        RunDir(tmp_path / "runs").create()


def test_other_layout_is_refused(tmp_path: Path) -> None:
    RunDir(tmp_path).create()
    (tmp_path / "run.json").write_text('{"layout": 77}')
    for act in (RunDir(tmp_path).create, RunDir(tmp_path).read_records):
        with pytest.raises(BenchError, match="77"):
            act()
    (tmp_path / "run.json").write_text("nonsense")
    with pytest.raises(BenchError, match="damaged"):
        RunDir(tmp_path).create()


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no such run directory"):
        RunDir(tmp_path / "none").read_records()


def _hold(path: Path, ready: object, leave: object) -> None:
    with RunDir(path).locked():
        ready.set()  # type: ignore[attr-defined]
        leave.wait(30)  # type: ignore[attr-defined]


def test_directory_in_use_is_refused_until_its_owner_dies(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path).create()
    context = multiprocessing.get_context("spawn")
    ready, leave = context.Event(), context.Event()
    owner = context.Process(target=_hold, args=(tmp_path, ready, leave))
    owner.start()
    try:
        assert ready.wait(60)
        for way in (run_dir.locked, run_dir.joined):
            with pytest.raises(BenchError, match=f"in use by a tuning .process {owner.pid}"), way():
                pass
    finally:
        owner.kill()  # as if it crashed: nothing is cleaned up
        owner.join()
    with run_dir.locked():
        pass


def test_commands_share_a_directory_and_keep_a_tuning_out(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path).create()
    with (
        run_dir.joined(),
        run_dir.joined(),
        pytest.raises(BenchError, match=r"in use by runs.*bench status"),
        run_dir.locked(),
    ):
        pass
    with run_dir.locked():
        pass
    (tmp_path / ".lock").write_text("4000000\n")  # left by a tuning that was killed
    with run_dir.joined(), pytest.raises(BenchError, match="in use by runs"), run_dir.locked():
        pass


def test_what_killed_runs_were_writing_goes_when_nobody_writes(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path).create()
    torn = run_dir.records_path / ".key.json.0123456789ab.tmp"
    with run_dir.joined():
        torn.write_text("{")
        with run_dir.joined():
            assert torn.exists()  # the other process may be writing it
    with run_dir.joined():
        assert not torn.exists()


def test_two_runs_make_one_directory_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def overtaken(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        with RunDir(tmp_path).create().joined():  # which removes the first one's temporary files
            pass
        replace(source, target)

    monkeypatch.setattr(os, "replace", overtaken)
    RunDir(tmp_path).create()
    assert os.replace is replace
    RunDir(tmp_path).check_layout()


def test_runs_wait_for_one_that_cleans_up(tmp_path: Path) -> None:
    import threading

    run_dir = RunDir(tmp_path).create()
    with (tmp_path / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(0.8, fcntl.flock, (other, fcntl.LOCK_UN)).start()
        with run_dir.joined():
            pass


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = RunDir(tmp_path).create()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for way in (run_dir.joined, run_dir.locked):
        with pytest.raises(BenchError, match="without locks"), way():
            pass


def test_claims_tell_who_runs_a_cell(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path).create()
    held = run_dir.claim("some-key", title="a cell")
    assert held is not None
    assert run_dir.claim("some-key") is None
    assert run_dir.running() == {"some-key"}
    assert run_dir.claims()["some-key"].about["title"] == "a cell"
    held.release()
    assert run_dir.running() == set()


def test_a_record_written_again_has_another_signature(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path).create()
    assert run_dir.signature("key-0") is None
    run_dir.write_record(record(key="key-0"))
    first = run_dir.signature("key-0")
    run_dir.write_record(record(key="key-0"))
    assert first is not None
    assert run_dir.signature("key-0") != first


def test_private_artefacts_are_closed_to_others(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs").create()
    assert run_dir.cache_path.stat().st_mode & 0o077 == 0


def test_failure_is_a_row(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path).create()
    run_dir.write_record(failed())
    (found,) = run_dir.read_records().found
    assert found.failure is not None
    assert found.failure.reason == "more teachers than records"


def test_links_of_a_strangers_directory_lead_nowhere(tmp_path: Path) -> None:
    run_dir, outside = RunDir(tmp_path / "runs").create(), tmp_path / "outside"
    (outside / "locks").mkdir(parents=True)
    for name in (".mine.tmp", "locks/mine", "mine"):
        (outside / name).write_text("mine")
    run_dir.cache_path.rmdir()
    run_dir.cache_path.symlink_to(outside)
    run_dir.logs_path.rmdir()
    run_dir.logs_path.symlink_to(outside)
    with run_dir.joined():
        pass
    (run_dir.path / ".lock").unlink()
    (run_dir.path / ".lock").symlink_to(outside / "mine")
    (run_dir.claims_path / "a").symlink_to(outside / "mine")
    with pytest.raises(BenchError, match=r"\.lock could not be written"), run_dir.joined():
        pass
    with pytest.raises(BenchError, match="cannot be locked"):
        run_dir.claim("a")
    assert [(outside / name).read_text() for name in (".mine.tmp", "locks/mine", "mine")] == ["mine"] * 3


@pytest.mark.timeout(20)
def test_strange_claims_are_no_claims(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs").create()
    os.mkfifo(run_dir.claims_path / "pipe")
    (run_dir.claims_path / "brackets").write_text("[" * 4096)
    assert run_dir.claims() == {}
