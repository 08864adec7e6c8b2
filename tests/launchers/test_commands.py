"""Commands in local processes: their statuses and outputs, how many at once, and their end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from bench.core.progress import Progress
from bench.launchers import status
from bench.launchers.attempts import log_of
from bench.launchers.commands import run_commands
from bench.launchers.settings import Cluster
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic
from bench.storage.interrupts import Stopped
from helpers.launches import until

LOCAL = Cluster(launcher="local")


def test_statuses_outputs_and_how_many_at_once(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path).create()
    # Each names itself, looks for others, and stays until it can have been seen.
    code = """
import pathlib, sys, time
me = pathlib.Path(sys.argv[1], sys.argv[2])
me.touch()
time.sleep(0.5)
print(len(list(me.parent.glob("*"))), "at once")
me.unlink()
sys.exit(int(me.name))
"""
    there = tmp_path / "there"
    there.mkdir()
    commands = {f"key-{n}": ["-c", code, str(there), str(n)] for n in range(4)}
    folder, statuses = run_commands(commands, [], run_dir, LOCAL, 2, Progress())
    assert statuses == {"key-0": 0, "key-1": 1, "key-2": 2, "key-3": 3}
    said = [log_of(folder, key, 1).read_text() for key in commands]
    assert all(line in ("1 at once\n", "2 at once\n") for line in said)
    assert folder.stat().st_mode & 0o077 == 0


def test_a_cancelled_launch_ends_its_commands_and_starts_no_more(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path).create()
    code = """
import os, pathlib, sys, time
(folder,) = pathlib.Path(sys.argv[1]).glob("launches/*")
(folder / "pid").write_text(str(os.getpid()))
(folder / "cancelled").touch()
time.sleep(600)
"""
    with pytest.raises(Stopped):
        run_commands({key: ["-c", code, str(tmp_path)] for key in ("a", "b")}, [], run_dir, LOCAL, 1, Progress())
    (folder,) = tmp_path.glob("launches/*")
    assert not Path("/proc", (folder / "pid").read_text()).exists()
    assert {path.name for path in folder.glob("attempts/*.log")} == {"a.1.log"}


LAUNCHER = """
import sys
from pathlib import Path
from bench.core.progress import Progress
from bench.launchers.commands import run_commands
from bench.launchers.manifest import Task
from bench.launchers.settings import Cluster
from bench.results.run_dir import RunDir
from bench.storage.interrupts import Stopped
here = Path(sys.argv[1])
run_dir = RunDir(here).create()
tasks = [Task.of(run_dir, "a", "a", "attacks/a.json")]
try:
    run_commands({"a": ["-c", sys.argv[2], here]}, tasks, run_dir, Cluster(launcher="local"), 1, Progress())
except Stopped as stop:
    sys.exit(128 + stop.number)
"""

CLOSES_SLOWLY = """
import pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
def close(*_):
    (here / "closing").touch()
    time.sleep(1.0)
    (here / "closed").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, close)
(here / "begun").touch()
time.sleep(600)
"""


def test_a_launcher_is_told_once_that_it_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal here. If a file told it first, the signal would kill it while its commands close."""

    def slow_to_signal(path: Path, *given: bytes, mode: int) -> None:
        write_atomic(path, *given, mode=mode)
        with contextlib.suppress(AssertionError):
            until(lambda: (tmp_path / "closing").exists(), seconds=1.5)

    monkeypatch.setattr(status, "write_atomic", slow_to_signal)
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, tmp_path, CLOSES_SLOWLY])
    until(lambda: (tmp_path / "begun").exists())
    assert "ended the launcher" in "".join(status.cancel_all(tmp_path))
    assert launcher.wait(60) == 143
    assert (tmp_path / "closed").exists()
