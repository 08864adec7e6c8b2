"""Commands in local processes: their statuses and outputs, how many at once, and their end."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.progress import Progress
from bench.launchers.attempts import log_of
from bench.launchers.commands import run_commands
from bench.launchers.settings import Cluster
from bench.results.run_dir import RunDir
from bench.storage.interrupts import Stopped

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
