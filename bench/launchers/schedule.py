"""Order of cells, dependencies between them, and packing into jobs.

Cells that share an expensive artefact (:meth:`bench.interface.Method.shares`) run after the first, which makes it. The
order only affects running time: locks keep an artefact from being made twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bench.core.errors import BenchError
from bench.experiments.plan import Cell, bound_method
from bench.interface.registry import METHODS
from bench.launchers.settings import NOTHING_MORE, More

Signature = tuple[int, int]  # signature of a record's file, see bench.results.run_dir.RunDir.signature


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of work of one process: a cell, or a shard (number, count) of its shared artefact.

    `after`: keys of units that should finish first. `before`: signature of an old record, with which the unit does not
    count as done.
    """

    key: str
    title: str
    cell: Cell
    after: tuple[str, ...] = ()
    before: Signature | None = None
    shard: tuple[int, int] | None = None


def shared_names(cell: Cell) -> tuple[str, ...]:
    """Return the names of the artefacts that `cell` shares."""
    return () if cell.refused else bound_method(cell).shares(cell.seed)


def units_of(
    cells: Sequence[Cell], done: Iterable[Cell] = (), shards: int = 1,
    before: Callable[[Cell], Signature | None] = lambda cell: None,
) -> list[Unit]:  # fmt: skip
    """Return the units of `cells`, makers of shared artefacts first; artefacts of `done` cells exist already.

    With `shards` above 1, that many parallel units make each ensemble. Raises :class:`BenchError` if none can be split.
    """
    made = {name for cell in done for name in shared_names(cell)}
    maker: dict[str, str] = {}
    units: list[Unit] = []
    ancestors: dict[str, set[str]] = {}
    waited: set[str] = set()

    def all_ancestors(keys: set[str]) -> set[str]:
        return set().union(*(ancestors[key] for key in keys))

    for cell in cells:
        names = shared_names(cell)
        after = {maker[name] for name in names if name in maker} - {cell.key}
        new = [name for name in names if name not in maker and name not in made]
        if shards > 1 and new and names[-1] in new and METHODS.get(cell.method).shardable:
            parts = [
                Unit(f"{cell.key}.shard-{i}-of-{shards}", f"{cell.title}, shard {i + 1} of {shards}", cell,
                     tuple(sorted(after)), shard=(i, shards))
                for i in range(shards)
            ]  # fmt: skip
            ancestors.update((part.key, after | all_ancestors(after)) for part in parts)
            units += parts
            after = after | {part.key for part in parts}
        after -= all_ancestors(after)  # transitive dependencies
        ancestors[cell.key] = after | all_ancestors(after)
        waited |= after
        maker.update(dict.fromkeys(new, cell.key))
        units.append(Unit(cell.key, cell.title, cell, tuple(sorted(after)), before(cell)))
    if shards > 1 and units and not any(unit.shard for unit in units):
        able = ", ".join(name for name in METHODS.names() if METHODS.get(name).shardable)
        raise BenchError(
            f"--shards {shards}: there is nothing left to split. Methods with ensembles that can be split: {able}."
        )
    depth: dict[str, int] = {}  # longest chain of dependencies of a unit; `after` names only earlier units
    for unit in units:
        depth[unit.key] = 1 + max((depth[key] for key in unit.after), default=-1)
    # Within a depth, makers come first, because later units wait for them.
    return sorted(units, key=lambda unit: (depth[unit.key], unit.key not in waited))


@dataclass(frozen=True, slots=True)
class Pack:
    """Units that run in turn in one job and wait for the same units; `resources` names a resource group."""

    units: tuple[Unit, ...]
    after: tuple[str, ...]
    resources: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The units' keys."""
        return tuple(unit.key for unit in self.units)


@dataclass(frozen=True, slots=True)
class Order:
    """The work of one job: units or commands by key, the ones it waits for, its resource group, and extra resources."""

    keys: tuple[str, ...]
    after: tuple[str, ...] = ()
    resources: str = ""
    more: More = NOTHING_MORE


Ordered = TypeVar("Ordered", Pack, Order)


def packs_of(
    units: Sequence[Unit], seconds: Callable[[Unit], float | None], resources: Callable[[Unit], str], target: float
) -> list[Pack]:
    """Return jobs of about `target` seconds; a unit of unknown or longer running time gets its own job."""
    filling: dict[tuple[str, tuple[str, ...]], tuple[list[Unit], float]] = {}
    together: list[tuple[list[Unit], str]] = []
    waited = {key for unit in units for key in unit.after}
    for unit in units:
        name, length = resources(unit), seconds(unit)
        # A unit with dependents must not queue behind others in its job.
        if unit.shard is not None or unit.key in waited or length is None or length >= target:
            together.append(([unit], name))
            continue
        pack, total = filling.get((name, unit.after), ([], 0.0))
        if not pack or total + length > target:
            pack, total = [], 0.0
            together.append((pack, name))
        pack.append(unit)
        filling[name, unit.after] = pack, total + length
    return [Pack(tuple(pack), pack[0].after, name) for pack, name in together]


def waves_of(packs: Sequence[Ordered]) -> list[list[Ordered]]:
    """Return packs or orders in waves; each waits only for members of earlier waves."""
    wave_of: dict[str, int] = {}
    waves: dict[int, list[Ordered]] = defaultdict(list)
    for pack in packs:
        wave = 1 + max((wave_of[key] for key in pack.after if key in wave_of), default=-1)
        wave_of.update(dict.fromkeys(pack.keys, wave))
        waves[wave].append(pack)
    return [waves[number] for number in sorted(waves)]
