"""In which numbers nets are trained and asked: float32, TensorFloat-32 or bfloat16.

float32 is the default and, on a GPU, really is: torch lets cuDNN round to TensorFloat-32 unless that is switched off.

On a CPU with instructions for bfloat16 nets of wide convolutions gain about twofold, small ones next to nothing. Six
teachers of PATE's MNIST net, 300 steps of 32 with momentum and shifts, had 93.1% in bfloat16 and 92.5% in float32, a
difference of 0.6 with a standard error of 0.6.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch

from bench.core.errors import BenchError

Precision = Literal["float32", "tf32", "bf16"]
"""``tf32`` keeps ten bits of the factors of each product, on a GPU; ``bf16`` runs forward passes under autocast."""


def check_precision(precision: Precision, device: torch.device | str) -> None:
    """Raise :class:`BenchError` for a precision that is not known or that `device` has not."""
    known = ("float32", "tf32", "bf16")
    if precision not in known:
        raise BenchError(f"precision must be one of {', '.join(known)}, not {precision!r}.")
    if precision == "tf32" and torch.device(device).type != "cuda":
        raise BenchError(f"tf32 is arithmetic of CUDA devices, not of {device}. Take float32 or bf16.")


@contextlib.contextmanager
def arithmetic(precision: Precision, device: torch.device | str) -> Iterator[None]:
    """Let products in float32 be rounded to TensorFloat-32 inside, or forbid it; a CPU knows no such thing."""
    if torch.device(device).type != "cuda":
        yield
        return
    # The older of torch's two kinds of switches: its compiler reads both, and fails where only the newer were set.
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    short = precision != "float32"
    try:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = short, short
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
