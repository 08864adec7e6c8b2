"""Cells of the grid method on digits, planned without a data set."""

from __future__ import annotations

import functools

from bench.core.config import Grid
from bench.core.types import Facts
from bench.experiments.plan import Cell, Dataset, expand
from helpers.paths import GRID_METHOD

METHOD = str(GRID_METHOD)


FACTS = Facts("digits", 1000, 400, 397, 10, (1, 8, 8))


def describe(name: str) -> Dataset:
    return Dataset(name, FACTS, "sha256:0")


def cells(epsilons: int = 2, seeds: int = 2) -> list[Cell]:
    asked = tuple(float(1 + i) for i in range(epsilons))
    return expand(Grid(methods=(METHOD,), datasets=("digits",), epsilons=asked, seeds=tuple(range(seeds))), describe)


@functools.cache
def any_cell() -> Cell:
    return cells(1, 1)[0]
