"""Checks of the methods that a command names: here, side by side, or as jobs of a launcher; and their table.

Checks kept in a run directory are not repeated by a later command.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, replace
from os.path import realpath
from pathlib import Path
from typing import Any

import typer

from bench.cli.jobs import Job, Launched, launch_jobs, leave
from bench.core.config import Preset, check_overrides, seed_numbers
from bench.core.errors import BenchError
from bench.core.options import ONE_CPU, LaunchOptions
from bench.core.plain_files import read_plain
from bench.core.processes import available_cores
from bench.core.progress import SILENT, Progress, echo, open_progress, print_json, print_table
from bench.core.rows import Row, json_object
from bench.evaluation.check.noninterference import BRIEF, PARTS, PATIENCE, SECONDS, Check, CheckVerdict, check_method
from bench.evaluation.check.trials import random_seeds
from bench.experiments.calibration_cache import program_digest
from bench.interface.method import Method
from bench.interface.registry import METHODS
from bench.launchers.manifest import Task
from bench.launchers.settings import Cluster, launch_settings
from bench.results.run_dir import RunDir
from bench.storage.files import write_atomic


class KeptCheck(Row):
    """A check in the folder ``checks`` of a run directory; `asked`: the digest of options and of all code checked."""

    check: Check
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
        return None if kept.asked != self._asked(method) or kept.check.verdict is CheckVerdict.FAILED else kept.check

    def keep(self, method: type[Method], check: Check) -> None:
        """Write the `check` of `method`."""
        self._path(method).parent.mkdir(exist_ok=True)
        write_atomic(self._path(method), KeptCheck(check=check, asked=self._asked(method)).to_json().encode())

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a command checks, and how: the options of ``bench check``. `brief`: little time for each method."""

    methods: Sequence[str]
    dataset: str
    preset: Preset | None
    seeds: str
    seconds: float | None
    overrides: Sequence[str]
    brief: bool
    out: Path | None
    launch: LaunchOptions
    quiet: bool

    def words(self) -> list[str]:
        """Return the options with which another command makes the same checks."""
        given = {"--dataset": self.dataset, "--preset": self.preset and self.preset.value, "--seeds": self.seeds}
        given["--seconds"] = None if self.seconds is None else str(self.seconds)
        words = ["--brief"] if self.brief else []
        words += [word for text in self.overrides for word in ("--set", text)]
        return words + [word for flag, value in given.items() if value for word in (flag, value)]

    def settings(self) -> dict[str, Any]:
        """Return the arguments of :func:`check_method`."""
        return {
            "overrides": self.overrides,
            "dataset": self.dataset,
            "preset": self.preset or Preset.TINY,
            "seeds": seed_numbers(self.seeds) if self.seeds else random_seeds(),
            "awake": None if self.preset or self.dataset else Preset.QUICK,
            "seconds": (BRIEF if self.brief else SECONDS) if self.seconds is None else self.seconds,
            "patience": PATIENCE if self.brief else None,
        }


def run_checks(asked: Asked, *, json: bool) -> None:
    """Make the checks that are not kept yet, and print all; raise :class:`typer.Exit` if one does not pass."""
    chosen = {name: METHODS.get(name) for name in asked.methods or METHODS.names()}
    check_overrides(list(chosen.values()), asked.overrides)
    settings = launch_settings(replace(asked.launch, jobs=None))
    inline = settings.launcher == "inline"
    kept = None if asked.out is None and inline else Checks(asked.out or Path("runs"), asked.words())
    known = {name: done for name, method in chosen.items() if kept and (done := kept.find(method))}
    left = {name: method for name, method in chosen.items() if name not in known}
    ended = None
    with open_progress(quiet=asked.quiet) as progress:
        if kept is None or inline:
            known |= _side_by_side(left, asked, kept, progress, alone=len(chosen) == 1 and kept is None)
        else:
            if asked.launch.jobs is not None:
                settings = settings.model_copy(update={"jobs": asked.launch.jobs})
            ended = kept.launch(left, settings, progress)
            known |= {name: done for name, method in left.items() if (done := kept.find(method))}
    results = [known[name] for name in chosen if name in known]
    _print(results, json)
    for origin, why in METHODS.broken.items():
        echo(f"not checked, plug-in failed to import: {origin}: {why}", err=True)
    failed = not all(result.ok for result in results)
    if ended is not None:
        leave(ended, failed)
    elif failed:
        raise typer.Exit(1)


def _side_by_side(
    left: Mapping[str, type[Method]], asked: Asked, kept: Checks | None, progress: Progress, *, alone: bool
) -> dict[str, Check]:
    """Return the checks of the methods `left`; an error of a method raises :class:`BenchError` if it is `alone`."""
    options = asked.settings()

    def checked(method: type[Method]) -> Check:
        # Several methods run at the same time and share one stage.
        total = PARTS * len(options["seeds"]) + bool(options["awake"])
        own = progress.stage(method.name, total) if len(left) == 1 else nullcontext(SILENT)
        try:
            with own as stage:
                done = check_method(method, stage=stage, **options)
        except Exception as error:
            why = str(error) if isinstance(error, BenchError) else _raised(method, error)
            if not why:  # not raised by the method's code
                raise
            if alone:
                raise BenchError(f"{method.name}: {why}") from error
            done = Check(method.name, CheckVerdict.FAILED, why)
        if kept is not None:
            kept.keep(method, done)
        return done

    # Each check mostly waits for its subprocesses, so threads suffice.
    with ThreadPoolExecutor(asked.launch.jobs or available_cores()) as pool:
        running = {name: pool.submit(checked, method) for name, method in left.items()}
        try:
            with progress.stage("checks", len(running)) as stage:
                for ready in as_completed(running.values()):
                    one = ready.result()
                    progress.say(f"{one.method}: {one.verdict.value}{'' if one.ok else f': {one.reason}'}")
                    stage.advance()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return {name: ready.result() for name, ready in running.items()}


def _raised(method: type[Method], error: Exception) -> str:
    """Return `error` and the line of the method's file that raised it, or "" if the traceback does not contain it.

    A traceback's text also contains the frames of the check's process.
    """
    trace = "".join(traceback.format_exception(error))
    own = realpath(inspect.getfile(method))
    places = [
        (line, name)
        for file, line, name in re.findall(r'File "(.+)", line (\d+), in (.+)', trace)
        if realpath(file) == own
    ]
    if not places:
        return ""
    line, name = places[-1]
    few = " A check trains on few records." if isinstance(error, ValueError | IndexError | ArithmeticError) else ""
    return f"{type(error).__name__}: {error} ({Path(own).name}, line {line}, in {name}).{few}"


def _print(results: Sequence[Check], json: bool) -> None:
    if json:
        print_json({"checks": [{"method": r.method, "verdict": r.verdict.value, "reason": r.reason} for r in results]})
    else:
        rows = [(r.method, r.verdict.value, r.reason) for r in results]
        print_table("checks", ("method", "verdict", "reason"), rows)
