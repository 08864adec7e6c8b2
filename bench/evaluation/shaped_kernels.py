"""Products of matrices that depend on the shapes of their operands, as a library's do, but by more than a rounding.

Libraries take another kernel for a batch of another size, which rounds otherwise. That moves a decision about a record
once in many thousand runs, too seldom for a test to see it. Under :class:`ShapedKernels` it moves nearly all of them,
and none of a method whose shapes do not depend on how many private records there are.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

AMOUNT = 1 / 4
"""The largest relative change of a product."""
PRODUCTS = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "mm", "bmm", "mv", "dot", "addmm", "addmm_", "addmv", "addmv_", "addbmm", "baddbmm", "baddbmm_", "convolution",
    )
)  # fmt: skip
P = ParamSpec("P")
R = TypeVar("R")


class ShapedKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, products in less than float64 are scaled by a factor that their operands' shapes determine.

    In float64 roundings are too small to matter, or products exact (:func:`bench.training.by_record.nearest`).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._paused = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`, and scale its result if it is a product."""
        found = func(*args, **(kwargs or {}))
        if self._paused or func.overloadpacket not in PRODUCTS or found.dtype == torch.float64:
            return found
        shapes = [tuple(part.shape) for part in args if isinstance(part, torch.Tensor)]
        return found.mul_(1 + AMOUNT * (zlib.crc32(repr(shapes).encode()) / 2**31 - 1))

    def around(self, mechanism: Callable[P, R]) -> Callable[P, R]:
        """Return `mechanism` with plain products: what it computes is covered by its own sensitivity."""

        def call(*args: P.args, **options: P.kwargs) -> R:
            with self._pause():
                return mechanism(*args, **options)

        return call

    @contextmanager
    def _pause(self) -> Iterator[None]:
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before
