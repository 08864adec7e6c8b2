"""The order of data sets and rows on every page."""

from __future__ import annotations

import math
from typing import NamedTuple

from bench.core.margins import covered

FIRST = (
    "mnist", "fmnist", "cifar10", "cifar100", "svhn", "stl10", "celeba-g", "celeba-h", "imagenet", "medmnist", "covidx",
    "chest-xray", "att-faces", "movie-review",
)  # fmt: skip
"""Data sets in display order. Each entry is also a prefix: "att-faces-a" sorts with "att-faces"."""


def dataset_order(name: str) -> tuple[int, str]:
    """Return the sort key of data set `name`: its position in :data:`FIRST` (last if absent), then its name."""
    for place, start in enumerate(FIRST):
        if name == start or name.startswith(f"{start}-"):
            return place, name
    return len(FIRST), name


BUDGETS = (1.0, 3.0, 10.0)
"""Epsilons that most papers report. A row competes in the smallest that covers its proven epsilon."""

FEWEST = 3
"""Seeds without which a row holds no rank."""

ORDER = (
    "Rows compete by proven epsilon for replace-one neighbours: up to 1, above 1 and up to 3, above 3 and up to 10. "
    "Within such a budget each method holds one rank, by its most accurate row. Methods that no test tells apart share "
    "a rank, printed as 2-5, in the order of their means; a wider spread over seeds does not improve a rank. "
    f"A row holds no rank with fewer than {FEWEST} seeds, beyond the largest budget, or without a finite proof. "
    "Claims and audits use the method's adjacency."
)

MARKS = {"¹": "one seed", "°": "no audit, or an inconclusive one", "†": "settings chosen on test or private records"}
"""What a reader should know before citing a row, by its mark."""

LEGEND = "Marks beside the rank: " + "; ".join(f"{mark} {meaning}" for mark, meaning in MARKS.items()) + "."


class Band(NamedTuple):
    """The budget that a row competes in: an upper bound on its proven epsilon, infinite without one. Sorts."""

    limit: float
    private: bool = True

    @classmethod
    def of(cls, proven: float, claimed: float | None) -> Band:
        """Return the band of a row; a row that claims nothing (None or infinity) has no privacy."""
        limit = next((budget for budget in BUDGETS if covered(proven, budget)), math.inf)
        return cls(limit, claimed is not None and not math.isinf(claimed))

    @property
    def order(self) -> tuple[bool, float]:
        """The sort key: bands ascend, and rows without privacy come last."""
        return not self.private, self.limit

    def __str__(self) -> str:
        if not self.private:
            return "without privacy"
        return f"above {BUDGETS[-1]:g}" if math.isinf(self.limit) else f"up to {self.limit:g}"
