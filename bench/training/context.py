"""The run context that a method receives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.core.seeds import new_salt

if TYPE_CHECKING:
    import torch

    from bench.core.precision import Precision
    from bench.core.progress import Progress, Stage
    from bench.core.seeds import Streams
    from bench.storage.cache import Cache
    from bench.storage.checkpoint import Checkpoint


def unnoted(text: str) -> None:
    """Discard a fact about a run. Unlike a lambda, this function can be sent to another process."""


@dataclass(slots=True)
class Context:
    """A method's run context: device, seeded generators, cache and progress display."""

    device: torch.device
    streams: Streams
    cache: Cache
    progress: Progress
    workers: int = 1  # Number of processes that may train teachers in parallel on a CPU; results do not depend on it.
    note: Callable[[str], None] = unnoted
    """Report a public fact about this run; it is kept in the record and printed."""
    cell: str = field(default_factory=new_salt)
    """An opaque token of this run; checkpoints that no other run may resume depend on it."""
    precision: Precision = "float32"  # Precision of teacher training and prediction; part of the artefacts' names.
    devices: tuple[str, ...] = ()
    """If several, large teachers train on all of them, which split every batch; empty: on `device`."""

    def checkpoint(self, kind: str, depends: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint of stage `kind`; `depends` is as in `Cache.get`, without data set, seed and device."""
        from bench.storage.checkpoint import Checkpoint

        seed = [self.streams.seed, self.streams.prefix]
        return Checkpoint(self.cache, kind, {"depends": dict(depends), "seed": seed, "device": self.device.type})

    @contextlib.contextmanager
    def stage(
        self, kind: str, depends: Mapping[str, Any], steps: int, shown: str = ""
    ) -> Iterator[tuple[Checkpoint, Stage]]:
        """Open the :meth:`checkpoint` of stage `kind`, and its progress display of `steps` steps under `shown`."""
        with self.checkpoint(kind, depends) as checkpoint, self.progress.stage(shown or kind, steps) as stage:
            yield checkpoint, stage
