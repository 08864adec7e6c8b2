"""Exposes computations whose rounding depends on the shapes of their operands.

Libraries choose a kernel by the shape of a batch, and each kernel rounds differently. The last bits flip a decision
about a record once in many thousand runs, too rarely for a test to notice. So one run's products are recorded. In the
run on a neighbour, :class:`ShapedKernels` changes each entry of a product that has another shape, by up to a quarter
and depending on its value: this flips nearly all such decisions. Methods whose shapes do not depend on private records
are not affected. NumPy's products are not covered.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

AMOUNT = 1 / 4
"""The largest relative change of an entry of a product."""
PRODUCTS = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "mm", "bmm", "mv", "dot", "addmm", "addmm_", "addmv", "addmv_", "addbmm", "baddbmm", "baddbmm_", "convolution",
        "_euclidean_dist", "_scaled_dot_product_flash_attention_for_cpu", "mkldnn_rnn_layer",
    )
)  # fmt: skip
"""The operations that compute products; torch.cdist is the Euclidean one, unless it compares few rows pairwise."""


Product = tuple[str, tuple[tuple[int, ...], ...]]
"""The operation, and the shapes of its operands."""


class ShapedKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that records products, and changes those whose shapes differ from the `expected` ones (None: no change).

    While a run makes the expected operations in order, each product is compared with its counterpart; afterwards with
    all. Products in float64 are unchanged: their rounding is too small to matter, or they are exact
    (:func:`bench.training.by_record.nearest`).
    """

    def __init__(self, expected: Sequence[Product] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products: list[Product] = []
        self._expected, self._known = expected, frozenset(expected or ())
        self._paused, self._in_order = False, True

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`, and change its result if it is a product of another shape."""
        found = func(*args, **(kwargs or {}))
        if self._paused or func.overloadpacket not in PRODUCTS:
            return found
        product = found[0] if isinstance(found, tuple) else found
        if product.dtype != torch.float64:
            shapes = tuple(tuple(part.shape) for part in args if isinstance(part, torch.Tensor))
            if self._differs((str(func), shapes)):
                # A common factor would not change any arg max, so entries of different values get different factors.
                waves = 50 + 100 * zlib.crc32(repr(shapes).encode()) / 2**32
                product.mul_(1 + AMOUNT * torch.sin(waves * product.abs().add(1e-30).log()))
        return found

    def _differs(self, made: Product) -> bool:
        number = len(self.products)
        self.products.append(made)
        if self._expected is None:
            return False
        own = self._expected[number] if number < len(self._expected) else ("", ())
        self._in_order = self._in_order and own[0] == made[0]
        return own != made if self._in_order else made not in self._known

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave products unchanged, as inside a mechanism, whose sensitivity covers what it computes."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before
