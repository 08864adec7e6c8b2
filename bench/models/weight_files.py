"""State dicts in files that strangers wrote: tensors are read, code never runs."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as tensor_files
from torch import Tensor

from bench.core.errors import BenchError

State = dict[str, Tensor]
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")


def read_state(path: Path) -> State:
    """Return the state dict in `path`: safetensors, or tensors alone in a file of torch.save; runs no code of it.

    Raises:
        BenchError: where the file is missing, of another kind, damaged or no state dict.

    """
    if not path.is_file():
        raise BenchError(f"there is no file {path}. Give file:PATH of one that ends in {', '.join(SUFFIXES)}.")
    if path.suffix not in SUFFIXES:
        raise BenchError(f"{path} is of no known kind: weights are in files that end in {', '.join(SUFFIXES)}.")
    if path.suffix != ".safetensors":
        return read_checkpoint(path)
    try:
        return dict(tensor_files.load_file(path))
    except (SafetensorError, ValueError, OSError) as error:
        raise BenchError(f"{path} is no file of safetensors or is damaged: {error}.") from error


def read_checkpoint(path: Path) -> State:
    """Return the state dict in a file of torch.save, alone or under ``state_dict`` or ``model``.

    The file may hold tensors and plain containers, nothing that would run code. The prefix ``module.``, which data
    parallel training leaves, is taken off.

    Raises:
        BenchError: where it holds anything else or is damaged.

    """
    try:
        held: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        OSError,
        ValueError,
        KeyError,
        AttributeError,
        ImportError,
    ) as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise BenchError(
            f"{path} is not a file of tensors alone: {reason}. Accepted: .safetensors, or what torch.save wrote of a "
            "state dict. Save the state dict and not the model."
        ) from error
    for name in ("state_dict", "model"):
        if isinstance(held, Mapping) and isinstance(held.get(name), Mapping):
            held = held[name]
            break
    if not isinstance(held, Mapping) or not held or not all(isinstance(v, Tensor) for v in held.values()):
        raise BenchError(
            f"{path} holds no state dict: names with a tensor each, alone or under 'model', are looked for."
        )
    state = {str(name): tensor for name, tensor in held.items()}
    if all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    return state
