"""``bench tune``: random search whose cost is part of epsilon. Parsing and printing only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.options import Json, LawOption, Out, Quiet, TrialsMean, with_options
from bench.cli.run import grid_of, print_board
from bench.core.options import GridOptions, Resources, what
from bench.core.progress import open_progress
from bench.core.types import Basis, Law

EXAMPLE = """\
python -m bench tune -m scatter-linear -d mnist -e 3 --space lr.yaml --trials-mean 5"""


@with_options(eps="3", risk=..., basis=..., noise=..., precision=..., workers=...)
def tune(
    *,
    options: GridOptions,
    space: Annotated[
        Path, what("--space", help="YAML or JSON file of candidates, for instance a list of values per setting.")
    ],
    trials_mean: TrialsMean = 10.0,
    law: LawOption = Law.GEOMETRIC,
    score: Annotated[
        str,
        what("--score", help="Score that selects the best trial: public (public labels) or noisy (private records)."),
    ] = "public",
    score_noise: Annotated[
        float | None, what("--score-noise", help="Standard deviation of a noisy score, in records.")
    ] = None,
    out: Out = Path("runs"),
    resources: Resources,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Tune settings by a secret random number of trials and release the best. The proven epsilon includes tuning."""
    grid = replace(grid_of(options), basis=Basis.PROVEN)
    with open_progress(quiet=quiet or json_) as progress:
        with progress.stage("starting", 1):
            from bench.core.yaml_files import read_yaml
            from bench.experiments.device import prepare_device
            from bench.experiments.tuning import run_tunings, tuning_of

            tuning = tuning_of(read_yaml(space), trials_mean=trials_mean, law=law, score=score, score_noise=score_noise)
            resources = prepare_device(resources)
        cells = [
            replace(grid, methods=(method,), datasets=(dataset,), epsilons=(epsilon,), seeds=(seed,))
            for dataset in grid.datasets
            for method in grid.methods
            for seed in grid.seeds
            for epsilon in grid.epsilons
        ]
        records = run_tunings(cells, tuning, out, progress, resources)
    print_board(records, [], json_=json_, out=out)
    if any(record.failure for record in records):
        raise typer.Exit(1)
