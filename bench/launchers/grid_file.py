"""A grid in a YAML file, with the names of :func:`bench.run`: read for ``run --config``, written by ``--dry-run``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.core.config import NoiseKind, PrecisionKind, Preset
from bench.core.errors import BenchError, UnknownNameError, first_problem
from bench.core.lazy_libraries import yaml
from bench.core.options import GridOptions
from bench.core.types import Basis, TargetAdjacency
from bench.core.yaml_files import read_yaml

SetValue = str | bool | int | float | None


class GridFile(BaseModel):
    """What to run: ``bench.run(**grid.model_dump(exclude_none=True))`` runs it too, without `teacher` and `student`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    methods: str | list[str]
    datasets: str | list[str] = "mnist"
    eps: float | str | list[float] | None = None
    risk: str | None = None
    seeds: int | str | list[int] = 0
    preset: Preset = Preset.QUICK
    basis: Basis | None = None
    adjacency: TargetAdjacency = TargetAdjacency.REPLACE_ONE
    delta: float | None = None
    noise: NoiseKind = NoiseKind.SEEDED
    set_: dict[str, SetValue] | None = Field(None, alias="set")
    teacher: str | None = None
    student: str | None = None
    precision: PrecisionKind = PrecisionKind.FLOAT32


NAMES = tuple(field.alias or name for name, field in GridFile.model_fields.items())


def read_grid(path: Path) -> GridOptions:
    """Return the options in the YAML file `path`; :meth:`bench.core.options.GridOptions.grid` validates their values.

    Raise :class:`BenchError` if it does not hold a grid.
    """
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise BenchError(f"{path} must hold a grid as NAME: VALUE, one per line, for instance methods: [pate, dp-sgd].")
    for name in values:
        if name not in NAMES:
            raise UnknownNameError(f"name in {path}", str(name), NAMES)
    try:
        return GridOptions(**dict(GridFile.model_validate(values)))
    except ValidationError as error:
        first = error.errors()[0]
        _, said = first_problem(error)
        where = first["loc"][0] if first["loc"] else "grid"
        given = "" if first["type"] == "missing" else f", not {first.get('input')!r}"
        raise BenchError(f"{path}, {where}: {said}{given}.") from error


def grid_text(options: GridOptions) -> str:
    """Return the YAML text of `options`, without those at their defaults."""
    grid = options.grid()  # splits lists of names and numbers
    told: dict[str, Any] = {"methods": list(grid.methods), "datasets": list(grid.datasets)}
    if options.risk is None:
        told["eps"] = list(grid.epsilons)
    told["seeds"] = list(grid.seeds)
    for one in dataclasses.fields(options):
        value = getattr(options, one.name)
        if one.name not in (*told, "eps", "set_", "teacher", "student") and value != one.default:
            told[one.name] = str(value) if isinstance(value, str) else value
    if grid.overrides:
        told["set"] = dict(text.split("=", 1) for text in grid.overrides)
    return str(yaml.safe_dump(told, sort_keys=False, default_flow_style=None, width=80))
