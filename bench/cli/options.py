"""Options that several commands share, in groups for their help."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bench.core.config import NoiseKind, PrecisionKind, Preset, Reuse
from bench.core.errors import BenchError
from bench.core.types import Basis, Law, TargetAdjacency

what = partial(typer.Option, rich_help_panel="What to run")
records = partial(typer.Option, rich_help_panel="Records")
where = partial(typer.Option, rich_help_panel="Where it runs")
slurm = partial(typer.Option, rich_help_panel="Slurm")


class Launcher(StrEnum):
    """Where cells run."""

    INLINE = "inline"
    LOCAL = "local"
    SLURM = "slurm"


TrialsMean = Annotated[float, typer.Option(help="Mean of the secret random number of trials.")]
LawOption = Annotated[Law, typer.Option("--law", help="The law of the number of trials.")]
_methods = what("--methods", "-m", help="Methods or groups (all, transfer, ...), comma-separated; see `bench ls`.")
Methods = Annotated[str, _methods]
MethodsOrNone = Annotated[str | None, _methods]
BundleFile = Annotated[Path | None, what("--bundle", help="File with grid, data and weights, from `bench bundle`.")]
Datasets = Annotated[str, what("--datasets", "-d", help="Data sets, comma-separated; folder:PATH for your own.")]
Epsilons = Annotated[str, what("--eps", "-e", help="Target epsilons, comma-separated.")]
Seeds = Annotated[str, what("--seeds", "-s", help="Seeds, comma-separated; 0-4 is a range.")]
PresetOption = Annotated[Preset, what("--preset", "-p", help="paper, quick (minutes) or tiny (seconds).")]
BasisOption = Annotated[Basis, what("--basis", help="Which epsilon the target bounds.")]
AdjacencyOption = Annotated[
    TargetAdjacency,
    what("--adjacency", help="Adjacency of the target with --basis proven: replace-one, or own (the method's)."),
]
Delta = Annotated[float | None, what("--delta", help="Default: 1e-5, or less for large data sets.")]
NoiseOption = Annotated[NoiseKind, what("--noise", help="secure: exact samplers, not reproducible.")]
NoiseSalt = Annotated[
    str,
    what("--noise-salt", help="random, or to repeat a record its noise_salt; none if the record has none."),
]
Sets = Annotated[list[str] | None, what("--set", help="FIELD=VALUE or METHOD.FIELD=VALUE; repeatable.")]
Teacher = Annotated[str | None, what("--teacher", help="Any timm model, for methods with teachers.")]
StudentOption = Annotated[str | None, what("--student", help="Any timm model.")]
PrecisionFlag = Annotated[
    PrecisionKind, what("--precision", help="Precision of teacher ensembles: float32, tf32 (CUDA) or bf16.")
]
Out = Annotated[Path, records("--out", "-o", help="Run directory.")]
ReuseOption = Annotated[Reuse, records("--reuse", help="Which existing records count as done.")]


def _device(name: str) -> str:
    # torch validates the name later; this only catches the names that people try first.
    if name.partition(":")[0].lower() in ("gpu", "nvidia"):
        raise BenchError(f"--device {name} is unknown. Accepted: auto, cpu, cuda or cuda:N. Use cuda for a GPU.")
    return name


Device = Annotated[str, where("--device", help="auto, cpu, cuda or cuda:N.", callback=_device)]
Threads = Annotated[int, where("--threads", help="CPU threads per operation.", min=1)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LauncherOption = Annotated[
    Launcher | None, where("--launcher", help="inline (default), local (--jobs N processes on this machine) or slurm.")
]
Jobs = Annotated[
    int | None,
    where("--jobs", "-j", help="Processes of --launcher local; 0: one per GPU, or per core without GPUs.", min=0),
]
ClusterFile = Annotated[Path | None, where("--cluster", help="YAML file with launcher settings; flags override it.")]
Partition = Annotated[str | None, slurm("--partition", help="Partition.")]
Gpus = Annotated[int | None, where("--gpus", help="GPUs per job; local default: 1 if the machine has any.", min=0)]
Cpus = Annotated[int | None, slurm("--cpus", help="Cores per job.", min=1)]
Memory = Annotated[float | None, slurm("--memory", help="GB per job.")]
Time = Annotated[str | None, slurm("--time", help="Time limit, minutes or H:MM:SS; longer jobs are requeued.")]
Parallel = Annotated[int | None, slurm("--parallel", help="Maximum number of concurrent jobs.", min=1)]
Account = Annotated[str | None, slurm("--account", help="Account.")]
Directives = Annotated[list[str] | None, slurm("--slurm", help="KEY=VALUE directive; repeatable.")]
PackOption = Annotated[float | None, slurm("--pack", help="Pack small cells into jobs of this many minutes.")]
Shards = Annotated[int | None, where("--shards", help="Split an ensemble's training over N jobs.", min=1)]
Retries = Annotated[int | None, where("--retries", help="How often a cell is retried after its process dies.", min=0)]
Detach = Annotated[bool, slurm("--detach", help="Submit and exit.")]
DryRun = Annotated[
    bool, records("--dry-run", help="Print states, settings, claims, order, jobs, times; train nothing.")
]
