"""The order in which data sets stand on every page: those that most papers use first."""

from __future__ import annotations

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
