"""``bench audit --launcher local`` and ``slurm``: the command of one audit for each student."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.core.errors import BenchError
from bench.core.options import Resources, words_of
from bench.core.processes import available_cores
from bench.core.progress import open_progress
from bench.evaluation.audit.options import AuditOptions
from bench.launchers.commands import run_commands
from bench.launchers.settings import Cluster
from bench.results.run_dir import RunDir
from bench.storage.interrupts import Stopped


def check_time(settings: Cluster, minutes: float) -> None:
    """Raise :class:`BenchError` if Slurm would stop an audit before its end: put back, it begins its minutes again."""
    least = math.ceil(1.5 * minutes + 5)
    if settings.launcher == "slurm" and settings.time < least:
        raise BenchError(
            f"--time {settings.time} is too short for audits of --minutes {minutes:g}: at least {least} are needed. "
            "Give more --time, or fewer --minutes."
        )


def launch_audits(
    todo: Mapping[str, str], options: AuditOptions, words: Sequence[str], run_dir: RunDir, settings: Cluster,
    resources: Resources, quiet: bool,
) -> tuple[int | None, list[str], list[str]]:  # fmt: skip
    """Audit the students in `todo` (by key of the audit), each by a command with `options` and the further `words`.

    Return the signal that stopped it, the keys that other processes make, and a line for each command that failed.
    """
    jobs = min(settings.jobs or max(1, available_cores() // resources.threads), max(1, len(todo)))
    crew = resources.workers or (settings.cpus if settings.launcher == "slurm" else max(1, available_cores() // jobs))
    words = [*words_of(options), *words_of(replace(resources, workers=crew)), *words, "--launcher", "inline", "--quiet"]
    out = str(run_dir.path.resolve())
    commands = {key: ["-m", "bench", "audit", student, "--out", out, *words] for key, student in todo.items()}
    with open_progress(quiet=quiet) as progress, run_dir.joined():
        try:
            folder, statuses = run_commands(commands, run_dir, settings, jobs, progress)
        except Stopped as stop:
            return stop.number, [], []
    elsewhere, lost = [], []
    for key, status in statuses.items():
        found = run_dir.read_audit(key)
        if found is None and status == 0:
            elsewhere.append(key)
        elif status != int(found is not None and bool(found.violated or found.failure)):
            log = folder / f"{key}.log"
            ended = "its jobs ended without a status" if status is None else f"its process ended with status {status}"
            lost.append(f"failed: {key}: {ended} (log: {log if log.exists() else folder / 'jobs'})")
    return None, elsewhere, lost
