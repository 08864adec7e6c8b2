"""The specification of a cell. Its settings, its key and its command follow from it."""

from __future__ import annotations

from pydantic import Field

from bench.core.config import Grid, NoiseKind, PrecisionKind, Preset
from bench.core.rows import Row
from bench.core.types import Basis


class CellSpec(Row):
    """One method on one data set at one target epsilon with one seed. Holds no path of a machine."""

    method: str
    method_version: int
    method_file: str = ""
    """File name of a user's own method, without its folder."""
    dataset: str
    dataset_revision: str
    image_shape: str = ""
    """Channels x height x width, where it was stated with a folder of images."""
    preset: Preset
    overrides: dict[str, str] | None = Field(default_factory=dict)
    """The ``--set`` values by field without which the settings would be others; in no key. None in records of schema 1
    that lack them."""
    epsilon: float | None
    """None for a method without privacy."""
    delta: float
    basis: Basis
    seed: int
    noise: NoiseKind
    precision: PrecisionKind = PrecisionKind.FLOAT32
    """Of the arithmetic of teacher ensembles; see :mod:`bench.training.precision`."""

    @property
    def own_folder(self) -> bool:
        """Whether the data is a folder of images of the user's own."""
        return self.dataset.startswith("folder:")

    def grid(self) -> Grid:
        """Return the grid that has this cell alone.

        Raises :class:`bench.core.errors.BenchError` where an epsilon, a delta or a seed makes no sense.
        """
        return Grid(
            (self.method,), (self.dataset,), (1.0 if self.epsilon is None else self.epsilon,), (self.seed,),
            self.preset, self.basis, self.delta, self.noise, self.precision,
            tuple(f"{field}={value}" for field, value in (self.overrides or {}).items()),
        )  # fmt: skip


class Specified:
    """What holds a :class:`CellSpec`, and is read as if it were one."""

    __slots__ = ()

    @property
    def asked(self) -> CellSpec:
        """The cell's specification."""
        raise NotImplementedError

    @property
    def method(self) -> str:
        """The method's name."""
        return self.asked.method

    @property
    def preset(self) -> Preset:
        """How much of the paper's setting is run."""
        return self.asked.preset

    @property
    def epsilon(self) -> float | None:
        """The target epsilon; None for a method without privacy."""
        return self.asked.epsilon

    @property
    def delta(self) -> float:
        """The target delta."""
        return self.asked.delta

    @property
    def basis(self) -> Basis:
        """Which epsilon the target bounds."""
        return self.asked.basis

    @property
    def seed(self) -> int:
        """The seed of everything random but secure noise."""
        return self.asked.seed

    @property
    def noise(self) -> NoiseKind:
        """Where the noise of mechanisms comes from."""
        return self.asked.noise

    @property
    def precision(self) -> PrecisionKind:
        """Of the arithmetic of teacher ensembles."""
        return self.asked.precision
