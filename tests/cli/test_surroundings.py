"""Odd surroundings of a command: no home, an output that is closed, full or ASCII, a full disk, a closed terminal."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from bench.cli.run import leave
from bench.core.config import Reuse
from bench.core.errors import BenchError
from bench.launchers.settings import Cluster
from bench.launchers.worker import Outcome
from bench.results.run_dir import RunDir
from helpers.commands import bench
from helpers.paths import ROOT

PLUGIN = """
from bench.interface import register_method
from bench.methods.nonprivate import NonPrivate

@register_method("waits")
class Waits(NonPrivate):
    def train_student(self, *given):
        import time
        open(PLACE, "w").close()
        time.sleep(60)
"""


def shell(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = words.replace("bench", f"{shlex.quote(sys.executable)} -m bench", 1)
    named = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        command, shell=True, check=False, capture_output=True, text=True, env=named, timeout=100, executable="/bin/bash"
    )  # fmt: skip


def test_a_closed_output_takes_nothing_and_a_full_one_is_named() -> None:
    closed = shell("bench ls methods >&-")
    assert (closed.returncode, closed.stderr) == (0, "")
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    full = shell("bench ls methods --json >/dev/full")
    assert full.returncode == 2
    assert "standard output cannot be read or written (No space left on device)" in full.stderr
    assert len(full.stderr.splitlines()) == 1


def test_an_ascii_terminal_shows_what_it_can(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs").create()
    (run.records_path / "bad\u2013.json").write_text("{")
    done = shell(f"bench ls -o {run.path}", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "bad?.json is damaged" in done.stdout


def test_a_home_that_does_not_exist_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/nowhere")
    for name in ("BENCH_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    words = ["run", "-m", "nonprivate", "-p", "tiny", "-o", str(tmp_path / "runs"), "-q", "-d"]
    done = bench(*words, "digits")
    assert (done.returncode, "cannot write /proc/nowhere/" in done.stderr) == (2, True), done
    another = bench(*words, "folder:~nobody-of-this-name/x")
    assert (another.returncode, "~nobody-of-this-name/x is not a folder" in another.stderr) == (2, True), another


def test_a_folder_above_that_another_user_keeps_shut_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shut(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_dir", shut)
    done = bench("status", "-o", tmp_path / "runs")
    assert (done.returncode, f"{tmp_path / 'runs'} cannot be read or written" in done.stderr) == (2, True)


def test_a_disk_that_is_full_at_the_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path / "runs").create()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bench.results.run_dir.os.pwrite", full)
    with pytest.raises(BenchError, match=r"the disk is full: .*\.lock could not be written"), run.locked():
        pass


@pytest.mark.slow
def test_a_closed_terminal_ends_a_run_in_words(tmp_path: Path) -> None:
    plugin, begun = tmp_path / "waits.py", tmp_path / "begun"
    plugin.write_text(PLUGIN.replace("PLACE", repr(str(begun))))
    words = ["run", "-m", plugin, "-d", "digits", "-p", "tiny", "-o", tmp_path / "runs"]
    with subprocess.Popen(
        [sys.executable, "-m", "bench", *map(str, words)], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup pytest would ignore it
    ) as process:  # fmt: skip
        assert process.stderr is not None
        while not begun.exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGHUP)
        rest = process.stderr.read()
    assert process.returncode == 128 + signal.SIGHUP
    assert "stopped; 1 cell is left. Give the same command again to resume." in rest
    assert os.listdir(tmp_path / "runs" / "claims") == []


@pytest.mark.parametrize(
    ("outcome", "reuse", "status", "said"),
    [
        (Outcome(left=2), Reuse.DONE, 1, "2 cells are left without a readable record"),
        (Outcome(left=1, stopped=15), Reuse.DONE, 143, "Give the same command again to resume."),
        (Outcome(left=1, stopped=15), Reuse.NONE, 143, "With --reuse none, the same command runs all cells again"),
    ],
)
def test_cells_that_are_left_are_said_and_no_success(
    outcome: Outcome, reuse: Reuse, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        leave(outcome, Cluster(), Path("runs"), detach=False, reuse=reuse)
    assert ended.value.exit_code == status
    assert said in capsys.readouterr().err
