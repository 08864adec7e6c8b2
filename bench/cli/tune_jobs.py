"""``bench tune --launcher``: each tuning is a process or a job with a run directory of its own, merged at the end.

Each tuning locks its run directory. The number of its trials is secret, and exact times would help to guess it. So the
launch's folder is deleted when all tunings have ended, and the files that stay carry only the date.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from bench.cli.jobs import Job, Launched, launch_jobs
from bench.core.config import Grid
from bench.core.errors import BenchError
from bench.core.options import GridOptions, Resources, grid_words, number_word
from bench.core.plain_files import read_plain
from bench.core.progress import Progress
from bench.core.rows import json_object
from bench.core.tuning import Tuning
from bench.experiments.data_source import DataSource
from bench.experiments.tuning import plan_tunings, undate
from bench.launchers.manifest import Task, launches
from bench.launchers.settings import Cluster
from bench.results.merge import merge
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.storage.cache import digest_of
from bench.storage.files import write_atomic


def mark(path: Path, records: Sequence[Record]) -> None:
    """Write to `path` the keys of the records that a tuning has released."""
    write_atomic(path, json.dumps({"records": [record.key for record in records]}).encode(), mode=0o600)
    undate(RunDir(path.parent), [], [path])


def _released(path: Path) -> list[str]:
    try:
        return [str(key) for key in json_object(read_plain(path)).get("records", [])]
    except (OSError, ValueError):
        return []


def tune_by_jobs(
    options: GridOptions, grids: Sequence[Grid], tuning: Tuning, words: Sequence[str], out: Path, settings: Cluster,
    resources: Resources, progress: Progress,
) -> tuple[list[Record], Launched]:  # fmt: skip
    """Tune the cells of `grids`, given by `options` and `words`, with a launcher; return the records of ended tunings.

    Raises :class:`BenchError` as :func:`bench.experiments.tuning.plan_tuning` does, before the first job.
    """
    run_dir = RunDir(out)
    plans = plan_tunings(grids, tuning, run_dir, DataSource(progress), progress)
    asked = {}
    for plan, grid in zip(plans, grids, strict=True):
        (method,), (dataset,), (epsilon,), (seed,) = grid.methods, grid.datasets, grid.epsilons, grid.seeds
        one = replace(options, methods=method, datasets=dataset, eps=number_word(epsilon), seeds=str(seed), set_=None)
        given = {field.name: getattr(one, field.name) for field in fields(one)}
        sets = [word for text in grid.overrides for word in ("--set", text)]
        name = f"{method.rpartition('/')[2]}-{digest_of([cell.key for cell in plan.cells])}"
        title = f"tuning of {method} on {dataset}, eps {epsilon:g}, seed {seed}"
        asked[name] = title, [*grid_words(**{**given, "teacher": None, "student": None}), *sets, *words]
    home = run_dir.path / "tuned"
    home.mkdir(mode=0o700, exist_ok=True)
    marks = {name: home / f"{name}.json" for name in asked}
    left = {name: asked[name] for name, path in marks.items() if not _there(run_dir, path)}
    jobs = {}
    for name, (title, words) in left.items():
        own = home / name
        own.mkdir(mode=0o700, exist_ok=True)
        if not (own / "cache").exists():
            os.symlink(run_dir.cache_path.resolve(), own / "cache")  # features, teachers, calibrations
        task = Task.of(run_dir, f"tuning-{name}", title, f"tuned/{name}.json")
        jobs[name] = Job(["tune", *words, "--mark", str(marks[name].resolve())], [task], own)

    def state(key: str) -> bool | None:
        found = _released(marks[key.removeprefix("tuning-")])
        records = RunDir(home / key.removeprefix("tuning-")).read_records_of(found)[0] if found else []
        return any(record.failure for record in records) if records else None

    ended = launch_jobs(jobs, state, run_dir, settings, resources, progress)
    made = [name for name in left if _released(marks[name])]
    merged = merge([RunDir(home / name) for name in made], run_dir)
    if merged.left_out:
        raise BenchError("; ".join(merged.left_out))
    for name in made:
        shutil.rmtree(home / name)
    if ended.stopped is None and not ended.lost and not ended.elsewhere:
        ours = {f"tuning-{name}" for name in asked}
        for launch in launches(run_dir):  # also those of stopped commands that this one has resumed
            if launch.tasks and {task.key for task in launch.tasks} <= ours:
                shutil.rmtree(launch.folder, ignore_errors=True)
    records = run_dir.read_records_of([key for path in marks.values() for key in _released(path)])[0]
    undate(run_dir, records, [home, *marks.values()])
    return records, ended


def _there(run_dir: RunDir, path: Path) -> bool:
    keys = _released(path)
    return bool(keys) and len(run_dir.statuses(keys)) == len(keys)
