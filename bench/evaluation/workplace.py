"""What every goal of an attack is handed: the student, its data, the options."""

from __future__ import annotations

import contextlib
import dataclasses
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.core.config import Preset
from bench.experiments.data_source import DataSource

if TYPE_CHECKING:
    from bench.core.progress import Progress
    from bench.evaluation.data_roles import AttackData
    from bench.results.run_dir import RunDir


@dataclass(frozen=True, slots=True)
class AttackOptions:
    """What `bench attack` was asked for. `shadow_runs` 0: what suits the preset."""

    preset: Preset = Preset.QUICK
    overrides: tuple[str, ...] = ()
    seed: int = 0
    auxiliary: str | None = None
    auxiliary_revision: str = ""
    """Of that data set, whose name may mean other images tomorrow."""
    shadow_runs: int = 0

    def shadow_run_count(self) -> int:
        """Return how many shadow runs membership attacks train."""
        return self.shadow_runs or {Preset.PAPER: 64, Preset.QUICK: 2, Preset.TINY: 2}[self.preset]


@dataclass(slots=True)
class Workplace:
    """What the attacks of one command share."""

    run_dir: RunDir
    source: DataSource
    progress: Progress
    options: AttackOptions
    device: str = "cpu"
    workers: int = 1
    folder: str | None = None
    """The name that a user's folder is loaded by: a record does not hold the path."""
    data: dict[str, AttackData] = dataclasses.field(default_factory=dict)
    """Records of an evaluation by data set, each checked once."""
    stack: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    """What is closed when the command ends."""
    _pool: list[ProcessPoolExecutor | None] = dataclasses.field(default_factory=list)

    def pool(self) -> ProcessPoolExecutor | None:
        """Return the processes that share the work, started when first asked for; None where one does it all."""
        from bench.training.processes import worker_pool

        if not self._pool:
            kind = "cpu" if self.device == "cpu" else "cuda"
            self._pool.append(self.stack.enter_context(worker_pool(self.workers, kind)))
        return self._pool[0]

    def data_of(self, name: str) -> AttackData:
        """Return the records of an evaluation on the data set `name`."""
        from bench.evaluation.data_roles import attack_data

        if name not in self.data:
            self.data[name] = attack_data(name, self.source, self.options.auxiliary)
        return self.data[name]
