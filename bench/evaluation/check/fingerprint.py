"""Fingerprints of public values, equal if nothing that a mechanism could read from the values differs.

Functions are traversed with their code, defaults, closures, the globals that they name and the object they are bound
to; nets with their weights, buffers, hooks and plain attributes. Objects of this package, torch or another library are
identified only by name; :mod:`bench.evaluation.check.replaced` watches this package and torch.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import gc
import hashlib
import os
import re
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.metadata import entry_points
from inspect import GEN_CREATED, getgeneratorlocals, getgeneratorstate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from bench.core.errors import BenchError
from bench.interface.registry import GROUPS
from bench.privacy.mechanisms.charging import Charging
from bench.privacy.mechanisms.executors import Call, Executor
from bench.storage.cache import Cache
from bench.storage.checkpoint import Checkpoint

CLOCKS: Mapping[type, tuple[str, ...]] = {Cache: ("waited",), Checkpoint: ("saved_at", "interval")}
"""Types of running state, and their attributes that hold a time in seconds, the only ones that are not compared."""
RUN_FOLDER = re.compile(r"/runs-\w{8}/")
HOOKS = 10**6
"""From this number on, a hook's number may encode more than its order."""
HEAP_TYPE = 1 << 9  # Python's Py_TPFLAGS_HEAPTYPE
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
"""Types whose values hold no other object; a slice or a range may."""
LIBRARIES = tuple(
    {os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    # Also other environments, for instance on PYTHONPATH: any folder into which packages were installed.
    | {os.path.join(path, "") for path in sys.path if path and any(Path(path).glob("*.dist-info"))}
)
"""The folders of Python's and of installed libraries, with a separator at their ends."""
KNOWN = (*sys.stdlib_module_names, "bench", "torch", "torchvision", "timm", "numpy", "scipy", "sklearn", "opacus")
PLUGINS = ("bench.methods.", "bench.attacks.")  # traversed like a user's own file
_TIMED = [
    part for part in torch.optim.Optimizer.profile_hook_step.__code__.co_consts if isinstance(part, types.CodeType)
]
"""torch's wrapper around an optimiser class's step, installed when the first instance is made."""
TABLES = ("_parameters", "_buffers", "_modules")
"""Attributes of a layer whose entries are traversed separately."""
_NAMED = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.ClassMethodDescriptorType, types.EllipsisType, types.NotImplementedType,
    type(abc.ABC.__dict__["_abc_impl"]),
)  # fmt: skip
"""Types whose values hold nothing but their name."""


def public_arguments(call: Call) -> dict[str, str]:
    """Return the fingerprint of each public argument of `call` by name; a dataclass gives one for each field."""
    found = {}
    for name, value in call.public.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = {f"{name}.{field.name}": getattr(value, field.name) for field in dataclasses.fields(value)}
            kept = parts.get("run.checkpoint")
            if type(kept) is Checkpoint:  # it holds the private set's digest
                parts["run.checkpoint"] = [kept.kind, kept.depends, kept.name]
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
    """Yield the parts of `value`; `seen` keeps visited objects alive, since they may contain each other."""
    if type(value) in PLAIN or (isinstance(value, Enum) and _is_known(type(value))):
        yield f"{type(value).__name__} {value!r}"
        return
    if not isinstance(value, tuple | types.CodeType):  # no number: equal tuples may or may not be one object
        if id(value) in seen:
            yield f"seen {seen[id(value)][0]}"
            return
        seen[id(value)] = len(seen), value
    yield type(value).__qualname__
    if isinstance(value, type | types.ModuleType):
        yield f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else value.__name__
        if not _is_known(value):
            yield from _of_plugin(vars(value), seen)
    elif isinstance(value, torch.Generator):
        yield from _parts(value.get_state(), seen)
    elif isinstance(value, np.random.Generator | np.random.RandomState):
        yield repr(value.bit_generator.state if isinstance(value, np.random.Generator) else value.get_state())
    elif isinstance(value, set | frozenset):
        yield from sorted(fingerprint(entry) for entry in value)
    else:
        if isinstance(value, torch.Tensor):
            plain = value.detach().cpu().contiguous()
            yield f"{plain.dtype} {tuple(plain.shape)}"
            yield plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        elif isinstance(value, np.ndarray | np.generic):
            yield f"{value.dtype} {value.shape}"
            yield repr(value.tolist()) if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
        for name, held in _held(value):
            yield name
            yield from _parts(held, seen)


def _of_plugin(held: Mapping[str, Any], seen: dict[int, tuple[int, object]]) -> Iterator[str | bytes]:
    """Yield the parts of a class's or module's names; of those with two underscores only functions."""
    for name, value in list(held.items()):
        if not name.startswith("__") or isinstance(value, types.FunctionType):
            yield name
            yield from _parts(value, seen)


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values that `value` holds, with its class if a plug-in defines that.

    Raises :class:`BenchError` if its content cannot be read.
    """
    for kind in type(value).__mro__:
        if not _is_known(kind):
            yield "class", kind
    if isinstance(value, Charging | Cache | Checkpoint | RemovableHandle):
        yield from _of_running(value)
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, torch.nn.Module):
        yield from _of_net(value)
    elif isinstance(value, types.CodeType):
        yield _of_code(value), None
    else:
        yield from _content(value)
        yield from ((name, getattr(value, name, None)) for name in _attributes(value))


def _attributes(value: object) -> list[str]:
    slots = {name for kind in type(value).__mro__ for name in _slots(kind)}
    return [*getattr(value, "__dict__", ()), *sorted(slots - {"__dict__", "__weakref__"})]


def _of_running(value: Charging | Cache | Checkpoint | RemovableHandle) -> Iterator[tuple[str, Any]]:
    """Yield what objects of the harness hold, except what differs between honest runs: folders, clocks, hook numbers.

    Votes and labels that a ledger keeps differ too, but they are private, so no public argument may hold them.
    """
    held: dict[str, Any] = {name: getattr(value, name, None) for name in _attributes(value)}
    if isinstance(value, RemovableHandle):
        for name in ("hooks_dict_ref", "extra_dict_ref"):
            refs: tuple[Any, ...] = held[name] if isinstance(held[name], tuple) else (held[name],)
            held[name] = [_hooks(ref()) if isinstance(ref, weakref.ref) else ref for ref in refs]
        if _numbered(held["id"]):
            del held["id"]
    if isinstance(value, Charging) and isinstance(held.get("_executor"), Executor):
        del held["_executor"]
    if isinstance(value, Cache):
        held["root"] = RUN_FOLDER.sub("/runs-/", str(value.root)) if isinstance(value.root, Path) else value.root
        if isinstance(value.made, list) and isinstance(value.found, list):
            held["found"] = held["made"] = {*value.made, *value.found}  # one run may find what another makes
    clocks = next((names for kind, names in CLOCKS.items() if isinstance(value, kind)), ())
    yield from ((name, one) for name, one in held.items() if not (name in clocks and type(one) is float))


def _hooks(hooks: Any) -> Any:
    """Return a dictionary of hooks in their order, without their numbers, which keep growing between runs."""
    return list(hooks.values()) if isinstance(hooks, dict) and all(map(_numbered, hooks)) else hooks


def _numbered(number: object) -> bool:
    return type(number) is int and 0 <= number < min(RemovableHandle.next_id, HOOKS)


def _slots(kind: type) -> list[str]:
    """Return the names of a class's slots as they are stored."""
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else slots
    hidden = f"_{kind.__name__.lstrip('_')}"
    return [f"{hidden}{name}" if name.startswith("__") and not name.endswith("__") else name for name in names]


def _content(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what `value` holds besides its attributes."""
    if isinstance(value, Mapping):
        for number, (key, held) in enumerate(value.items()):
            yield f"key {number}", key
            yield "value", held
    elif isinstance(value, list | tuple):
        yield from ((str(number), held) for number, held in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from (("function", value.func), ("arguments", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("function", value.__func__), ("self", value.__self__))
    elif isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
        yield value.__qualname__, None if isinstance(value.__self__, types.ModuleType) else value.__self__
    elif isinstance(value, types.CellType):
        with contextlib.suppress(ValueError):  # an empty cell
            yield "cell", value.cell_contents
    elif isinstance(value, types.GeneratorType) and getgeneratorstate(value) == GEN_CREATED:
        # Not started, so it holds only its arguments.
        yield value.__qualname__, (value.gi_code, getgeneratorlocals(value))
    elif isinstance(value, weakref.ref):
        yield "referent", value()
    elif isinstance(value, functools._lru_cache_wrapper):
        value.cache_clear()  # cached values are hidden; values computed afresh are compared
        # Not __wrapped__, which a plug-in can replace.
        yield "function", [one for one in gc.get_referents(value) if isinstance(one, types.FunctionType)]
    elif isinstance(value, types.UnionType):  # such as int | str
        yield "types", value.__args__
    elif isinstance(value, classmethod | staticmethod):
        yield "function", value.__func__
    elif isinstance(value, property):
        yield "functions", (value.fget, value.fset, value.fdel)
    elif isinstance(value, int | float | complex | str | bytes):
        yield "value", repr(value)
    elif not isinstance(value, torch.Tensor | np.ndarray | np.generic) and not _attributes(value):
        yield from _pickled(value)


def _pickled(value: object) -> Iterator[tuple[str, Any]]:
    """Yield the state from which pickle would restore `value`."""
    if type(value) is object or isinstance(value, _NAMED):
        yield getattr(value, "__qualname__", ""), None
        return
    try:
        state = value.__reduce_ex__(4)
    except TypeError as error:
        raise BenchError(
            f"{type(value).__qualname__}: what a value of this type holds cannot be compared between runs; mechanisms' "
            "arguments and released nets may hold plain values, arrays and functions"
        ) from error
    if isinstance(state, str):
        yield state, None
    else:
        yield from (
            (str(number), list(part) if isinstance(part, Iterator) else part) for number, part in enumerate(state)
        )


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if function.__code__ in _TIMED:  # its attribute __wrapped__ could be replaced
        place = function.__code__.co_freevars.index("func")
        function = (function.__closure__ or ())[place].cell_contents
    yield f"{function.__module__}.{function.__qualname__}", (function.__defaults__, function.__kwdefaults__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a name that is not bound yet
            yield name, cell.cell_contents
    yield "attributes", vars(function)
    if _is_known(function):
        return
    yield "code", function.__code__
    for name in _names(function.__code__):
        if name in function.__globals__ and name not in function.__code__.co_freevars:
            yield name, function.__globals__[name]


def _of_net(net: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    yield from net.named_parameters(remove_duplicate=False)
    yield from net.named_buffers(remove_duplicate=False)
    for path, layer in net.named_modules():
        yield f"{path} {type(layer).__qualname__}", layer.training
        yield from (("class", kind) for kind in type(layer).__mro__ if not _is_known(kind))
        for name, held in vars(layer).items():
            if name in TABLES and type(held) is dict:
                held = list(held)
            yield f"{path}.{name}", _hooks(held) if "_hooks" in name else held


@functools.lru_cache(maxsize=100_000)
def _of_code(code: types.CodeType) -> str:
    return fingerprint([code.co_code, code.co_names, code.co_varnames, code.co_consts])


@functools.lru_cache(maxsize=100_000)
def _names(code: types.CodeType) -> list[str]:
    """Return the names in `code` and in the functions defined in it, in order."""
    inner = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _is_known(value: object) -> bool:
    """Return whether a class, module or function is this project's or a library's, whatever module it names."""
    if isinstance(value, types.FunctionType):
        name = str(value.__globals__.get("__name__"))
        return _known(name) and getattr(sys.modules.get(name), "__dict__", None) is value.__globals__
    if isinstance(value, types.ModuleType):
        return _known(value.__name__) and sys.modules.get(value.__name__) is value
    if not isinstance(value, type) or not _known(value.__module__):
        return False
    if not value.__flags__ & HEAP_TYPE:  # written in C, where no plug-in could change its attributes
        return True
    try:
        found: object = functools.reduce(getattr, value.__qualname__.split("."), sys.modules[value.__module__])
    except (AttributeError, KeyError):  # defined inside a function
        return False
    return found is value


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
