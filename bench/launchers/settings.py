"""Settings of a launch: where cells run and what a job asks Slurm for, from a YAML file and from flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bench.core.errors import BenchError, UnknownNameError
from bench.experiments.plan import Cell

OURS = frozenset({"array", "job-name", "output", "error", "open-mode", "signal", "wrap"})
"""Directives that nobody else may give."""


class Resources(BaseModel):
    """What one job asks Slurm for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: str | None = None
    gpus: int = Field(0, ge=0)
    cpus: int = Field(1, ge=1)
    memory: float | None = Field(None, gt=0)
    """GB of one job."""
    time: int = Field(240, ge=1)
    """Minutes; a job that needs more is requeued and goes on where it was."""
    account: str | None = None
    qos: str | None = None
    extra: dict[str, str | int | float | bool] = {}
    """Further directives of sbatch by their long names; true for one without a value."""

    @field_validator("extra")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in OURS & {name.replace("_", "-") for name in value}:
            raise ValueError(f"{name} is set by this program, whose jobs would not be found under another")
        return value

    @field_validator("time", mode="before")
    @classmethod
    def _minutes(cls, value: Any) -> Any:
        return minutes(value) if isinstance(value, str) else value


class Cluster(Resources):
    """All settings of a launch, as a YAML file holds them."""

    launcher: Literal["inline", "local", "slurm"] = "inline"
    jobs: int = Field(0, ge=0)
    """Processes of the local launcher; 0: one per GPU, or one per core."""
    shards: int = Field(1, ge=1)
    """Jobs that an ensemble's training is split over."""
    parallel: int | None = Field(None, ge=1)
    """Jobs that run at once, over the whole launch; None: as many as Slurm starts."""
    pack: float = Field(10.0, ge=0)
    """Minutes that small cells are packed to; 0: every cell has a job of its own."""
    retries: int | None = Field(None, ge=0)
    """How often a cell whose process died is begun again; for Slurm also how often a job is requeued after a time
    limit. None: 3, and 10 for Slurm."""
    setup: list[str] = []
    """Shell lines before the program: modules to load, say."""
    methods: dict[str, dict[str, Any]] = {}
    """Method to the resources that differ for it."""

    def of(self, method: str) -> Resources:
        """Return what a job of `method` asks for."""
        names = set(Resources.model_fields)
        return Resources(**{**self.model_dump(include=names), **self.methods.get(method, {})})


def minutes(text: str) -> int:
    """Return the minutes that `text` means: a number, or Slurm's [D-]H:MM[:SS] and M:SS.

    Raises ValueError for anything else.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        raise ValueError("a time is a number of minutes, H:MM:SS or D-H:MM:SS")
    days, *rest = match.groups()
    first, second, third = (int(part or 0) for part in rest)
    if days is not None:
        seconds = int(days) * 86400 + first * 3600 + second * 60 + third
    elif rest[2] is not None:
        seconds = first * 3600 + second * 60 + third
    elif rest[1] is not None:  # two parts are minutes and seconds to Slurm
        seconds = first * 60 + second
    else:
        seconds = first * 60
    return max(1, -(-seconds // 60))


def _from_yaml(text: str) -> Any:
    """Return what `text` means, times such as 2:00:00 as text: YAML 1.1 takes them for numbers in base 60."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar = {
            first: [("tag:yaml.org,2002:str", re.compile(r"(\d+-)?\d+(:\d+)+$")), *others]
            for first, others in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    return yaml.load(text, Loader=Loader)


def read_cluster(file: Path | None, flags: Mapping[str, Any]) -> Cluster:
    """Return the settings in the YAML `file`, overridden by those of `flags` that are not None.

    Raises :class:`BenchError` on a file that cannot be read, a setting that is not known, or a value that does not fit.
    """
    values: dict[str, Any] = {}
    if file is not None:
        import yaml

        try:
            values = _from_yaml(file.read_text()) or {}
        except OSError as error:
            raise BenchError(f"{file} cannot be read: {error.strerror}.") from error
        except yaml.YAMLError as error:
            raise BenchError(f"{file} is no YAML: {str(error).splitlines()[0]}.") from error
        if not isinstance(values, dict):
            raise BenchError(f"{file} must hold settings as NAME: VALUE, one per line.")
    known = set(Cluster.model_fields)
    for name in values:
        if name not in known:
            raise UnknownNameError(f"setting in {file}", str(name), known)
    given = {name: value for name, value in flags.items() if value is not None}
    extra = values.get("extra") or {}
    if isinstance(extra, dict):
        given["extra"] = {**extra, **given.get("extra", {})}
    else:  # a mistake, to be told below
        given["extra"] = extra
    values = {**values, **given}
    try:
        cluster = Cluster.model_validate(values)
        for method in cluster.methods:
            cluster.of(method)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "methods"
        said = first["msg"].removeprefix("Value error, ")
        raise BenchError(f"launcher setting {where}: {said}, not {first.get('input')!r}.") from error
    return cluster


def directives(lines: Sequence[str]) -> dict[str, str | bool]:
    """Return ``--slurm KEY=VALUE`` options as directives of sbatch; KEY alone is one without a value."""
    found: dict[str, str | bool] = {}
    for line in lines:
        name, equals, value = line.lstrip("-").partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise BenchError(f"cannot read --slurm {line!r}. Write a directive of sbatch, for instance qos=low.")
        found[name] = value if equals else True
    return found


def resources_of(cluster: Cluster, cell: Cell) -> str:
    """Return the name of the resources of `cell`: its method where that has its own."""
    return cell.method if cell.method in cluster.methods else ""
