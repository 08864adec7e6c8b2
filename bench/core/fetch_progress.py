"""Progress of a download or a conversion."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, "int | None"], None]
"""Called with the current step, the amount done, and the total (None if unknown), in bytes or records."""


def silent(what: str, done: int, total: int | None) -> None:
    """Show no progress."""
