"""The order on every page: of data sets those that most papers use first, of rows the smaller budget first."""

from __future__ import annotations

import math
from typing import NamedTuple

FIRST = (
    "mnist", "fmnist", "cifar10", "cifar100", "svhn", "stl10", "celeba-g", "celeba-h", "imagenet", "medmnist", "covidx",
    "chest-xray", "att-faces", "movie-review",
)  # fmt: skip
"""Names; a data set whose name goes on after one of them ("att-faces-a") stands with it."""


def dataset_order(name: str) -> tuple[int, str]:
    """Return what the data set `name` is sorted by: its place in :data:`FIRST`, then its name; others come last."""
    for place, start in enumerate(FIRST):
        if name == start or name.startswith(f"{start}-"):
            return place, name
    return len(FIRST), name


ORDER = (
    "Rows are grouped by the epsilon that was asked for and its basis, the smallest first, and ranked by accuracy "
    "within that; rows with a finite proven epsilon come first."
)
"""How the rows of a table stand, in words for a reader."""


class Asked(NamedTuple):
    """The budget that rows compete within: the epsilon asked for, and what it bounds. Sorts ascending.

    Epsilon is infinite where no privacy was asked for.
    """

    epsilon: float
    basis: str = ""

    @classmethod
    def of(cls, epsilon: float | None, basis: str) -> Asked:
        """Return the budget of a row: all that ask for no privacy share one, whatever their basis."""
        return cls(math.inf) if epsilon is None or math.isinf(epsilon) else cls(epsilon, basis)

    def __str__(self) -> str:
        """Return the budget in words."""
        if math.isinf(self.epsilon):
            return self.basis or "without privacy"
        return f"epsilon {self.epsilon:g} ({self.basis})"


NOT_STATED = Asked(math.inf, "epsilon not stated")
"""Of a number that a paper prints without any; comes last."""
