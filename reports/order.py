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


BUDGETS = (1.0, 3.0, 10.0)
"""Epsilons that most papers report. A row competes within the smallest that covers its proven epsilon."""

ORDER = (
    "Rows compete by proven epsilon, for replace-one neighbours: up to 1, up to 3, up to 10. Within such a budget, a "
    "row's rank is one more than the number of rows whose accuracy is above its own, interval against interval (95%, "
    "over seeds and test records); rows with the same rank are not told apart. Rows beyond the largest budget or "
    "without a finite proof follow without a rank. Claims and audits are about a method's own neighbours."
)


class Band(NamedTuple):
    """The budget that a row competes in: an upper bound on its proven epsilon, infinite without one. Sorts."""

    limit: float
    private: bool = True

    @classmethod
    def of(cls, proven: float, claimed: float | None) -> Band:
        """Return the band of a row; one that claims nothing (None or infinity) is without privacy."""
        limit = next((budget for budget in BUDGETS if proven <= budget * (1 + 1e-9)), math.inf)
        return cls(limit, claimed is not None and not math.isinf(claimed))

    @property
    def order(self) -> tuple[bool, float]:
        """The sort key: ascending, without privacy last."""
        return not self.private, self.limit

    def __str__(self) -> str:
        if not self.private:
            return "without privacy"
        return "unbounded" if math.isinf(self.limit) else f"up to {self.limit:g}"
