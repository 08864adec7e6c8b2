"""The facts about a method that listings show without importing it."""

from __future__ import annotations

from typing import NamedTuple


class Listed(NamedTuple):
    """A method's module, relative to its package, and its row in ``bench ls``; spaces separate the `groups`."""

    module: str
    citation: str
    groups: str = "record"
    unit: str = "record"
    adjacency: str = "replace"
    proven: str = "finite"
    public_data: str = "none"
