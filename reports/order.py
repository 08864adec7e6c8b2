"""The order of data sets and rows on every page."""

from __future__ import annotations

import math
from typing import NamedTuple

FIRST = (
    "mnist", "fmnist", "cifar10", "cifar100", "svhn", "stl10", "celeba-g", "celeba-h", "imagenet", "medmnist", "covidx",
    "chest-xray", "att-faces", "movie-review",
)  # fmt: skip
"""Data sets in order. Each is also a prefix: "att-faces-a" sorts with "att-faces"."""


def dataset_order(name: str) -> tuple[int, str]:
    """Return the sort key of data set `name`: its place in :data:`FIRST`, then its name; others come last."""
    for place, start in enumerate(FIRST):
        if name == start or name.startswith(f"{start}-"):
            return place, name
    return len(FIRST), name


ORDER = (
    "Rows are grouped by target epsilon and its basis, the smallest first. Within a group, rows whose proven epsilon "
    "for replace-one neighbours is within the target are ranked by accuracy; the others follow, those with a finite "
    "proven epsilon first. Claims and audits hold for a method's own neighbours."
)


class Asked(NamedTuple):
    """The budget that rows compete in: target epsilon (infinite without privacy) and its basis. Sorts ascending."""

    epsilon: float
    basis: str = ""

    @classmethod
    def of(cls, epsilon: float | None, basis: str) -> Asked:
        """Return the budget of a row; all rows without privacy share one."""
        return cls(math.inf) if epsilon is None or math.isinf(epsilon) else cls(epsilon, basis)

    def __str__(self) -> str:
        if math.isinf(self.epsilon):
            return self.basis or "without privacy"
        return f"epsilon {self.epsilon:g} ({self.basis})"


NOT_STATED = Asked(math.inf, "epsilon not stated")
"""For numbers that a paper prints without epsilon; sorts last."""
