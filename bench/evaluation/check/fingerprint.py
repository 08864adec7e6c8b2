"""Fingerprints of public values, equal if nothing that a mechanism could read from the values differs.

Functions are traversed with their code, defaults, closures, the globals that they name and the object they are bound
to; nets with their weights, buffers, hooks and plain attributes. Objects of this package, torch or another library are
identified by name alone; :mod:`bench.evaluation.check.replaced` watches this package and torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from bench.core.seeds import Streams
from bench.interface.registry import GROUPS
from bench.privacy.mechanisms.charging import Charging
from bench.privacy.mechanisms.executors import Call
from bench.storage.cache import Cache
from bench.storage.checkpoint import Checkpoint
from bench.training.context import Context

RUNNING = (Charging, Context, Cache, Checkpoint, Streams, RemovableHandle)
"""Values that differ between runs (folders, clocks, hook numbers) and carry no information to a mechanism."""
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
KNOWN = (*sys.stdlib_module_names, "bench", "torch", "torchvision", "timm", "numpy", "scipy", "sklearn", "opacus")
PLUGINS = ("bench.methods.", "bench.attacks.")  # traversed like a user's own file
_TIMED = [
    part for part in torch.optim.Optimizer.profile_hook_step.__code__.co_consts if isinstance(part, types.CodeType)
]
"""torch's wrapper around an optimiser class's step, installed when the first instance is made."""
OF_EVERY_NET = ("training", "_parameters", "_buffers", "_modules")
"""Attributes of a layer that are traversed separately."""


def public_arguments(call: Call) -> dict[str, str]:
    """Return the fingerprint of each public argument of `call` by name; a dataclass gives one for each field."""
    found = {}
    for name, value in call.public.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = {f"{name}.{field.name}": getattr(value, field.name) for field in dataclasses.fields(value)}
        else:
            parts = {name: value}
        found.update({part: fingerprint(held) for part, held in parts.items()})
    return found


def fingerprint(value: object) -> str:
    """Return a hexadecimal digest of `value` and everything that it holds."""
    digest = hashlib.sha256()
    for part in _parts(value, {}):
        digest.update(part if isinstance(part, bytes) else part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _parts(value: Any, seen: dict[int, tuple[int, object]]) -> Iterator[str | bytes]:
    """Yield the parts of `value`; `seen` keeps visited objects alive, as they may contain each other."""
    if value is None or isinstance(
        value, bool | int | float | complex | str | bytes | Enum | torch.dtype | torch.device
    ):
        yield f"{type(value).__name__} {value!r}"
        return
    if id(value) in seen and not isinstance(value, tuple | types.CodeType):  # equal ones may be one object or two
        yield f"seen {seen[id(value)][0]}"
        return
    seen[id(value)] = len(seen), value
    yield type(value).__qualname__
    if isinstance(value, RUNNING) or type(value).__module__ == "bench.core.progress":
        return
    if isinstance(value, type):
        yield f"{value.__module__}.{value.__qualname__}"
        if not _known(value.__module__):
            yield from _of_plugin(vars(value), seen)
    elif isinstance(value, types.ModuleType):
        yield value.__name__
        if not _known(value.__name__):
            yield from _of_plugin(vars(value), seen)
    elif isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        yield f"{plain.dtype} {tuple(plain.shape)}"
        yield plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}"
        yield repr(value.tolist()) if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
    elif isinstance(value, np.generic):
        yield repr(value)
    elif isinstance(value, torch.Generator):
        yield from _parts(value.get_state(), seen)
    elif isinstance(value, np.random.Generator | np.random.RandomState):
        yield repr(value.bit_generator.state if isinstance(value, np.random.Generator) else value.get_state())
    elif isinstance(value, set | frozenset):
        yield from sorted(fingerprint(entry) for entry in value)
    else:
        for name, held in _held(value):
            yield name
            yield from _parts(held, seen)


def _of_plugin(held: Mapping[str, Any], seen: dict[int, tuple[int, object]]) -> Iterator[str | bytes]:
    """Yield the parts of a class's or module's names, except Python's own."""
    for name, value in list(held.items()):
        if not name.startswith("__"):
            yield name
            yield from _parts(value, seen)


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values that `value` holds."""
    if isinstance(value, Mapping):
        for key, held in value.items():
            yield f"{key!r}" if isinstance(key, str | int | float | tuple) else type(key).__qualname__, held
    elif isinstance(value, list | tuple):
        yield from ((str(number), held) for number, held in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from (("function", value.func), ("arguments", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("function", value.__func__), ("self", value.__self__))
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, torch.nn.Module):
        yield from _of_net(value)
    elif isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
        yield value.__qualname__, None
    elif isinstance(value, types.CodeType):
        yield "code", value.co_code
        yield "names", (value.co_names, value.co_varnames)
        yield "constants", value.co_consts
    else:
        yield from vars(value).items() if hasattr(value, "__dict__") else ()
        slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
        yield from ((name, getattr(value, name, None)) for name in sorted(slots - {"__dict__", "__weakref__"}))


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if function.__code__ in _TIMED:  # its attribute __wrapped__ could be replaced
        place = function.__code__.co_freevars.index("func")
        function = (function.__closure__ or ())[place].cell_contents
    yield f"{function.__module__}.{function.__qualname__}", (function.__defaults__, function.__kwdefaults__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a name not bound yet
            yield name, cell.cell_contents
    if _known(function.__module__):
        return
    yield "code", function.__code__
    for name in _names(function.__code__):
        if name in function.__globals__ and name not in function.__code__.co_freevars:
            yield name, function.__globals__[name]
    yield "attributes", vars(function)


def _of_net(net: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    yield from net.named_parameters(remove_duplicate=False)
    yield from net.named_buffers(remove_duplicate=False)
    for path, layer in net.named_modules():
        yield f"{path} {type(layer).__qualname__}", layer.training
        for kind in type(layer).__mro__:
            if not _known(kind.__module__):
                functions = [(name, part) for name, part in vars(kind).items() if isinstance(part, types.FunctionType)]
                yield from functions
        for name, held in vars(layer).items():
            if name in OF_EVERY_NET:
                continue
            # For hooks only the order counts; their numbers keep growing between runs.
            yield f"{path}.{name}", list(held.values()) if "_hooks" in name and isinstance(held, dict) else held


def _names(code: types.CodeType) -> list[str]:
    """Return the names in `code` and in the functions defined in it, in order."""
    inner = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part)]
    return list(dict.fromkeys([*code.co_names, *inner]))


@functools.cache
def _known(module: str | None) -> bool:
    """Return whether `module` belongs to this project or an installed library, not to a plug-in."""
    name = module or ""
    top = name.partition(".")[0]
    if top in KNOWN:
        return not name.startswith(PLUGINS)
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return file.startswith(LIBRARIES) and top not in _installed_plugins()


@functools.cache
def _installed_plugins() -> frozenset[str]:
    """Return the top-level modules of installed plug-ins."""
    return frozenset(entry.value.partition(":")[0].partition(".")[0] for g in GROUPS for entry in entry_points(group=g))
