"""timm, imported on first use: the import takes a second, and plans and listings do not need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.core.lazy import LazyModule

if TYPE_CHECKING:
    import timm as timm
else:
    timm = LazyModule("timm")
