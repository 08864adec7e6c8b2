"""Options of a grid and of a launch, declared once for commands, :func:`bench.run` and printed commands.

A field of type ``Annotated[TYPE, OPTION]`` is an option of a command line. In ``Annotated[TYPE, WORD, OPTION]`` the
command line gives a WORD, and the library takes a TYPE.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_type_hints

import typer

from bench.core.config import Grid, NoiseKind, PrecisionKind, Preset, seed_numbers
from bench.core.errors import BenchError, UnknownNameError
from bench.core.risk_target import RiskTarget
from bench.core.types import OWN_DATA, Basis, TargetAdjacency

what = partial(typer.Option, rich_help_panel="What to run")
where = partial(typer.Option, rich_help_panel="Where it runs")
on_slurm = partial(typer.Option, rich_help_panel="Slurm")
of_students = partial(typer.Option, rich_help_panel="Students")

E = TypeVar("E", bound=StrEnum)
N = TypeVar("N", int, float)
Names = str | Iterable[str]
"""One name, several comma-separated names, or a list of names."""


PRESET = what("--preset", "-p", help="paper, quick (minutes) or tiny (seconds).")
SET = what("--set", metavar="FIELD=VALUE", help="A setting, or METHOD.FIELD=VALUE; repeatable.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """A user's description of what to run; :meth:`grid` validates it."""

    methods: Annotated[
        Names,
        str,
        what("--methods", "-m", help="Methods or groups (all, transfer, ...), comma-separated; see `bench ls`."),
    ]
    datasets: Annotated[
        Names, str, what("--datasets", "-d", help="Data sets, comma-separated; folder:PATH for your own.")
    ] = "mnist"
    eps: Annotated[
        float | str | Iterable[float] | None,
        str | None,
        what("--eps", "-e", help="Target epsilons, comma-separated; default: 1,10."),
    ] = None
    risk: Annotated[
        str | None,
        what("--risk", help="Instead of --eps, a limit on attacks: advantage=, tpr@RATE= or reconstruction@PRIOR=."),
    ] = None
    seeds: Annotated[
        int | str | Iterable[int], str, what("--seeds", "-s", help="Seeds, comma-separated; 0-4 is a range.")
    ] = "0"
    preset: Annotated[str, Preset, PRESET] = Preset.QUICK
    basis: Annotated[
        str | None,
        Basis | None,
        what(
            "--basis",
            help="Which epsilon the target bounds; default: claimed, but proven with --risk or your own data.",
        ),
    ] = None
    adjacency: Annotated[
        str,
        TargetAdjacency,
        what("--adjacency", help="Adjacency of the target with --basis proven: replace-one, or own (the method's)."),
    ] = TargetAdjacency.REPLACE_ONE
    delta: Annotated[float | None, what("--delta", help="Default: 1e-5, or less for large data sets.")] = None
    noise: Annotated[str, NoiseKind, what("--noise", help="secure: exact samplers, not reproducible.")] = (
        NoiseKind.SEEDED
    )
    set_: Annotated[Mapping[str, object] | Sequence[str] | None, list[str] | None, SET] = None
    teacher: Annotated[str | None, what("--teacher", help="Any timm model, for methods with teachers.")] = None
    student: Annotated[str | None, what("--student", help="Any timm model.")] = None
    precision: Annotated[
        str, PrecisionKind, what("--precision", help="Precision of teacher ensembles: float32, tf32 (CUDA) or bf16.")
    ] = PrecisionKind.FLOAT32

    def grid(self) -> Grid:
        """Return the grid; raise :class:`BenchError` on a value out of range, :class:`UnknownNameError` on a name."""
        risk = None if self.risk is None else RiskTarget.parse(self.risk)
        if risk is not None and self.eps is not None:
            raise BenchError("--risk finds the epsilon: give --risk or --eps, not both.")
        epsilons = _numbers("eps", "1,10" if self.eps is None else self.eps, float)
        datasets = _names(self.datasets)
        # On private records, a target must hold: a paper's formula may promise more than its algorithm keeps.
        sound = risk is not None or any(name.startswith(OWN_DATA) for name in datasets)
        basis = self.basis or (Basis.PROVEN if sound else Basis.CLAIMED)
        models = {role: name for role, name in (("teacher", self.teacher), ("student", self.student)) if name}
        return Grid(
            _names(self.methods), datasets, epsilons,
            _numbers("seeds", self.seeds, int), member(Preset, "preset", self.preset),
            member(Basis, "basis", basis), self.delta, member(NoiseKind, "noise", self.noise),
            member(PrecisionKind, "precision", self.precision), (*_texts(self.set_ or ()), *_texts(models)),
            member(TargetAdjacency, "adjacency", self.adjacency), risk,
        )  # fmt: skip


def _device(name: str) -> str:
    # torch validates the name later; this only catches the names that people try first.
    if name.partition(":")[0].lower() in ("gpu", "nvidia"):
        raise BenchError(f"--device {name} is unknown. Accepted: auto, cpu, cuda or cuda:N. Use cuda for a GPU.")
    return name


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a process; `devices` lists the GPUs if one cell uses several, and is empty otherwise."""

    device: Annotated[str, where("--device", help="auto, cpu, cuda or cuda:N.", callback=_device)] = "auto"
    workers: Annotated[
        int, where("--workers", help="Processes for the teachers of a cell; 0: the cores of its job.", min=0)
    ] = 0
    threads: Annotated[int, where("--threads", help="CPU threads per operation.", min=1)] = 1
    devices: tuple[str, ...] = ()


ONE_CPU = Resources("cpu", workers=1)


@dataclass(frozen=True, slots=True)
class Students:
    """Students of a run directory that a command is about."""

    keys: Annotated[
        list[str] | None,
        typer.Argument(
            help="Keys of records or their prefixes, or method files; default: every student of the directory."
        ),
    ] = None
    out: Annotated[Path, of_students("--out", "-o", help="Run directory of `bench run`.")] = Path("runs")
    methods: Annotated[
        str,
        of_students("--methods", "-m", help="Only students of these methods, comma-separated; method files work too."),
    ] = ""
    data: Annotated[
        str | None, of_students("--data", help="folder:PATH, if the students trained on your own data.")
    ] = None

    def resolved(self) -> Self:
        """Return these students, with method files among the `keys` as `methods`."""
        files = [key for key in self.keys or () if key.endswith(".py")]
        keys = [key for key in self.keys or () if key not in files]
        return replace(self, keys=keys, methods=",".join([self.methods, *files]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Where to run. None: the value in the file `cluster`, or the launcher's default."""

    launcher: Annotated[
        str | None,
        where(
            "--launcher",
            help=(
                "inline (default), local (--jobs N processes on this machine) or slurm; `bench run` also takes "
                "submitit:NAME and the launchers of installed packages."
            ),
            metavar="LAUNCHER",
        ),
    ] = None
    jobs: Annotated[
        int | None,
        where("--jobs", "-j", help="Processes of --launcher local; 0: one per GPU, or per core without GPUs.", min=0),
    ] = None
    shards: Annotated[int | None, where("--shards", help="Split an ensemble's training over N jobs.", min=1)] = None
    retries: Annotated[
        int | None, where("--retries", help="How often a cell is retried after its process dies.", min=0)
    ] = None
    gpus: Annotated[
        int | None, where("--gpus", help="GPUs per job; local default: 1 if the machine has any.", min=0)
    ] = None
    scratch: Annotated[
        str | None,
        where(
            "--scratch",
            help="Folder on a node's own disk for copies of data and artefacts, such as '$TMPDIR' (quoted).",
        ),
    ] = None
    cluster: Annotated[Path | None, where("--cluster", help="YAML file with launcher settings; flags override it.")] = (
        None
    )
    partition: Annotated[str | None, on_slurm("--partition", help="Partition.")] = None
    cpus: Annotated[int | None, on_slurm("--cpus", help="Cores per job.", min=1)] = None
    memory: Annotated[float | None, on_slurm("--memory", help="GB per job.")] = None
    time: Annotated[
        str | None, on_slurm("--time", help="Time limit: minutes, H:MM:SS or D-H:MM:SS; longer jobs are requeued.")
    ] = None
    max_memory: Annotated[
        float | None, on_slurm("--max-memory", help="GB; a job that runs out of memory gets twice as much, up to this.")
    ] = None
    max_time: Annotated[
        str | None, on_slurm("--max-time", help="A job that runs out of time gets twice as much, up to this.")
    ] = None
    parallel: Annotated[int | None, on_slurm("--parallel", help="Maximum number of concurrent jobs.", min=1)] = None
    account: Annotated[str | None, on_slurm("--account", help="Account.")] = None
    slurm: Annotated[list[str] | None, on_slurm("--slurm", help="KEY=VALUE directive; repeatable.")] = None
    pack: Annotated[float | None, on_slurm("--pack", help="Pack small cells into jobs of this many minutes.")] = None
    detach: Annotated[bool, on_slurm("--detach", help="Submit and exit.")] = False
    resources: Resources = field(default_factory=Resources)

    def flags(self) -> dict[str, Any]:
        """Return the launcher settings given as individual options, by their name in the file `cluster`."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        other = ("cluster", "slurm", "detach", "resources")
        return {name: value for name, value in named.items() if name not in other and value is not None}


def hints_of(kind: type) -> dict[str, Any]:
    """Return the types of `kind`'s fields, in order, with their options."""
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: hints[one.name] for one in fields(kind)}


@functools.cache  # cached, because thousands of pages print a command
def flags_of(kind: type) -> dict[str, str]:
    """Return the command-line option for each field of `kind`, "" for one without."""
    hints = hints_of(kind)
    return {name: "".join(str(one.default) for one in getattr(hints[name], "__metadata__", ())[-1:]) for name in hints}


def words_of(options: Any) -> list[str]:
    """Return the command-line words for the dataclass `options`, omitting fields that are None."""
    kind: type = type(options)
    return [word for name, flag in flags_of(kind).items() for word in _words(flag, getattr(options, name))]


def grid_words(**given: object) -> list[str]:
    """Return the command-line words for these fields of :class:`GridOptions`, omitting None and default choices."""
    told = {name: value for name, value in given.items() if value is not _usual().get(name)}
    return [word for name, value in told.items() for word in _words(flags_of(GridOptions)[name], value)]


@functools.cache
def _usual() -> dict[str, object]:
    choices = {one.name: one.default for one in fields(GridOptions) if isinstance(one.default, StrEnum)}
    return {"basis": Basis.CLAIMED, **choices}  # with --eps


def _words(flag: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [flag.split("/")[not value]]
    if not flag or value is None:
        return []
    return [flag, number_word(value) if isinstance(value, float) else str(value)]


def number_word(value: float) -> str:
    """Return the shortest text that parses to `value`."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def member(kind: type[E], name: str, value: str) -> E:
    """Return the member of `kind` with this value; raise :class:`UnknownNameError` without one."""
    try:
        return kind(value)
    except ValueError:
        raise UnknownNameError(name, str(value), [one.value for one in kind]) from None


def _names(names: Names) -> tuple[str, ...]:
    every = names.split(",") if isinstance(names, str) else map(str, names)
    return tuple(dict.fromkeys(name.strip() for name in every if name.strip()))


def _texts(values: Mapping[str, object] | Sequence[str]) -> Sequence[str]:
    if not isinstance(values, Mapping):
        return values
    return [f"{name}={'none' if value is None else value}" for name, value in values.items()]


def _numbers(name: str, values: float | str | Iterable[float], kind: type[N]) -> tuple[N, ...]:
    if isinstance(values, str):
        return tuple(map(kind, seed_numbers(values) if kind is int else map(_number, _names(values))))
    every: Sequence[Any] = list(values) if isinstance(values, Iterable) else [values]
    try:
        numbers = [kind(value) for value in every]
        if any(isinstance(value, float) and number != value for number, value in zip(numbers, every, strict=True)):
            raise ValueError
    except (TypeError, ValueError):
        noun = "numbers" if kind is float else "whole numbers"
        raise BenchError(f"{name} takes {noun}, one or several, not {values!r}. Try {name}=[1, 2].") from None
    return tuple(dict.fromkeys(numbers))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BenchError(f"--eps takes comma-separated numbers, for instance 1,10, not {text!r}.") from None
