"""Launcher settings and Slurm resources, from a YAML file and from flags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bench.core.errors import BenchError, UnknownNameError, first_problem
from bench.core.options import LaunchOptions
from bench.core.processes import available_cores
from bench.core.yaml_files import read_yaml
from bench.experiments.plan import Cell
from bench.storage.scratch import VARIABLE

LAUNCHERS = ("inline", "local", "slurm")
SUBMITIT = "submitit:"  # before the name of an executor
ENTRY_POINTS = "bench.launchers"  # the group of those from installed packages, see bench.launchers.executors
OURS = frozenset({"array", "job-name", "output", "error", "open-mode", "signal", "wrap"})  # only this program sets them

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")  # a line break would turn what follows into a command of Slurm's script


class JobResources(BaseModel):
    """Slurm resources of one job."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: str | None = None
    gpus: int = Field(0, ge=0)
    cpus: int = Field(1, ge=1)
    nodes: int = Field(1, ge=1)  # The cells of a job are shared among its nodes.
    memory: float | None = Field(None, gt=0)  # GB
    time: int = Field(240, ge=1)  # minutes; a job near this limit is requeued and resumes, up to `retries` times
    max_memory: float | None = Field(None, gt=0)  # GB; a job that ran out of memory is repeated with twice as much
    max_time: int | None = Field(None, ge=1)  # minutes; a job that ran out of time is repeated with twice as much
    account: str | None = None
    qos: str | None = None
    extra: dict[str, str | int | float | bool] = {}
    """Further sbatch directives by long name; True for one without a value."""

    @field_validator("partition", "account", "qos")
    @classmethod
    def _one_line(cls, value: str | None) -> str | None:
        if value is not None and CONTROL.search(value):
            raise ValueError("a text without line breaks and other control characters")
        return value

    @field_validator("extra")
    @classmethod
    def _directives(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, given in value.items():
            if not re.fullmatch(r"[a-z][a-z0-9_-]*", name) or CONTROL.search(str(given)):
                raise ValueError("long names of sbatch's options, with values without control characters")
        for name in OURS & {name.replace("_", "-") for name in value}:
            raise ValueError(f"{name} is set by this program; with another value it could not find its jobs")
        return value

    @field_validator("time", "max_time", mode="before")
    @classmethod
    def _minutes(cls, value: Any) -> Any:
        return minutes(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _limits(self) -> Self:
        for name, least, most in (("time", self.time, self.max_time), ("memory", self.memory, self.max_memory)):
            if least is not None and most is not None and most < least:
                raise ValueError(f"max_{name} must be at least {name} ({least:g}), not {most:g}")
        return self


@dataclass(frozen=True, slots=True)
class More:
    """Minutes and GB beyond a job's settings that earlier attempts showed to be necessary; None: nothing more."""

    time: int | None = None
    memory: float | None = None

    def of(self, own: JobResources) -> JobResources:
        """Return `own` resources with these."""
        told = {"time": self.time, "memory": self.memory}
        return own.model_copy(update={name: value for name, value in told.items() if value is not None})

    @property
    def words(self) -> str:
        """Return them as text: " with 8 GB and 20 min"."""
        memory = "" if self.memory is None else f"{self.memory:.3g} GB"
        time = "" if self.time is None else f"{self.time} min"
        told = " and ".join(filter(None, (memory, time)))
        return f" with {told}" if told else ""


NOTHING_MORE = More()


def largest(needs: Iterable[More]) -> More:
    """Return what suffices for all `needs`."""
    every = list(needs)
    return More(
        max((more.time for more in every if more.time is not None), default=None),
        max((more.memory for more in every if more.memory is not None), default=None),
    )


class Cluster(JobResources):
    """All settings of a launch, in the layout of the YAML file."""

    launcher: str = "inline"
    jobs: int = Field(0, ge=0)  # Processes of the local launcher; 0: one per GPU, or one per core.
    shards: int = Field(1, ge=1)  # Jobs per ensemble.
    parallel: int | None = Field(None, ge=1)  # Concurrent jobs of the whole launch; None: no cap.
    pack: float = Field(10.0, ge=0)  # Target minutes of a job of small cells; 0: one job per cell.
    retries: int | None = Field(None, ge=0)
    """Restarts of a cell whose process died; with Slurm also requeues after a time limit. None: 3, and 10 for Slurm."""
    scratch: str | None = None  # A folder on the disk of a node, such as $TMPDIR, for copies of data and artefacts.
    python: str | None = None  # Shell command that starts Python in a job, for example in a container.
    srun_args: list[str] = []
    setup: list[str] = []  # Shell lines that run before the program, for example to load modules.
    on_record: str = ""  # Shell commands of the launcher's machine, see bench.launchers.hooks.
    on_failure: str = ""
    on_end: str = ""
    methods: dict[str, dict[str, Any]] = {}  # Different resources, by method.

    @property
    def shell(self) -> list[str]:
        """The lines that a node's shell runs first; it knows the variables in `scratch`."""
        return [*self.setup, *([f'export {VARIABLE}="{self.scratch}"'] if self.scratch else [])]

    @field_validator("launcher")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in LAUNCHERS and not value.startswith(SUBMITIT) and value not in (there := launcher_points()):
            known = ", ".join([*LAUNCHERS, *there])
            raise ValueError(f"accepted are {known} and {SUBMITIT}NAME, where NAME is an executor of submitit")
        return value

    @field_validator("python")
    @classmethod
    def _command(cls, value: str | None) -> str | None:
        if value is not None and (CONTROL.search(value) or not value.strip()):
            raise ValueError("a command without control characters")
        return value

    @field_validator("setup", "srun_args")
    @classmethod
    def _shell_lines(cls, value: list[str]) -> list[str]:
        if any(CONTROL.search(line.replace("\t", " ").replace("\n", " ")) for line in value):
            raise ValueError("shell lines without control characters")
        return value

    @field_validator("scratch")
    @classmethod
    def _folder(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[\w./$~+-]+", value):
            raise ValueError("a path, with variables as $NAME: letters, digits and . / _ - + ~ $")
        return value

    def at_once(self) -> int:
        """Return how many jobs of an executor run at once: `parallel`, by default as many as this machine's cores."""
        return self.parallel or max(1, available_cores() // self.cpus)

    def of(self, method: str) -> JobResources:
        """Return the resources of a job of `method`."""
        names = set(JobResources.model_fields)
        return JobResources(**{**self.model_dump(include=names), **self.methods.get(method, {})})


def launcher_points() -> dict[str, EntryPoint]:
    """Return the launchers of installed packages by name."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def minutes(text: str) -> int:
    """Return the minutes in `text`: a number, or Slurm's [D-]H:MM[:SS] or M:SS. Raises ValueError for anything else."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        raise ValueError("a time is a number of minutes, H:MM:SS or D-H:MM:SS")
    days, *rest = match.groups()
    first, second, third = (int(part or 0) for part in rest)
    if days is not None or rest[2] is not None:
        seconds = int(days or 0) * 86400 + first * 3600 + second * 60 + third
    else:  # Slurm reads two parts as minutes and seconds
        seconds = first * 60 + second
    return max(1, -(-seconds // 60))


def read_cluster(file: Path | None, flags: Mapping[str, Any]) -> Cluster:
    """Return the settings in the YAML `file`, overridden by non-None `flags`. Raises :class:`BenchError` if invalid."""
    values: dict[Any, Any] = {}
    if file is not None:
        read = read_yaml(file)
        if not isinstance(read, dict | None):
            raise BenchError(f"{file} must hold settings as NAME: VALUE, one per line.")
        values = read or {}
    known = set(Cluster.model_fields)
    for name in values:
        if name not in known:
            raise UnknownNameError(f"setting in {file}", str(name), known)
    given = {name: value for name, value in flags.items() if value is not None}
    extra = values.get("extra") or {}
    if isinstance(extra, dict):  # otherwise invalid, reported below
        extra = {**extra, **given.get("extra", {})}
    try:
        cluster = Cluster.model_validate({**values, **given, "extra": extra})
        for method in cluster.methods:
            cluster.of(method)
    except ValidationError as error:
        where, said = first_problem(error)
        # An error about several settings together quotes all of them.
        given_ = f", not {error.errors()[0].get('input')!r}" if where else ""
        raise BenchError(f"launcher setting {where + ': ' if where else ''}{said}{given_}.") from error
    return cluster


def launch_settings(options: LaunchOptions) -> Cluster:
    """Return the settings of a command; raise :class:`BenchError` on one that its launcher does not use."""
    flags = options.flags()
    settings = read_cluster(options.cluster, {**flags, "extra": directives(options.slurm or ())})
    given = {*flags, *(["slurm"] if options.slurm else []), *(["detach"] if options.detach else [])}
    only_slurm = {
        "partition", "cpus", "memory", "max_memory", "time", "max_time", "parallel", "account", "pack", "slurm",
        "detach",
    }  # fmt: skip
    if settings.launcher.startswith(SUBMITIT):
        only_slurm = {"partition", "max_memory", "max_time", "account", "detach"}
    elif settings.launcher not in LAUNCHERS:
        only_slurm |= {"gpus"}
        only_slurm -= {"parallel", "pack", "cpus", "slurm"}
    elsewhere = settings.launcher not in ("inline", "local")
    wrong = given & only_slurm if settings.launcher != "slurm" else set()
    wrong |= given & {"jobs"} if elsewhere else set()
    wrong |= given & {"jobs", "gpus", "retries", "scratch"} if settings.launcher == "inline" else set()
    if wrong:
        other = "local" if not wrong & only_slurm else "slurm"
        instead = "--parallel" if elsewhere and "jobs" in wrong else f"--launcher {other}"
        names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(wrong))
        raise BenchError(f"--launcher {settings.launcher} does not use {names}. Use {instead}, or leave it out.")
    return settings


def directives(lines: Sequence[str]) -> dict[str, str | bool]:
    """Parse ``--slurm KEY[=VALUE]`` options, True without a value. Raises :class:`BenchError` for other text."""
    found: dict[str, str | bool] = {}
    for line in lines:
        name, equals, value = line.lstrip("-").partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise BenchError(f"cannot read --slurm {line!r}. Write a directive of sbatch, for instance qos=low.")
        found[name] = value if equals else True
    return found


def resources_of(cluster: Cluster, cell: Cell) -> str:
    """Return the resource group of `cell`: its method if that has separate settings, otherwise ""."""
    return cell.method if cell.method in cluster.methods else ""
