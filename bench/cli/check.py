"""``bench check``: parsing and printing only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.cli.options import Json, Quiet
from bench.core.config import Preset, check_overrides, seed_numbers
from bench.core.errors import BenchError
from bench.core.options import SET
from bench.core.progress import echo, open_progress, print_json, print_table, starting

if TYPE_CHECKING:
    from bench.interface.method import Method


def check(
    methods: Annotated[list[str] | None, typer.Argument(help="Methods or Python files; default: all methods.")] = None,
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
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Concurrent checks; default: one per core.")
    ] = None,
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
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Test whether a method uses private data outside its mechanisms, or reads labels from another source."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    from bench.interface.registry import METHODS

    for name in methods or ():
        if not name.endswith(".py"):  # imports may take seconds
            METHODS.get(name)
    with starting(quiet=quiet or json_):
        from bench.core.processes import available_cores
        from bench.evaluation.check.noninterference import (
            BRIEF,
            PATIENCE,
            SECONDS,
            Check,
            CheckVerdict,
            check_method,
            random_seeds,
        )

    chosen = [METHODS.get(name) for name in methods or METHODS.names()]
    check_overrides(chosen, set_ or ())

    def checked(method: type[Method]) -> Check:
        try:
            return check_method(method, **options)
        except BenchError as error:
            if len(chosen) == 1:
                raise BenchError(f"{method.name}: {error}") from error
            return Check(method.name, CheckVerdict.FAILED, str(error))

    options: dict[str, Any] = {
        "overrides": set_ or (),
        "dataset": dataset,
        "preset": preset or Preset.TINY,
        "seeds": seed_numbers(seeds) if seeds else random_seeds(),
        "awake": None if preset or dataset else Preset.QUICK,
        "seconds": (SECONDS if methods else BRIEF) if seconds is None else seconds,
        "patience": None if methods else PATIENCE,
    }
    # Each check mostly waits for its subprocesses, so threads suffice.
    with ThreadPoolExecutor(jobs or available_cores()) as pool, open_progress(quiet=quiet or json_) as progress:
        running = [pool.submit(checked, method) for method in chosen]
        try:
            with progress.stage("checks", len(running)) as stage:
                for done in as_completed(running):
                    one = done.result()
                    progress.say(f"{one.method}: {one.verdict.value}{'' if one.ok else f': {one.reason}'}")
                    stage.advance()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    results = [done.result() for done in running]
    if json_:
        print_json({"checks": [{"method": r.method, "verdict": r.verdict.value, "reason": r.reason} for r in results]})
    else:
        rows = [(r.method, r.verdict.value, r.reason) for r in results]
        print_table("checks", ("method", "verdict", "reason"), rows)
    for where, why in METHODS.broken.items():
        echo(f"not checked, plug-in failed to import: {where}: {why}", err=True)
    if not all(result.ok for result in results):
        raise typer.Exit(1)
