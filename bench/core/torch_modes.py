"""Keeps a method's torch modes and tensor subclasses from replacing the operations of a mechanism."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from bench.core.errors import BenchError


def refuse_modes(*, dispatch_only: bool = False) -> None:
    """Raise :class:`BenchError` in a torch function or dispatch mode, which could replace noise or clipping.

    Allowed are ``with torch.device(...)`` and the modes of bench's own checks.
    """
    modes: list[Any] = list(_get_current_dispatch_mode_stack())
    for mode in modes if dispatch_only else [*modes, *_get_current_function_mode_stack()]:  # type: ignore[no-untyped-call]
        kind = type(mode)
        defined = getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind
        if kind is not DeviceContext and not (defined and kind.__module__.startswith("bench.evaluation.")):
            raise BenchError(
                f"a mechanism of the ledger runs inside {kind.__name__}, a mode that can replace torch's operations. "
                "Leave the mode before the call."
            )


@contextlib.contextmanager
def torch_alone() -> Iterator[None]:
    """Compute with torch's own operations, even if a method's net or loss has entered a function mode."""
    refuse_modes(dispatch_only=True)
    with torch._C.DisableTorchFunction():
        yield


def check_real(*tensors: torch.Tensor) -> None:
    """Raise :class:`BenchError` unless all are plain tensors of float32 or float64.

    Others can cancel the noise, and sums of shorter floats round by more than a record's charge.
    """
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise BenchError(f"DP-SGD needs gradients that are plain, dense tensors, not {type(tensor).__name__}.")
        if tensor.dtype not in (torch.float32, torch.float64):
            raise BenchError(
                f"DP-SGD needs trained weights and gradients in float32 or float64, not {tensor.dtype}. Call "
                ".float() on the net and leave any autocast region; frozen layers may keep their type."
            )
