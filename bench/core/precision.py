"""Precision of training and prediction: float32, TensorFloat-32 or bfloat16.

float32 is the default, even on a GPU, where torch by default lets cuDNN round to TensorFloat-32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch

from bench.core.errors import BenchError

Precision = Literal["float32", "tf32", "bf16"]
"""``tf32`` rounds the factors of each product to ten bits, on a GPU; ``bf16`` runs forward passes under autocast."""


def check_precision(precision: Precision, device: torch.device | str) -> None:
    """Raise :class:`BenchError` for an unknown precision or one that `device` does not support."""
    known = ("float32", "tf32", "bf16")
    if precision not in known:
        raise BenchError(f"precision must be one of {', '.join(known)}, not {precision!r}.")
    if precision == "tf32" and torch.device(device).type != "cuda":
        raise BenchError(f"tf32 exists only on CUDA devices, not on {device}. Use float32 or bf16.")


@contextlib.contextmanager
def arithmetic(precision: Precision, device: torch.device | str) -> Iterator[None]:
    """Allow or forbid TensorFloat-32 products inside the block; no effect on a CPU."""
    if torch.device(device).type != "cuda":
        yield
        return
    # Use the older switch: torch's compiler reads both and fails if only the newer one is set.
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    short = precision != "float32"
    try:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = short, short
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
