"""In which order cells run, which wait for which, and which run together in one job.

Cells that need the same expensive artefact (see :meth:`bench.interface.Method.shares`) run after the first of them,
which makes it. That is for speed alone: an artefact is locked while it is made, so no order makes one twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.core.errors import BenchError
from bench.experiments.plan import Cell
from bench.interface.registry import METHODS


@dataclass(frozen=True, slots=True)
class Unit:
    """What one process runs without a pause: a cell, or one shard of what a cell shares with others.

    `after` are the keys of units that should be finished first. `before` is the signature of the cell's record when the
    launch began (see :meth:`bench.results.run_dir.RunDir.signature`): that record does not count.
    """

    key: str
    title: str
    cell: Cell
    after: tuple[str, ...] = ()
    before: tuple[int, int] | None = None
    shard: tuple[int, int] | None = None
    """Number and count of shards, where this is one."""


def shared_names(cell: Cell) -> tuple[str, ...]:
    """Return the names of the artefacts that `cell` shares with others."""
    if cell.refused:
        return ()
    return METHODS.get(cell.method).shares(cell.config, cell.facts, cell.seed)


def units_of(
    cells: Sequence[Cell],
    done: Iterable[Cell] = (),
    shards: int = 1,
    before: Callable[[Cell], tuple[int, int] | None] = lambda cell: None,
) -> list[Unit]:
    """Return what is to run for `cells`, those first on which others wait; what `done` cells share is there already.

    With `shards` above 1 the making of an ensemble is split into so many units that run side by side.

    Raises :class:`BenchError` where `shards` are asked for and no method can be split.
    """
    made = {name for cell in done for name in shared_names(cell)}
    first: dict[str, str] = {}
    units: list[Unit] = []
    before_it: dict[str, set[str]] = {}
    waited: set[str] = set()
    for cell in cells:
        names = shared_names(cell)
        after = {first[name] for name in names if name in first} - {cell.key}
        new = [name for name in names if name not in first and name not in made]
        parts: list[Unit] = []
        if shards > 1 and new and names[-1] in new and METHODS.get(cell.method).shardable:
            parts = [
                Unit(f"{cell.key}.shard-{i}-of-{shards}", f"{cell.title}, shard {i + 1} of {shards}", cell,
                     tuple(sorted(after)), shard=(i, shards))
                for i in range(shards)
            ]  # fmt: skip
            before_it.update((part.key, set().union(after, *(before_it[key] for key in after))) for part in parts)
            after |= {part.key for part in parts}
        # Whom it waits for anyway need not be named.
        after -= set().union(*(before_it[key] for key in after))
        before_it[cell.key] = set().union(after, *(before_it[key] for key in after))
        waited |= after
        first.update(dict.fromkeys(new, cell.key))
        units += [*parts, Unit(cell.key, cell.title, cell, tuple(sorted(after)), before(cell))]
    if shards > 1 and units and not any(unit.shard for unit in units):
        able = ", ".join(name for name in METHODS.names() if METHODS.get(name).shardable)
        raise BenchError(f"--shards {shards}: nothing here is left to split. Methods whose ensembles can be: {able}.")
    depths = _depths(units)
    # Within a depth the makers come first: others are idle for as long as these are not done.
    return sorted(units, key=lambda unit: (depths[unit.key], unit.key not in waited))


def _depths(units: Sequence[Unit]) -> dict[str, int]:
    """Return the length of the longest chain that ends at each unit; `after` always names units that come earlier."""
    depths: dict[str, int] = {}
    for unit in units:
        depths[unit.key] = 1 + max((depths[key] for key in unit.after), default=-1)
    return depths


@dataclass(frozen=True, slots=True)
class Pack:
    """Units that run one after the other in one job, all of which wait for the same units."""

    units: tuple[Unit, ...]
    after: tuple[str, ...]
    resources: str
    """The name of the resources that its job asks for."""


def packs_of(
    units: Sequence[Unit],
    seconds: Callable[[Unit], float | None],
    resources: Callable[[Unit], str],
    target: float,
) -> list[Pack]:
    """Return jobs of about `target` seconds each; a unit that nobody can estimate, or a longer one, has its own.

    Units are together only where they need the same resources and wait for the same units: a job starts when all of
    these are done.
    """
    open_packs: dict[tuple[str, tuple[str, ...]], tuple[list[Unit], float]] = {}
    packs: list[Pack] = []
    waited = {key for unit in units for key in unit.after}

    def close(group: tuple[str, tuple[str, ...]]) -> None:
        together, _ = open_packs.pop(group)
        packs.append(Pack(tuple(together), group[1], group[0]))

    for unit in units:
        group = (resources(unit), unit.after)
        length = seconds(unit)
        # What others wait for must not stand behind anything else in its job.
        if unit.shard is not None or unit.key in waited or length is None or length >= target:
            packs.append(Pack((unit,), unit.after, group[0]))
            continue
        together, total = open_packs.get(group, ([], 0.0))
        if together and total + length > target:
            close(group)
            together, total = [], 0.0
        open_packs[group] = ([*together, unit], total + length)
    for group in list(open_packs):
        close(group)
    order = {unit.key: number for number, unit in enumerate(units)}
    return sorted(packs, key=lambda pack: order[pack.units[0].key])


def waves_of(packs: Sequence[Pack]) -> list[list[Pack]]:
    """Return `packs` in waves: none in a wave waits for one of the same wave or of a later one."""
    wave_of: dict[str, int] = {}
    waves: dict[int, list[Pack]] = defaultdict(list)
    for pack in packs:
        wave = 1 + max((wave_of[key] for key in pack.after if key in wave_of), default=-1)
        wave_of.update(dict.fromkeys((unit.key for unit in pack.units), wave))
        waves[wave].append(pack)
    return [waves[number] for number in sorted(waves)]
