"""What a listing shows of a method, without importing it."""

from __future__ import annotations

from typing import NamedTuple


class Listed(NamedTuple):
    """A method's module, relative to its package, its groups with spaces between them, and its row in ``bench ls``."""

    module: str
    groups: str
    unit: str
    adjacency: str
    proven: str
    public_data: str
    citation: str
