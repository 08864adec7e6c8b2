"""The specification of a cell, which determines its settings, key and command."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import Field

from bench.core.config import Grid, NoiseKind, PrecisionKind, Preset
from bench.core.rows import Plugin, Row
from bench.core.tuning import Tuning
from bench.core.types import Basis, TargetAdjacency


class CellSpec(Row):
    """One method, data set, target epsilon and seed. Contains no machine path."""

    method: str
    """Name of the method."""
    method_version: int
    """Version of the method, which its author raises when its results change."""
    method_file: str = ""
    """File name of a user's own method; else empty."""
    plugin: Plugin | None = None
    """Plug-in that the method comes from; null for a method of this project."""
    dataset: str
    """Name of the data set; a user's folder or file without its path."""
    dataset_revision: str
    """Hash of the data and its split."""
    image_shape: str = ""
    """What followed @ in folder:PATH@...: channels x height x width of images, or the range of values; else empty."""
    preset: Preset
    """Scale of the run: the paper's setting or a reduced one."""
    overrides: dict[str, str] | None = Field(default_factory=dict)
    """Minimal ``--set`` values by field; in no key. Null in records of schema 1 without them."""
    epsilon: float | None
    """Target epsilon; null for a method without privacy."""
    delta: float
    """Target delta, and the delta of every epsilon of the record."""
    basis: Basis
    """Which epsilon the target bounds."""
    seed: int
    """Seed of all randomness except secure noise."""
    noise: NoiseKind
    """Source of mechanism noise: seeded, or secure (exact samplers)."""
    precision: PrecisionKind = PrecisionKind.FLOAT32
    """Arithmetic of teacher ensembles."""
    adjacency: TargetAdjacency = TargetAdjacency.OWN
    """Neighbours of the target; also own if the method's neighbours are replace, or if the basis is claimed."""
    tuning: Tuning | None = None
    """How the settings were chosen; null if they were given."""

    @property
    def own_folder(self) -> bool:
        """Whether the data is a user's own, in a folder or file."""
        return self.dataset.startswith("folder:")

    @property
    def plugin_words(self) -> str:
        """Distribution and version of the method's plug-in, or its file's name; empty for a method of this project."""
        if self.plugin is None:
            return ""
        return f"{self.plugin.distribution} {self.plugin.version}".strip() or self.method_file

    def grid(self) -> Grid:
        """Return the grid with only this cell; raise :class:`bench.core.errors.BenchError` on an invalid value."""
        return Grid(
            (self.method,), (self.dataset,), (1.0 if self.epsilon is None else self.epsilon,), (self.seed,),
            self.preset, self.basis, self.delta, self.noise, self.precision,
            tuple(f"{field}={value}" for field, value in (self.overrides or {}).items()),
            self.adjacency,
        )  # fmt: skip


T = TypeVar("T")


class _OfSpec(Generic[T]):
    """Reads the field of the same name from the attribute `spec`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, cell: Any, owner: type) -> T:
        found: T = getattr(cell.spec, self._name)
        return found


class Specified:
    """Read access to the fields of the :class:`CellSpec` in `spec`."""

    __slots__ = ()

    method = _OfSpec[str]()
    method_version = _OfSpec[int]()
    dataset_revision = _OfSpec[str]()
    preset = _OfSpec[Preset]()
    epsilon = _OfSpec[float | None]()
    delta = _OfSpec[float]()
    basis = _OfSpec[Basis]()
    seed = _OfSpec[int]()
    noise = _OfSpec[NoiseKind]()
    precision = _OfSpec[PrecisionKind]()
