"""``bench check``: parsing only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli.options import Json, Quiet, records, with_options
from bench.core.config import Preset
from bench.core.options import SET, LaunchOptions, where
from bench.core.progress import starting

JOBS = where("--jobs", "-j", min=1, help="Checks at the same time; default: one for each core.")


Methods = Annotated[list[str] | None, typer.Argument(help="Methods or Python files; default: all methods.")]
Dataset = Annotated[
    str, typer.Option("--dataset", "-d", help="Private data of the first run; default: a generated set.")
]
CheckPreset = Annotated[
    Preset | None,
    typer.Option("--preset", "-p", help="Default: tiny, plus one run of quick, whose students are accurate."),
]
Seeds = Annotated[
    str,
    typer.Option("--seeds", "-s", help="Seeds, comma-separated, to repeat an earlier check; default: two random ones."),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=0,
        help=(
            "Time for a search among neighbours; walks and small sets get four times as long. "
            "Default: 5, or 0.5 for all methods."
        ),
    ),
]
Set = Annotated[list[str] | None, SET]
Brief = Annotated[bool, typer.Option("--brief", hidden=True)]
Out = Annotated[
    Path | None,
    records("--out", "-o", help="Run directory that keeps the checks, to resume; default with a launcher: runs."),
]


@with_options(
    jobs=JOBS, shards=..., retries=..., gpus=..., pack=..., detach=..., scratch=..., device=..., workers=...,
    threads=...,
)  # fmt: skip
def check(
    methods: Methods = None, *, dataset: Dataset = "", preset: CheckPreset = None, seeds: Seeds = "",
    seconds: Seconds = None, set_: Set = None, brief: Brief = False, out: Out = None, launch: LaunchOptions,
    quiet: Quiet = False, json_: Json = False,
) -> None:  # fmt: skip
    """Test whether a method uses private data outside any mechanism, or reads labels from another source.

    --launcher runs each check as a process or a Slurm job; the same command, given again, runs the remaining ones.
    """
    from bench.interface.registry import METHODS

    for name in methods or ():
        if not name.endswith(".py"):  # imports may take seconds
            METHODS.get(name)
    with starting(quiet=quiet or json_):
        from bench.cli.check_runs import Asked, run_checks

    asked = Asked(
        methods=methods or (), dataset=dataset, preset=preset, seeds=seeds, seconds=seconds, overrides=set_ or (),
        brief=brief or not methods, out=out, launch=launch, quiet=quiet or json_,
    )  # fmt: skip
    run_checks(asked, json=json_)
