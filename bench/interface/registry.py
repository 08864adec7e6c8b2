"""A registry of methods or attacks: the project's by an index, plug-ins by entry point, file or call."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType
from typing import Any, Generic, TypeVar

from bench.core.errors import BenchError, UnknownNameError, no_exit
from bench.core.listed import Listed
from bench.core.types import Adjacency, PrivacyUnit
from bench.interface.attack import Attack
from bench.interface.method import Method
from bench.storage.interrupts import no_interrupt

T = TypeVar("T")
PLUGIN = "bench_plugin_"  # module name prefix of users' own files


class Registry(Generic[T]):
    """Members of one kind by name.

    ``package.INDEX`` maps each name of this project to the module that registers it, which is imported when the name is
    first asked for. Plug-ins of the entry points `group` are imported at first use of the registry; those that fail are
    listed in `broken`. Raises :class:`BenchError` on a name conflict, :class:`UnknownNameError` on an unknown name.
    """

    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind = kind
        self.broken: dict[str, str] = {}  # origin to one-line error of the plug-ins that failed to import
        self._package, self._group = package, group
        self.members: dict[str, T] = {}
        self._index: dict[str, str] | None = None  # name to module, once the entry points are imported

    def register(self, name: str, member: T) -> T:
        """Add `member` under `name`; repeating a registration is allowed."""
        taken = self.members.get(name)
        if taken is not None and _origin(taken) != _origin(member):
            raise BenchError(
                f"the {self.kind} name {name!r} is taken by {_origin(taken)}; {_origin(member)} needs another name."
            )
        home = self._own().get(name)
        if home is not None and getattr(member, "__module__", "") != home:
            raise BenchError(f"the {self.kind} name {name!r} is taken by {home}; {_origin(member)} needs another name.")
        self.members[name] = member
        return member

    def get(self, name: str) -> T:
        """Return the member called `name`; import a path that ends in .py and return its only member."""
        if name.endswith(".py"):
            return self._from_file(Path(name))
        index = self._scan()
        if name not in self.members and name in index:
            importlib.import_module(index[name])
        if name not in self.members and name in index:
            raise BenchError(
                f"{index[name]} is listed as the module of the {self.kind} {name}, and registers no {name}."
            )
        if name not in self.members:
            broken = "; ".join(f"{where}: {why}" for where, why in self.broken.items())
            hint = f"Plug-ins that failed to import: {broken}." if broken else self._unlisted(name)
            raise UnknownNameError(self.kind, name, self.names(), hint)
        return self.members[name]

    def _unlisted(self, name: str) -> str:
        """Return where the package registers `name` without listing it, or ""."""
        file = importlib.import_module(self._package).__file__ or ""
        call = f'@register_{self.kind}("{name}")'
        for path in Path(file).parent.rglob("*.py"):
            if call in path.read_text(encoding="utf-8"):
                return f"{path} registers it: add its entry to INDEX in {file}."
        return ""

    def names(self) -> list[str]:
        """Return all names in alphabetical order."""
        return sorted({*self._scan(), *self.members})

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._scan() or name in self.members

    def _own(self) -> dict[str, str]:
        return {
            name: f"{self._package}.{entry.module if isinstance(entry, Listed) else entry}"
            for name, entry in self.index().items()
        }

    def index(self) -> Mapping[str, Listed | str]:
        """Return what the package states about its own members: how they are listed, or their modules."""
        index: Mapping[str, Listed | str] = importlib.import_module(self._package).INDEX
        return index

    def _scan(self) -> dict[str, str]:
        """Return the index; import the entry points at the first call."""
        if self._index is None:
            self._index = self._own()
            for entry in entry_points(group=self._group):
                self._load(f"{entry.name} ({entry.value})", entry.load)
        return self._index

    def _load(self, where: str, load: Callable[[], Any]) -> None:
        before = set(self.members)
        try:
            with no_exit(where), no_interrupt(where):
                load()
        except Exception as error:  # noqa: BLE001 (a broken plug-in must not affect the rest)
            self.broken[where] = f"{type(error).__name__}: {error}".splitlines()[0]
            for name in set(self.members) - before:
                del self.members[name]

    def _from_file(self, path: Path) -> T:
        if not path.is_file():
            raise BenchError(f"no such file: {path}. Give a registered {self.kind} or the path of a Python file.")
        for name, home in self._scan().items():
            if home.rpartition(".")[2] == path.stem:  # perhaps a file of the project
                self.get(name)
        loaded = [
            name
            for name, member in self.members.items()
            if (file := getattr(sys.modules.get(getattr(member, "__module__", "")), "__file__", None))
            and Path(file).resolve() == path.resolve()
        ]
        if len(loaded) == 1:  # a project file, or a file loaded before
            return self.members[loaded[0]]
        before = set(self.members)
        # The path's digest separates files of the same name.
        module_name = f"{PLUGIN}{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
        with no_exit(str(path)), no_interrupt(str(path)):
            _import_given(module_name, path)
        added = sorted(set(self.members) - before - set(self._own()))  # it may import methods of this project
        if len(added) != 1:
            raise BenchError(f"{path} must register exactly one {self.kind}; it registered {added or 'none'}.")
        return self.members[added[0]]


class _SourceLoader(SourceFileLoader):
    """Compiles the file at each import: cached bytecode is stale after an edit of equal length in the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def import_file(name: str, path: Path) -> None:
    """Import the Python file `path` as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def _import_given(name: str, path: Path) -> None:
    """Import a user's file; raise :class:`BenchError` with the place if it is not Python or lacks an import."""
    try:
        import_file(name, path)
    except SyntaxError as error:
        place = f"{error.filename or path}, line {error.lineno}"
        raise BenchError(f"{place}: {error.msg}. Correct the file, then run the command again.") from error
    except ImportError as error:
        raise BenchError(f"{path} cannot be imported: {error}. Install what it imports, or correct it.") from error
    except BenchError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        place = f"{path}, line {lines[-1]}" if lines else str(path)
        raise BenchError(f"{place}: {type(error).__name__}: {error}. Correct the file, then try again.") from error


def _origin(member: object) -> str:
    kind = member if isinstance(member, type) else type(member)
    if kind.__module__.startswith(PLUGIN):
        return f"{kind.__qualname__} in {getattr(sys.modules.get(kind.__module__), '__file__', kind.__module__)}"
    return f"{kind.__module__}.{kind.__qualname__}"


GROUPS = ("bench.methods", "bench.attacks")  # of entry points
METHODS: Registry[type[Method]] = Registry("method", "bench.methods", GROUPS[0])
ATTACKS: Registry[type[Attack]] = Registry("attack", "bench.attacks", GROUPS[1])

M = TypeVar("M", bound=type[Method])
A = TypeVar("A", bound=type[Attack])


ALL = "all"
"""The group of all registered methods."""


def groups_of(method: type[Method]) -> set[str]:
    """Return the groups of `method`: its unit's name unless it is not private, and those of its base classes."""
    named = {group for base in method.__mro__ for group in vars(base).get("groups", ())}
    return named | ({method.unit.value} if method.private else set())


def listed(name: str) -> Listed:
    """Return the entry of the method `name`, from the index or, for a plug-in, from its class."""
    if isinstance(entry := METHODS.index().get(name), Listed):
        return entry
    method = METHODS.get(name)
    proven = f"infinite: {method.bypass}" if method.bypass else "finite"
    groups = " ".join(sorted(groups_of(method)))
    unit, adjacency = method.unit.value, method.adjacency.value
    return Listed(method.__module__, method.citation, groups, unit, adjacency, proven, method.public_data)


def method_groups() -> dict[str, list[str]]:
    """Return the registered methods of each group by the group's name, `all` first."""
    found: dict[str, list[str]] = {ALL: METHODS.names()}
    for name in METHODS.names():
        for group in listed(name).groups.split():
            found.setdefault(group, []).append(name)
    return found


def methods_named(words: Iterable[str]) -> dict[str, bool]:
    """Return the methods that `words` (names or groups) select, in order, and whether each is named explicitly."""
    groups, chosen = method_groups(), dict[str, bool]()
    for word in words:
        if word in groups:
            chosen |= {name: chosen.get(name, False) for name in groups[word]}
        else:
            chosen[word] = True
    return chosen


def register_method(name: str) -> Callable[[M], M]:
    """Return the class decorator that registers a method under `name` and sets the class's name.

    It raises :class:`BenchError` if the class lacks a method or states its unit or adjacency by another type.
    """

    def add(cls: M) -> M:
        cls.name = name
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            raise BenchError(f"{name}: {cls.__name__} lacks {', '.join(missing)}; see bench.interface.Method.")
        if not hasattr(cls, "Config"):
            raise BenchError(f"{name}: {cls.__name__} has no settings; write class {cls.__name__}(Method[MyConfig]).")
        for field, kind in (("unit", PrivacyUnit), ("adjacency", Adjacency)):
            if not isinstance(value := getattr(cls, field), kind):
                known = ", ".join(f"{kind.__name__}.{one.name}" for one in kind)
                raise BenchError(f"{name}: {field} is {value!r}. Accepted: {known}.")
        METHODS.register(name, cls)
        return cls

    return add


def register_attack(name: str) -> Callable[[A], A]:
    """Return the class decorator that registers an attack under `name` and sets the class's name."""

    def add(cls: A) -> A:
        cls.name = name
        ATTACKS.register(name, cls)
        return cls

    return add


def plugin_file(member: type) -> str:
    """Return the file name of a user's own class, empty for others."""
    module = member.__module__
    return f"{module.removeprefix(PLUGIN).rpartition('_')[0]}.py" if module.startswith(PLUGIN) else ""
