"""Untrusted run directories: every command names what it cannot read, and neither hangs nor crashes."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.results.record import parse_record
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.paths import BOARD
from helpers.publishing import ATTACK, AUDIT, PATE


def text(words: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(words)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "brackets": text("[" * 100_000),
    "nested": text('{"schema_version": 3, "config": ' + "[" * 100_000),
    "pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "sparse": lambda path: (path.touch(), os.truncate(path, 23 << 30)),
    "folder": Path.mkdir,
}


def edited(old: str, new: str) -> Callable[[Path], object]:
    """Return a function that writes the good record with a changed value."""
    good = (BOARD / "records" / f"{PATE}.json").read_text()
    assert old in good
    return text(good.replace(old, new, 1))


for _number in ("NaN", '"NaN"', "1e999"):
    HOSTILE[f"epsilon {_number}"] = edited('"epsilon": 10.0', f'"epsilon": {_number}')
HOSTILE["accuracy 1e999"] = edited('"accuracy": 0.', '"accuracy": 1e999, "x": 0.')


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A directory with one good record, audit and attack."""
    run_dir = RunDir(tmp_path / "runs").create()
    for folder, key in (("records", PATE), ("audits", AUDIT), ("attacks", ATTACK)):
        shutil.copy(BOARD / folder / f"{key}.json", run_dir.path / folder)
    return run_dir


@pytest.mark.few(4)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", HOSTILE)
def test_every_command_passes_over_what_it_cannot_read(kind: str, run: RunDir, tmp_path: Path) -> None:
    for folder in (run.records_path, run.audits_path, run.attacks_path):
        HOSTILE[kind](folder / "bad.json")
    launch = run.launches_path / "20260101-000000-abcdef"
    launch.mkdir()
    HOSTILE[kind](launch / "launch.json")
    board = tmp_path / "board"
    for folder in ("records", "audits", "attacks"):
        (board / folder).mkdir(parents=True)

    listed = bench("ls", "-o", run.path)
    assert (listed.returncode, "bad.json is damaged" in listed.stdout) == (0, True), listed
    assert PATE in listed.stdout
    shown = bench("show", PATE, "-o", run.path)
    assert shown.returncode == 0
    made = bench("leaderboard", run.path, "--into", tmp_path / "pages")
    assert (made.returncode, made.stderr.count("bad.json is damaged")) == (0, 3), made
    published = bench("publish", run.path, "--into", board, "--dry-run")
    assert (published.returncode, published.stdout.count("bad.json")) == (1, 3), published
    assert "it is damaged" in " ".join(published.stdout.split())
    seen = bench("status", "-o", run.path)
    assert (seen.returncode, "bad.json is damaged" in seen.stdout) == (0, True), seen


def broken(folder: Path, good: str, number: int, *places: str, **values: object) -> str:
    """Write the row `good` of `folder` under another key, with other `values` at `places`; return the file's name."""
    data = json.loads((BOARD / folder.name / f"{good}.json").read_text())
    data["key"] = key = f"bad-{folder.name}-{number}"
    part = data
    for place in places:
        part = part[int(place) if isinstance(part, list) else place]
    part.update(values)
    (folder / f"{key}.json").write_text(json.dumps(data))
    return f"{key}.json"


@pytest.mark.timeout(120)
def test_rows_whose_parts_do_not_fit_each_other_are_damaged_and_the_others_shown(run: RunDir, tmp_path: Path) -> None:
    """All fields have the right types, but such rows once stopped a command with a traceback or an internal error."""
    channel = {
        "name": "student", "family": "natural", "canaries": 10, "guesses": 5, "correct": 6, "epsilon": 0.1, "cap": 1.0,
    }  # fmt: skip
    accuracy = {"accuracy": 0.9, "test_records": 10}
    bad = {
        broken(run.records_path, PATE, 1, utility={**accuracy, "official_accuracy": 0.5}),
        broken(run.records_path, PATE, 2, utility={**accuracy, "official_records": 10}),
        broken(run.records_path, PATE, 3, utility={"accuracy": 0.9, "test_records": 0}),
        broken(run.records_path, PATE, 4, image_grid={"file": "released/\0.png", "sha256": ""}),
        broken(run.records_path, PATE, 5, "student", file="x" * 3000),
        broken(run.records_path, PATE, 6, schema_version=[1]),
        broken(run.attacks_path, ATTACK, 1, targets={}),
        broken(run.attacks_path, ATTACK, 2, pictures=["\0"]),
        broken(run.audits_path, AUDIT, 1, confidence=1.0),
        broken(run.audits_path, AUDIT, 2, channels=[channel], kind="one-run"),
        broken(run.audits_path, AUDIT, 3, channels=[{**channel, "guesses": 10**12, "canaries": 10**12}]),
    }
    odd = broken(run.attacks_path, ATTACK, 3, "details", images=["many"])

    shown = bench("show", PATE, "-o", run.path)
    assert shown.returncode == 0, shown
    made = bench("leaderboard", run.path, "--into", tmp_path / "pages")
    assert made.returncode == 0, made
    assert bad == {name for name in (*bad, odd) if name in made.stderr}
    assert PATE in (tmp_path / "pages" / "site" / "index.html").read_text()
    assert bench("ls", "-o", run.path).returncode == 0
    assert bench("status", "-o", run.path).returncode == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_record_that_cannot_be_read_now_stays_and_is_not_run_again(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "runs"
    again = ["run", "-m", "nonprivate", "-d", "digits", "-p", "tiny", "-o", out, "-s", "0,1", "-q"]
    first = bench(*again)
    assert first.returncode == 0, first.stderr
    before = {path: path.stat().st_mtime_ns for path in (out / "records").iterdir()}
    path = sorted(before)[0]
    opened = os.open

    def refuse(name: Path, *rest: int) -> int:
        if Path(name) == path:
            raise OSError(error, os.strerror(error), str(name))
        return opened(name, *rest)

    with monkeypatch.context() as broken:
        broken.setattr("bench.core.plain_files.os.open", refuse)
        second = bench(*again)
        planned = bench(*again, "--dry-run")
        failed_audit = bench("audit", path.stem, "-o", out)
    assert second.returncode == 1
    assert f"{path} cannot be read ({os.strerror(error)}); its cell is not run again" in second.stderr
    assert "unreadable" in planned.stdout
    assert failed_audit.returncode == 2
    assert {path: path.stat().st_mtime_ns for path in (out / "records").iterdir()} == before
    assert bench(*again).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "records").iterdir()} == before


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["brackets", "pipe", "endless", "epsilon NaN"])
def test_a_hostile_record_of_a_cell_is_set_aside_and_the_cell_run(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    again = ["run", "-m", "nonprivate", "-d", "digits", "-p", "tiny", "-o", out, "-q"]
    assert bench(*again).returncode == 0
    (path,) = (out / "records").glob("*.json")
    good = parse_record(path.read_text())
    path.unlink()
    HOSTILE[kind](path)
    done = bench(*again)
    assert done.returncode == 0, done.stderr
    assert parse_record(path.read_text()).utility == good.utility
    assert os.path.lexists(out / "records" / "damaged" / path.name)


@pytest.mark.parametrize("folder", ["records", "audits", "claims", "launches"])
def test_a_folder_that_another_user_keeps_shut_is_named_and_is_not_none(
    folder: str, run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good").mkdir()
    shutil.copytree(run.records_path, tmp_path / "good" / "records")
    shut = run.path / folder
    scan, ask = os.scandir, os.listdir

    def refuse(path: Path, list_it: Callable[[Path], object]) -> object:
        if Path(path) == shut:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return list_it(path)

    monkeypatch.setattr(os, "scandir", lambda path: refuse(path, scan))
    monkeypatch.setattr(os, "listdir", lambda path: refuse(path, ask))
    said = f"{shut} cannot be read (Permission denied), so its contents are unknown"
    status = bench("status", "-o", run.path)
    stopped = bench("cancel", "-o", run.path)
    made = bench("leaderboard", run.path, tmp_path / "good", "--into", tmp_path / "pages")
    published = bench("publish", run.path, "--into", tmp_path / "good", "--dry-run")
    assert (status.returncode, made.returncode) == (0, 0)
    if folder in ("records", "audits"):
        assert (said in made.stderr, said in published.stderr, published.returncode) == (True, True, 2)
    if folder == "records":
        listed = " ".join(bench("ls", "-o", run.path).stdout.split())  # folded
        assert (said in listed, "none" in listed) == (True, False)
    if folder != "audits":
        assert said in status.stdout
    if folder in ("claims", "launches"):
        assert (stopped.returncode, said in stopped.stderr) == (2, True)


def test_cancel_says_which_processes_are_anothers(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        if number:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    held = run.claim("key", title="key")
    assert held is not None
    with held, monkeypatch.context() as another:
        another.setattr(os, "kill", refuse)
        done = bench("cancel", "-o", run.path)
    assert (done.returncode, "belongs to another user, who must end it" in done.stdout) == (0, True), done
