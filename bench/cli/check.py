"""``bench check``: parsing and printing only."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Sequence
from dataclasses import replace
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.cli.options import Json, Quiet, records, with_options
from bench.core.config import Preset, check_overrides, seed_numbers
from bench.core.errors import BenchError
from bench.core.options import SET, LaunchOptions, where
from bench.core.progress import SILENT, echo, open_progress, print_json, print_table, starting

if TYPE_CHECKING:
    from bench.evaluation.check.noninterference import Check
    from bench.interface.method import Method


JOBS = where("--jobs", "-j", min=1, help="Checks at the same time; default: one for each core.")


@with_options(
    jobs=JOBS, shards=..., retries=..., gpus=..., pack=..., detach=..., scratch=..., device=..., workers=...,
    threads=...,
)  # fmt: skip
def check(
    methods: Annotated[list[str] | None, typer.Argument(help="Methods or Python files; default: all methods.")] = None,
    *,
    dataset: Annotated[
        str, typer.Option("--dataset", "-d", help="Private data of the first run; default: a generated set.")
    ] = "",
    preset: Annotated[
        Preset | None,
        typer.Option("--preset", "-p", help="Default: tiny, plus one run of quick, whose students are accurate."),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option("--seeds", "-s", help="Seeds of a check to repeat, comma-separated; default: two random ones."),
    ] = "",
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help=(
                "Time for a search among neighbours; walks and small sets get four times as long. "
                "Default: 5, or 0.5 for all methods."
            ),
        ),
    ] = None,
    set_: Annotated[list[str] | None, SET] = None,
    brief: Annotated[bool, typer.Option("--brief", hidden=True)] = False,
    out: Annotated[
        Path | None,
        records("--out", "-o", help="Run directory that keeps the checks, to resume; default with a launcher: runs."),
    ] = None,
    launch: LaunchOptions,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Test whether a method uses private data outside any mechanism, or reads labels from another source.

    --launcher runs each check as a process or a Slurm job; the same command, given again, runs the remaining ones.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed
    from contextlib import nullcontext

    from bench.interface.registry import METHODS

    for name in methods or ():
        if not name.endswith(".py"):  # imports may take seconds
            METHODS.get(name)
    with starting(quiet=quiet or json_):
        from bench.cli.jobs import leave
        from bench.core.processes import available_cores
        from bench.evaluation.check.noninterference import (
            BRIEF,
            PARTS,
            PATIENCE,
            SECONDS,
            Check,
            CheckVerdict,
            check_method,
            random_seeds,
        )
        from bench.launchers.settings import launch_settings

    brief = brief or not methods
    chosen = {name: METHODS.get(name) for name in methods or METHODS.names()}
    check_overrides(list(chosen.values()), set_ or ())
    settings = launch_settings(replace(launch, jobs=None))
    inline = settings.launcher == "inline"
    kept = None
    if out is not None or not inline:
        from bench.cli.check_jobs import Checks

        words = ["--brief"] if brief else []
        words += [word for text in set_ or () for word in ("--set", text)]
        told = {"--dataset": dataset, "--preset": preset and preset.value, "--seeds": seeds, "--seconds": seconds}
        words += [word for flag, value in told.items() if value not in (None, "") for word in (flag, str(value))]
        kept = Checks(out or Path("runs"), words)
    known = {name: done for name, method in chosen.items() if kept and (done := kept.find(method))}
    left = {name: method for name, method in chosen.items() if name not in known}

    def checked(method: type[Method]) -> Check:
        # Several methods run at the same time and share one stage.
        total = PARTS * len(options["seeds"]) + bool(options["awake"])
        own = progress.stage(method.name, total) if len(left) == 1 else nullcontext(SILENT)
        try:
            with own as stage:
                done = check_method(method, stage=stage, **options)
        except Exception as error:
            why = str(error) if isinstance(error, BenchError) else _raised(method, error)
            if not why:  # not by the method
                raise
            if len(chosen) == 1 and kept is None:
                raise BenchError(f"{method.name}: {why}") from error
            done = Check(method.name, CheckVerdict.FAILED, why)
        if kept is not None:
            kept.keep(method, done)
        return done

    options: dict[str, Any] = {
        "overrides": set_ or (),
        "dataset": dataset,
        "preset": preset or Preset.TINY,
        "seeds": seed_numbers(seeds) if seeds else random_seeds(),
        "awake": None if preset or dataset else Preset.QUICK,
        "seconds": (BRIEF if brief else SECONDS) if seconds is None else seconds,
        "patience": PATIENCE if brief else None,
    }
    if kept is not None and not inline:
        if launch.jobs is not None:
            settings = settings.model_copy(update={"jobs": launch.jobs})
        with open_progress(quiet=quiet or json_) as progress:
            ended = kept.launch(left, settings, progress)
        known |= {name: done for name, method in left.items() if (done := kept.find(method))}
        _print(list(known.values()), json_)
        leave(ended, not all(result.ok for result in known.values()))
        return
    # Each check mostly waits for its subprocesses, so threads suffice.
    with ThreadPoolExecutor(launch.jobs or available_cores()) as pool, open_progress(quiet=quiet or json_) as progress:
        running = {name: pool.submit(checked, method) for name, method in left.items()}
        try:
            with progress.stage("checks", len(running)) as stage:
                for ready in as_completed(running.values()):
                    one = ready.result()
                    progress.say(f"{one.method}: {one.verdict.value}{'' if one.ok else f': {one.reason}'}")
                    stage.advance()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    known |= {name: ready.result() for name, ready in running.items()}
    results = [known[name] for name in chosen]
    _print(results, json_)
    for origin, why in METHODS.broken.items():
        echo(f"not checked, plug-in failed to import: {origin}: {why}", err=True)
    if not all(result.ok for result in results):
        raise typer.Exit(1)


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
    return f"{type(error).__name__}: {error} ({Path(own).name}, line {line}, in {name}). A check trains on few records."


def _print(results: Sequence[Check], json: bool) -> None:
    if json:
        print_json({"checks": [{"method": r.method, "verdict": r.verdict.value, "reason": r.reason} for r in results]})
    else:
        rows = [(r.method, r.verdict.value, r.reason) for r in results]
        print_table("checks", ("method", "verdict", "reason"), rows)
