"""``bench tune``: random search whose cost is part of epsilon. Parsing and printing only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.options import CREW, Json, Out, Quiet, with_options
from bench.cli.run import grid_of, print_board
from bench.core.options import GridOptions, LaunchOptions, what
from bench.core.progress import open_progress
from bench.core.types import Basis, Law

EXAMPLE = """\
python -m bench tune -m scatter-linear -d mnist -e 3 --space lr.yaml --trials-mean 5"""


Space = Annotated[
    Path, what("--space", help="YAML or JSON file of candidates, for instance a list of values per setting.")
]
TrialsMean = Annotated[float, typer.Option(help="Mean of the secret random number of trials.")]
TrialLaw = Annotated[Law, typer.Option("--law", help="Distribution of the number of trials.")]
Score = Annotated[
    str, what("--score", help="Score that selects the best trial: public (public labels) or noisy (private records).")
]
ScoreNoise = Annotated[float | None, what("--score-noise", help="Standard deviation of a noisy score, in records.")]
Marked = Annotated[Path | None, typer.Option("--mark", hidden=True)]


@with_options(
    eps=("3", what("--eps", "-e", help="Target epsilons, tuning included, comma-separated.")),
    adjacency=what("--adjacency", help="Adjacency of the target: replace-one, or own (the method's)."),
    risk=..., basis=..., noise=..., precision=..., workers=CREW, shards=..., retries=..., gpus=..., pack=...,
    detach=..., scratch=...,
)  # fmt: skip
def tune(
    *, options: GridOptions, space: Space, trials_mean: TrialsMean = 10.0, law: TrialLaw = Law.GEOMETRIC,
    score: Score = "public", score_noise: ScoreNoise = None, out: Out = Path("runs"), marked: Marked = None,
    launch: LaunchOptions, quiet: Quiet = False, json_: Json = False,
) -> None:  # fmt: skip
    """Choose settings by a secret random number of trials; release the best. The proven epsilon includes tuning.

    --launcher runs the tuning of each method, data set, epsilon and seed as a process or a Slurm job.
    """
    grid = replace(grid_of(options), basis=Basis.PROVEN)
    with open_progress(quiet=quiet or json_) as progress:
        with progress.stage("starting", 1):
            from bench.cli.jobs import Launched, leave
            from bench.cli.tune_jobs import mark, tune_by_jobs
            from bench.core.yaml_files import read_yaml
            from bench.experiments.device import prepare_device
            from bench.experiments.tuning import run_tunings, tuning_of
            from bench.launchers.settings import launch_settings

            settings = launch_settings(launch)
            tuning = tuning_of(read_yaml(space), trials_mean=trials_mean, law=law, score=score, score_noise=score_noise)
        cells = [
            replace(grid, methods=(method,), datasets=(dataset,), epsilons=(epsilon,), seeds=(seed,))
            for dataset in grid.datasets
            for method in grid.methods
            for seed in grid.seeds
            for epsilon in grid.epsilons
        ]
        if settings.launcher == "inline":
            records = run_tunings(cells, tuning, out, progress, prepare_device(launch.resources))
            ended = Launched()
        else:
            given = {"--space": space.resolve(), "--trials-mean": trials_mean, "--law": law.value, "--score": score}
            given |= {} if score_noise is None else {"--score-noise": score_noise}
            words = [str(word) for option in given.items() for word in option]
            records, ended = tune_by_jobs(options, cells, tuning, words, out, settings, launch.resources, progress)
    if marked is not None:
        mark(marked, records)
    print_board(records, [], json_=json_, out=out)
    leave(ended, any(record.failure for record in records))
