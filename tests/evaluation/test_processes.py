"""What is left of a check when its own process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import processes
from helpers.launches import until
from helpers.paths import ROOT

CHECK = """
import os, sys
from bench.evaluation.check.check_runs import MethodPlace
from bench.evaluation.check.confined_runs import Processes
from bench.interface.registry import METHODS
work = "import os, time; open(%r, 'w').write(str(os.getpid())); time.sleep(600)" % sys.argv[1]
Processes(folder=os.path.dirname(sys.argv[1])).apart(MethodPlace.of(METHODS.get("rr")), exec, work)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork server")
def test_a_killed_check_leaves_no_process(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", CHECK, str(told)], cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}
    )

    until(lambda: told.exists() and bool(told.read_text()), 120)
    worker = int(told.read_text())
    try:
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: not processes.alive(worker), 30)
    finally:
        if processes.alive(worker):
            os.kill(worker, signal.SIGKILL)
