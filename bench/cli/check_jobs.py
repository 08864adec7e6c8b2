"""Checks of many methods, kept in a run directory: a later command resumes them, a launcher can run each as a job."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.cli.jobs import Job, Launched, launch_jobs
from bench.core.options import ONE_CPU
from bench.core.plain_files import read_plain
from bench.core.progress import Progress
from bench.core.rows import Row, json_object
from bench.evaluation.check.noninterference import Check, CheckVerdict
from bench.experiments.calibration_cache import program_digest
from bench.interface.method import Method
from bench.launchers.manifest import Task
from bench.launchers.settings import Cluster
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic


class KeptCheck(Row):
    """A check in the folder ``checks`` of a run directory; `asked`: the digest of options and of all code checked."""

    method: str
    verdict: CheckVerdict
    reason: str
    asked: str


class Checks:
    """The checks with the options `words`, kept in the run directory `out`."""

    def __init__(self, out: Path, words: Sequence[str]) -> None:
        self.run_dir, self._words = RunDir(out).create(), words

    def _asked(self, method: type[Method]) -> str:
        program = program_digest(inspect.getsourcefile(method) or "")
        return hashlib.sha256(" ".join([program, *self._words]).encode()).hexdigest()

    def _path(self, method: type[Method]) -> Path:
        return self.run_dir.path / "checks" / f"{method.name}.json"

    def find(self, method: type[Method]) -> Check | None:
        """Return the kept check of `method`; None if it failed, or is from another program or other options."""
        try:
            kept = KeptCheck.model_validate(json_object(read_plain(self._path(method))))
        except (OSError, ValueError):
            return None
        if kept.asked != self._asked(method) or kept.verdict is CheckVerdict.FAILED:
            return None
        return Check(kept.method, kept.verdict, kept.reason)

    def keep(self, method: type[Method], check: Check) -> None:
        """Write the `check` of `method`."""
        kept = KeptCheck(method=check.method, verdict=check.verdict, reason=check.reason, asked=self._asked(method))
        self._path(method).parent.mkdir(exist_ok=True)
        write_atomic(self._path(method), kept.to_json().encode())

    def launch(self, missing: Mapping[str, type[Method]], settings: Cluster, progress: Progress) -> Launched:
        """Make the checks of the `missing` methods, by command-line word, with the launcher of `settings`."""
        methods = {f"check-{method.name}": method for method in missing.values()}
        jobs = {
            key: Job(
                ["check", word, *self._words],
                [Task.of(self.run_dir, key, f"check of {method.name}", f"checks/{method.name}.json")],
                resources=False,
            )
            for word, (key, method) in zip(missing, methods.items(), strict=True)
        }

        def state(key: str) -> bool | None:
            found = self.find(methods[key])
            return None if found is None else not found.ok

        return launch_jobs(jobs, state, self.run_dir, settings, ONE_CPU, progress)
