"""Tuning of one cell: a secret random number of trials with random candidates, of which only the best is released.

What is kept must not reveal the number of trials. Trials run in their own folder (mode 0700), with their own
checkpoints, locks, salts and cache, which links to artefacts of earlier runs. Losers are deleted as they lose, and the
folder at the end. The display shows no trial, nothing is logged, and the record has no running time, time of day,
memory or cache counts; kept files are dated to the day. This does not hide the running time from an observer of the
machine, nor protect against copies of the folder.

A killed tuning resumes with the number of trials and the candidates drawn at its start, and with each trial's noise: an
unfinished trial continues as in ``bench run``, a finished one keeps its score. So stopping it, for whatever reason,
does not change the distribution of the selected student. Deleting the folder after looking at a trial does.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.core.config import Grid
from bench.core.errors import BenchError
from bench.core.options import ONE_CPU, Resources
from bench.core.progress import Progress
from bench.core.tuning import Tuning
from bench.core.types import Basis, Law, Score
from bench.experiments.calibration_cache import Calibrations
from bench.experiments.candidates import check_tunable, fit_epsilon, tuned_event
from bench.experiments.data_source import DataSource
from bench.experiments.plan import Cell
from bench.experiments.run import run_cell
from bench.interface.registry import METHODS
from bench.privacy.events.events import RepeatAndSelect
from bench.privacy.events.tuning import check_law, draw_trials
from bench.results.record import Record, Status
from bench.results.run_dir import RunDir
from bench.storage.cache import digest_of
from bench.storage.files import write_atomic, writing

MOST = 10_000
"""Maximum number of candidates."""
UNTOLD = "not told: it would help to count the trials"


def tuning_of(
    space: Any, *, trials_mean: float = 10.0, law: Law = Law.GEOMETRIC, score: str = "public",
    score_noise: float | None = None,
) -> Tuning:  # fmt: skip
    """Return the tuning over `space`: a list of values per setting (their grid), or a list of candidates.

    Its epsilon is 0 until :func:`bench.experiments.candidates.fit_epsilon` sets it. Raises :class:`BenchError` on
    anything else, fewer than two candidates, a mean below 1, and a score that would read private or test records.
    """
    check_law(trials_mean, law.shape)
    kind = _score(score)
    if (kind is Score.NOISY) != (score_noise is not None):
        raise BenchError("--score noisy takes --score-noise, in records, for instance 100; --score public takes none.")
    if score_noise is not None and not (math.isfinite(score_noise) and score_noise > 0):
        raise BenchError(f"--score-noise is a positive number of records, not {score_noise:g}. Try 100.")
    candidates = _candidates(space)
    if len(candidates) == 1:
        raise BenchError("the space holds only one candidate, so there is nothing to tune. Use `bench run --set`.")
    return Tuning(
        candidates=candidates, law=law, trials_mean=trials_mean, score=kind, score_noise=score_noise, epsilon=0.0
    )


def _score(name: str) -> Score:
    if name in ("private", "train", "training"):
        raise BenchError(
            f"--score {name} reads private records: the choice of the best trial would reveal something about them, "
            "uncharged. Use --score noisy, whose noise every trial pays for, or --score public."
        )
    if name == "test":
        raise BenchError(
            "--score test chooses by the records that the board's accuracy is measured on. Use --score public or noisy."
        )
    if name not in list(Score):
        raise BenchError(f"--score takes {' or '.join(Score)}, not {name!r}.")
    return Score(name)


def _candidates(space: Any) -> list[dict[str, str]]:
    wrong = BenchError(
        "a space is a list of values per setting, such as {lr: [1, 2], max_grad_norm: [0.1, 1]}, or a "
        "list of candidates with the same settings, such as [{lr: 1}, {lr: 2}]."
    )
    found: list[dict[str, Any]] = [{}]
    if isinstance(space, Mapping):
        for name, values in space.items():
            if not isinstance(values, list) or not values:
                raise wrong
            if len(found) * len(values) > MOST:
                raise BenchError(f"the space has more than {MOST:,} candidates. List fewer.")
            found = [{**one, name: value} for one in found for value in values]
    elif isinstance(space, list) and space and all(isinstance(one, Mapping) for one in space):
        found = [dict(one) for one in space]
    if not found[0] or any(set(one) != set(found[0]) for one in found):
        raise wrong
    for value in (value for one in found for value in one.values()):
        if not isinstance(value, str | int | float | bool | None):
            raise wrong
    return [{str(name): _word(value) for name, value in one.items()} for one in found]


def _word(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Planned:
    """A tuning whose trials are calibrated: its candidates and the event of its release."""

    cells: tuple[Cell, ...]
    event: RepeatAndSelect


def plan_tuning(grid: Grid, tuning: Tuning, source: DataSource, calibrations: Calibrations) -> Planned:
    """Return the tuning of the one cell of `grid`, whose epsilon includes tuning; reads no private record.

    Raises :class:`BenchError` if the method or data set cannot be tuned this way, or for unknown settings.
    """
    method = METHODS.get(grid.methods[0])
    grid = replace(grid, methods=(method.name,), basis=Basis.PROVEN)
    check_tunable(method, source.describe(grid.datasets[0]).facts, tuning)
    _, cells = fit_epsilon(grid, tuning, source.describe, calibrations)
    return Planned(tuple(cells), tuned_event(cells))


def run_tuning(
    planned: Planned, run_dir: RunDir, source: DataSource, progress: Progress, resources: Resources = ONE_CPU
) -> Record:
    """Run the trials, write the best one's record and student to `run_dir`, and return the record.

    A finished tuning is not repeated, an interrupted one resumes. Raises :class:`BenchError` if a file cannot be
    written. The caller holds the directory exclusively.
    """
    keys = [cell.key for cell in planned.cells]
    home = run_dir.tuning_path / digest_of(keys)
    done = [key for key, status in run_dir.statuses(keys).items() if status is Status.DONE]
    if done:
        record = run_dir.read_record(done[0])
    else:
        with writing(home):
            run_dir.tuning_path.mkdir(mode=0o700, exist_ok=True)
            (home / "cache").mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in run_dir.cache_path.glob("*.safetensors"):  # artefacts of earlier runs: features, teachers
            if not path.name.startswith("checkpoint-"):
                with suppress(OSError):
                    os.link(path, home / "cache" / path.name)
        progress.say("tuning: the number of trials is secret, so nothing is shown until the last one ends")
        progress.doing([("tuning, a secret number of trials", 0, 1)])
        try:
            best, folder = _trials(planned, home, source, resources)
        finally:
            progress.doing([])
        record = _release(best, folder, run_dir)
    shutil.rmtree(home, ignore_errors=True)
    if run_dir.tuning_path.is_dir() and not any(run_dir.tuning_path.iterdir()):
        run_dir.tuning_path.rmdir()
    assert record is not None
    return record


def _trials(planned: Planned, home: Path, source: DataSource, resources: Resources) -> tuple[Record, Path]:
    """Run the remaining trials below `home`; return the best one's record and folder."""
    state_path, system = home / "state.json", random.SystemRandom()
    if state_path.exists():
        state = json.loads(state_path.read_text())
    else:
        trials = draw_trials(planned.event.mean, planned.event.shape)
        drawn = [system.randrange(len(planned.cells)) for _ in range(trials)]
        state = {"drawn": drawn, "done": 0, "best": None, "score": None}
        write_atomic(state_path, json.dumps(state).encode(), mode=0o600)
    for number in range(state["done"], len(state["drawn"])):
        cell = planned.cells[state["drawn"][number]]
        trial = RunDir(home / str(number))
        trial.cache_path = home / "cache"
        trial.create()
        record = trial.read_record(cell.key) or run_cell(
            cell, trial, source, Progress(), resources, tuned=planned.event
        )
        # A failure is a valid outcome of a trial: the worst one.
        score = -math.inf if record.score is None else record.score
        loser = number
        if state["best"] is None or score > float(state["score"]):
            state["best"], state["score"], loser = number, str(score), state["best"]
        state["done"] = number + 1
        write_atomic(state_path, json.dumps(state).encode(), mode=0o600)
        if loser is not None:
            shutil.rmtree(home / str(loser), ignore_errors=True)
    best = home / str(state["best"])
    found = RunDir(best).read_record(planned.cells[state["drawn"][state["best"]]].key)
    if found is None:
        raise BenchError(f"{home} is damaged. Delete it and tune again; the privacy already spent stays spent.")
    return found, best


def _release(best: Record, folder: Path, run_dir: RunDir) -> Record:
    """Write the best trial's files and its record, without anything that reveals the number of trials."""
    kept = best.provenance.model_copy(
        update={
            "started": datetime.now(UTC).date().isoformat(), "wall_seconds": 0.0, "peak_memory_mib": None,
            "artefacts_made": 0, "artefacts_found": 0, "artefacts": {},
            "processor": best.provenance.processor and best.provenance.processor.partition(", with ")[0],
            "unread": {
                **best.provenance.unread, "started": "the date of the end alone: more would help to count the trials",
                **dict.fromkeys(("wall_seconds", "peak_memory_mib", "artefacts"), UNTOLD),
            },
        }
    )  # fmt: skip
    failure = None if best.failure is None else best.failure.model_copy(update={"log": None})
    record = best.model_copy(update={"provenance": kept, "failure": failure})
    with run_dir.guarded(record.disclosure.owner_only):
        for name in _files(record):
            write_atomic(run_dir.path / name, (folder / name).read_bytes())
    run_dir.write_record(record)
    return record


def _files(record: Record) -> list[str]:
    return [part.file for part in (record.student, record.image_grid) if part is not None]


def undate(run_dir: RunDir, records: Sequence[Record], others: Sequence[Path] = ()) -> None:
    """Date what the tunings wrote last, and `others`, to midnight: the end time would reveal how long they took."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    files = [run_dir.path / name for record in records for name in _files(record)]
    files += [run_dir.record_path(record.key) for record in records]
    for path in (
        *files, *others, run_dir.records_path, run_dir.released_path, run_dir.path / ".lock", run_dir.path
    ):  # fmt: skip
        if path.exists():
            os.utime(path, (midnight, midnight))


def plan_tunings(
    grids: Sequence[Grid], tuning: Tuning, run_dir: RunDir, source: DataSource, progress: Progress
) -> list[Planned]:
    """Plan the tunings of the cells of `grids`, and create `run_dir`; raise as :func:`plan_tuning` does."""
    run_dir.check_writable()
    calibrations = Calibrations(run_dir.cache_path)
    each = progress.each("calibrating", grids)
    plans = [plan_tuning(grid, tuning, source, calibrations) for grid in each]
    run_dir.create()
    calibrations.keep()
    return plans


def run_tunings(
    grids: Sequence[Grid], tuning: Tuning, out: Path, progress: Progress, resources: Resources = ONE_CPU
) -> list[Record]:
    """Tune the cells of `grids`, one after the other, in the run directory `out`; return their records.

    Raises :class:`BenchError` as :func:`plan_tuning` and :func:`run_tuning` do, before the first training.
    """
    source, run_dir = DataSource(progress), RunDir(out)
    plans = plan_tunings(grids, tuning, run_dir, source, progress)
    with run_dir.locked():
        records = [run_tuning(one, run_dir, source, progress, resources) for one in plans]
    undate(run_dir, records)
    return records
