"""A dishonest method for tests: its student sees every private label, and it claims an epsilon from its config."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from bench.core.config import Grid, Preset
from bench.core.progress import Progress
from bench.experiments.data_source import DataSource
from bench.experiments.plan import Cell, expand
from bench.experiments.run import run_cell
from bench.interface import (
    METHODS,
    Budget,
    Claim,
    Context,
    Facts,
    FitSettings,
    Ledger,
    Method,
    PrivateData,
    PublicData,
    Released,
    fit,
    make_student,
    setting,
)
from bench.results.record import Record
from bench.results.run_dir import RunDir


@dataclass(frozen=True)
class Config:
    epochs: float = setting(0.1, "of this test")
    images: int = setting(12, "of this test: how many synthetic images are released")
    channels: int = setting(1, "of this test: of those images")


class OneTeacher(Method):
    """One teacher's labels, unprotected, under a claim that would hold between any two teachers."""

    name = "one-teacher"
    Config = Config
    single_teacher: ClassVar[bool] = True

    @classmethod
    def presets(cls, facts: Facts) -> dict[str, dict[str, Any]]:
        return {"quick": {}, "tiny": {}}

    def calibrate(self, budget: Budget) -> Config:
        return self.config

    def claimed(self, delta: float) -> Claim:
        return Claim(1.0, delta, "this test")

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        ledger.noisy_max(np.tile([3.0] + [0.0] * (private.facts.classes - 1), (2, 1)), teachers=3, gamma=0.1)
        student, options = make_student("small_cnn", private.facts, context.streams.torch("start"))
        settings = FitSettings(epochs=self.config.epochs, batch_size=32)
        fit(student, private.images, private.labels, settings, context.streams.torch("order"))
        shape = (self.config.images, self.config.channels, *private.facts.shape[1:])
        images = torch.rand(shape, generator=context.streams.torch("images"))
        labels = torch.arange(self.config.images) % private.facts.classes
        return Released(
            student,
            "small_cnn",
            options,
            extras={"synthetic_images": images, "synthetic_labels": labels} if self.config.images else {},
        )


@contextmanager
def one_cell(
    out: Path, *overrides: str, dataset: str = "digits", method: type[Method] = OneTeacher
) -> Iterator[tuple[Cell, RunDir, DataSource]]:
    """Register the method, or `method`; yield one of its cells, a run directory and the data; then unregister it."""
    METHODS.names()
    METHODS.register("one-teacher", method)
    try:
        source = DataSource(Progress())
        grid = Grid(("one-teacher",), (dataset,), (1.0,), preset=Preset.TINY, overrides=overrides)
        (cell,) = expand(grid, source.describe)
        yield cell, RunDir(out).create(), source
    finally:
        del METHODS.members["one-teacher"]


def run(out: Path, *overrides: str, dataset: str = "digits") -> Record:
    """Run the method once and return its record."""
    with one_cell(out, *overrides, dataset=dataset) as (cell, run_dir, source):
        record = run_cell(cell, run_dir, source, Progress())
    assert record.failure is None, record.failure
    return record
