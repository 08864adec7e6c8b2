"""Options and shared state of one command's attacks."""

from __future__ import annotations

import contextlib
import dataclasses
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from bench.core.config import Preset, build_config, parse_overrides, values_of
from bench.core.options import ONE_CPU, Resources
from bench.core.progress import Progress
from bench.core.rows import Change
from bench.evaluation.attack.data_roles import AttackData, attack_data, fewer
from bench.experiments.data_source import DataSource
from bench.experiments.plan import Cell, cell_of, data_named
from bench.interface.attack import Attack
from bench.interface.registry import ATTACKS
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.training.processes import worker_pool


@dataclass(frozen=True, slots=True)
class AttackOptions:
    """Options of `bench attack`. `shadow_runs` 0: the preset's number."""

    preset: Preset = Preset.QUICK
    overrides: tuple[str, ...] = ()
    seed: int = 0
    auxiliary: str | None = None
    auxiliary_revision: str = ""  # name and revision of `auxiliary`: sets may share a store, or change under one name
    shadow_runs: int = 0
    tune: int = 0
    """Settings that an inversion attack tries on shadow students of other people; 0: none, it keeps its own."""

    def shadow_run_count(self) -> int:
        """Return the number of shadow runs for membership attacks."""
        return self.shadow_runs or {Preset.PAPER: 64, Preset.QUICK: 2, Preset.TINY: 2}[self.preset]


@dataclass(slots=True)
class Workplace:
    """State shared by the attacks of one command; `stack` closes at its end."""

    run_dir: RunDir
    source: DataSource
    progress: Progress
    options: AttackOptions
    resources: Resources = ONE_CPU
    folder: str | None = None  # name of a user's folder in `source`, because records do not hold the path
    data: dict[str, AttackData] = dataclasses.field(default_factory=dict)
    stack: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    _pool: list[ProcessPoolExecutor | None] = dataclasses.field(default_factory=list)

    def pool(self) -> ProcessPoolExecutor | None:
        """Return the worker pool, started on first use; None for a single worker, or if a pool would not save time."""
        if self.options.preset is Preset.TINY:
            return None
        if not self._pool:
            kind = "cpu" if self.resources.device == "cpu" else "cuda"
            self._pool.append(self.stack.enter_context(worker_pool(self.resources.workers, kind)))
        return self._pool[0]

    def data_of(self, name: str) -> AttackData:
        """Return the evaluation's records of the data set `name`, checked once."""
        if name not in self.data:
            data = attack_data(name, self.source, self.options.auxiliary)
            self.data[name] = fewer(data) if self.options.preset is Preset.TINY else data
        return self.data[name]


def configured(record: Record, name: str, place: Workplace) -> tuple[Cell, Attack, list[Change]]:
    """Return the cell of `record`, the attack `name` on it, and its config's differences from the paper's."""
    cell = cell_of(record, place.source.describe(data_named(record, place.folder)))
    kind = ATTACKS.get(name)
    values = values_of(parse_overrides(kind, place.options.overrides))
    config, reduced = build_config(kind, place.options.preset, cell.facts, values)
    return cell, kind(config, cell.facts), reduced
