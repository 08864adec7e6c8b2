"""timm, imported when it is first used: it takes a second, and plans and lists need none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.core.lazy import LazyModule

if TYPE_CHECKING:
    import timm as timm
else:
    timm = LazyModule("timm")
