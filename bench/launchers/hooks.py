"""The user's commands that a launcher runs per record, on a failure, and at the end: mail, a tracker."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import Counter

from bench.core.processes import SAFE_PATH
from bench.core.progress import Progress
from bench.launchers.local import Done
from bench.launchers.settings import Cluster
from bench.launchers.worker import Outcome
from bench.results.record import Record
from bench.results.run_dir import RunDir

LONGEST_SECONDS = 60


def hooked(done: Done, settings: Cluster, run_dir: RunDir, progress: Progress) -> Done:
    """Return `done`, followed by the commands per record and on failure."""

    def then(record: Record) -> None:
        done(record)
        path = run_dir.records_path / f"{record.key}.json"
        told = {"KEY": record.key, "STATUS": record.status.value, "RECORD": str(path.resolve())}
        _run("on_record", settings.on_record, run_dir, progress, told)
        if record.failure is not None:
            _run("on_failure", settings.on_failure, run_dir, progress, told)

    return then


def at_end(outcome: Outcome, settings: Cluster, run_dir: RunDir, progress: Progress) -> None:
    """Run the command at the end of a launch."""
    count = Counter(record.status.value for record in outcome.records)
    told = {"DONE": str(count["done"]), "FAILED": str(count["failed"]), "LEFT": str(outcome.left)}
    _run("on_end", settings.on_end, run_dir, progress, told)


def _run(name: str, command: str, run_dir: RunDir, progress: Progress, told: dict[str, str]) -> None:
    """Run a shell command with its arguments in BENCH_* variables; if it fails, the run goes on."""
    if not command:
        return
    variables = {f"BENCH_{key}": value for key, value in {"OUT": str(run_dir.path.resolve()), **told}.items()}
    inherited = {name: value for name, value in os.environ.items() if name != SAFE_PATH}
    try:
        with tempfile.TemporaryFile() as output:  # a pipe would wait for what the command leaves in the background
            ran = subprocess.run(
                command, shell=True, env={**inherited, **variables}, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, timeout=LONGEST_SECONDS, start_new_session=True, check=False,
            )  # fmt: skip
            output.seek(0)
            said = output.read().decode(errors="replace").strip().splitlines()
        if ran.returncode:
            progress.say(f"{name} ended with status {ran.returncode}{': ' + said[-1] if said else ''}")
    except (OSError, subprocess.TimeoutExpired) as error:
        progress.say(f"{name} did not finish: {error}")
