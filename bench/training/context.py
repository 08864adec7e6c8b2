"""What a method is handed besides data and ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from bench.core.progress import Progress
    from bench.core.seeds import Streams
    from bench.storage.cache import Cache
    from bench.training.checkpoint import Checkpoint
    from bench.training.precision import Precision


@dataclass(slots=True)
class Context:
    """What a method needs besides data and ledger: a device, seeded generators, the cache, the progress display."""

    device: torch.device
    streams: Streams
    cache: Cache
    progress: Progress
    workers: int = 1
    """How many processes may train teachers side by side on a CPU; results do not depend on it."""
    note: Callable[[str], None] = lambda text: None
    """Say something about this run that is public; it is kept in the record and printed."""
    cell: str = ""
    """The key of the cell that is run. Part of what a checkpoint depends on with which no other cell may resume."""
    precision: Precision = "float32"
    """In which numbers teacher ensembles are trained and asked; part of their artefacts' names."""
    devices: tuple[str, ...] = ()
    """More than one: large teachers are trained on all of them, a share of every batch on each. Empty: on `device`."""

    def checkpoint(self, kind: str, depends: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint of a stage of this `kind`; a ``with`` block deletes it where it ends without an error.

        `depends` names everything that the stage depends on besides the data set, the seed and the device, by the rule
        of :meth:`bench.storage.cache.Cache.get`.
        """
        from bench.training.checkpoint import Checkpoint

        return Checkpoint(
            self.cache,
            kind,
            {"depends": dict(depends), "seed": [self.streams.seed, self.streams.prefix], "device": self.device.type},
        )
