"""Locks: one owner at a time, released at death, and owners on other machines judged without comparing clocks."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bench.storage import locks
from bench.storage.locks import Held, alive, holding, look, process_start, take, this_machine

CONTEXT = multiprocessing.get_context("spawn")


def hold(path: Path, ready: object, leave: object) -> None:
    held = take(path, title="a cell", launch="one")
    assert held is not None
    with held:
        ready.set()  # type: ignore[attr-defined]
        leave.wait(60)  # type: ignore[attr-defined]


def hold_until_killed(path: Path, ready: object) -> None:
    with holding(path):
        ready.set()  # type: ignore[attr-defined]
        time.sleep(600)


def claimed(path: Path) -> Held:
    while (held := take(path)) is None:
        time.sleep(0.002)
    return held


def count(lock: Callable[[Path], AbstractContextManager[object]], path: Path, tally: Path, times: int) -> None:
    for _ in range(times):
        with lock(path):
            number = int(tally.read_text())
            time.sleep(0.001)
            tally.write_text(str(number + 1))


@pytest.mark.parametrize("lock", [holding, claimed])
def test_one_owner_at_a_time(tmp_path: Path, lock: Callable[[Path], AbstractContextManager[object]]) -> None:
    tally = tmp_path / "tally"
    tally.write_text("0")
    crew = [CONTEXT.Process(target=count, args=(lock, tmp_path / "lock", tally, 40)) for _ in range(3)]
    for process in crew:
        process.start()
    for process in crew:
        process.join(120)
    assert tally.read_text() == "120"


def test_owner_is_seen_and_its_death_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    ready, leave = CONTEXT.Event(), CONTEXT.Event()
    owner = CONTEXT.Process(target=hold, args=(path, ready, leave))
    owner.start()
    assert ready.wait(60)
    assert take(path) is None
    seen = look(path)
    assert seen is not None
    assert seen.held
    assert seen.here
    assert (seen.pid, seen.attempt, seen.about["title"]) == (owner.pid, 1, "a cell")
    assert alive(seen.pid, seen.start)
    owner.kill()
    owner.join()
    left = look(path)
    assert left is not None
    assert not left.held
    assert not alive(left.pid, left.start)
    held = take(path, launch="one")
    assert held is not None
    assert held.attempt == 2  # the second owner of the same launch
    held.release()
    assert look(path) is None


def test_attempts_are_counted_for_each_launch(tmp_path: Path) -> None:
    """Two launches that take turns must not restart the count each time."""
    path = tmp_path / "lock"
    path.write_text(owner_text(this_machine(), launch="one"))
    for launch, attempt in (("two", 1), ("one", 2), ("two", 2), ("three", 1), ("one", 3)):
        held = take(path, launch=launch)
        assert held is not None
        assert held.attempt == attempt
        held.beat()
        text = path.read_text()
        held.release()
        path.write_text(text)  # as if the owner had died


def test_released_twice_is_released_once(tmp_path: Path) -> None:
    held = take(tmp_path / "lock")
    assert held is not None
    held.release()
    other = take(tmp_path / "lock")
    assert other is not None
    held.release()
    assert take(tmp_path / "lock") is None  # the first owner must not release the second owner's lock
    other.release()


def owner_text(machine: str, beat: int = 5, launch: str = "one") -> str:
    said = {"machine": machine, "pid": 4_000_000, "start": "1", "beat": beat, "seconds": 3.0}
    return json.dumps({**said, "attempts": {launch: 1}, "about": {"launch": launch}})


def test_owner_on_another_machine_is_believed_until_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flock may be invisible here, so only a beat that stops shows that it is gone."""
    path, now = tmp_path / "lock", [1000.0]
    monkeypatch.setattr(locks.time, "monotonic", lambda: now[0])
    path.write_text(owner_text("elsewhere/boot", beat=5))
    assert take(path) is None
    now[0] += locks.PATIENCE_SECONDS - 1
    path.write_text(owner_text("elsewhere/boot", beat=6))
    assert take(path) is None  # a sign of life, so the waiting time restarts
    now[0] += locks.PATIENCE_SECONDS - 1
    assert take(path) is None
    now[0] += 2
    held = take(path, launch="one")
    assert held is not None
    assert held.attempt == 2
    held.release()


def test_stale_lock_of_this_machine_is_taken_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(owner_text(this_machine()))
    os.utime(path, (0, 0))
    held = take(path)
    assert held is not None
    held.release()


@pytest.mark.parametrize("jump", [-86_400.0, 10.0 * 365 * 86_400])
def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    path, wall = tmp_path / "lock", time.time
    held = take(path)
    assert held is not None
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    os.utime(path, (wall() + jump, wall() + jump))
    held.beat()
    assert take(path) is None
    seen = look(path)
    assert seen is not None
    assert seen.held
    assert 0 <= seen.seconds < 60
    held.release()


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"machine": 3}', "\x00" * 100])
def test_unreadable_lock_files_stop_nobody(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lock"
    path.write_text(text)
    assert look(path) is None
    held = take(path)
    assert held is not None
    seen = look(path)
    assert seen is not None
    assert seen.pid == os.getpid()
    held.release()


def test_what_is_told_never_breaks_the_file(tmp_path: Path) -> None:
    held = take(tmp_path / "lock", title="é" * 5000, launch="one")
    assert held is not None
    seen = look(tmp_path / "lock")
    assert seen is not None
    assert seen.held
    assert seen.about == {"launch": "one"}  # for counting attempts
    held.tell(title="short", stage="teachers", done=3, total=9)
    held.beat()
    seen = look(tmp_path / "lock")
    assert seen is not None
    assert seen.about["done"] == 3
    held.release()


def test_who_looks_keeps_nobody_out(tmp_path: Path) -> None:
    import fcntl
    import threading

    path = tmp_path / "lock"
    path.touch()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.005, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        held = take(path)
        assert held is not None
        held.release()


def test_a_process_number_used_again_is_another_process() -> None:
    assert alive(os.getpid(), process_start(os.getpid()))
    assert not alive(os.getpid(), "1")
    assert not alive(4_000_000, "1")


def test_no_locks_on_the_file_system_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from bench.core.errors import BenchError

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with pytest.raises(BenchError, match="without locks"):
        take(tmp_path / "lock")
    with pytest.raises(BenchError, match="without locks"), holding(tmp_path / "lock"):
        pass


def test_a_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    ready = CONTEXT.Event()
    owner = CONTEXT.Process(target=hold_until_killed, args=(tmp_path / "lock", ready))
    owner.start()
    assert ready.wait(60)
    said: list[str] = []

    def waiting() -> None:
        said.append("waiting")
        owner.kill()

    with holding(tmp_path / "lock", waiting):
        assert said == ["waiting"]
    owner.join()
