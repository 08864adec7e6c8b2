"""In which numbers nets are trained and asked: float32, TensorFloat-32 or bfloat16, and where the shorter ones pay.

float32 is the default and, on a GPU, really is: torch lets cuDNN round to TensorFloat-32 unless it is told not to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch
from torch import nn

from bench.errors import BenchError

Precision = Literal["float32", "tf32", "bf16"]
"""``tf32`` keeps ten bits of the factors of each product, on a GPU; ``bf16`` runs forward passes under autocast."""

WIDE = 64
"""Filters from which bfloat16 pays on a CPU: below, converting costs as much as the shorter products save."""


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


def paying_precision(model: nn.Module, device: torch.device | str) -> Precision:
    """Return the precision that makes training `model` fast on `device` and is not known to cost accuracy.

    A GPU of compute capability 8 or more has TensorFloat-32. On a CPU with instructions for bfloat16 nets of wide
    convolutions gain twofold or more, small ones next to nothing. Accuracy: six teachers of PATE's MNIST net, 300 steps
    of 32 with momentum and shifts, had 93.1% in bfloat16 and 92.5% in float32, a difference of 0.6 with a standard
    error of 0.6. (In the first hundreds of steps of the published recipe, which begin on a plateau, single teachers end
    tens of percent apart either way; nothing can be told there.) The answer hangs on the machine: for a choice that
    others can repeat, name the precision.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return "tf32" if torch.cuda.get_device_capability(device) >= (8, 0) else "float32"
    wide = any(isinstance(layer, nn.Conv2d) and layer.out_channels >= WIDE for layer in model.modules())
    return "bf16" if wide and _has_bf16() else "float32"


def _has_bf16() -> bool:
    """Whether the processor multiplies in bfloat16; torch keeps the question among its private functions."""
    asked = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return any(bool(ask()) for ask in asked if ask is not None)
