"""Confined processes for the runs of a check, each with its data set in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar, cast

from bench.core.confinement import confine
from bench.core.errors import BenchError
from bench.core.fork_server import begin_process
from bench.core.plain_files import user_path
from bench.data.image_map import mapping_of
from bench.evaluation.check.check_data import Variant
from bench.evaluation.check.check_runs import MethodPlace, Outcome, Trial, data_source, refuse_outside, session
from bench.evaluation.check.opened import module_files, watch_environment
from bench.evaluation.check.processes import answered, fresh_processes, pickled, unpickled
from bench.evaluation.check.tape import Taped
from bench.interface.method import Method
from bench.interface.plugin_source import sources_of
from bench.storage.array_store import places_without_data

T = TypeVar("T")


class Processes:
    """Runs sessions, each in a new process, or in this one if no other can import the method's class.

    In a new process they end with :class:`TooLong` after `patience` seconds, unless that is None. New processes are
    confined once they have read their data set: of the user's files they read only the method's source and weights;
    they write weights, to `folder` and to temporary folders. `dataset` may be a folder of the user.
    """

    def __init__(self, patience: float | None = None, *, dataset: str = "", folder: str = "") -> None:
        self._context, self._patience = fresh_processes(), patience
        own = dataset.partition("folder:")[2]
        self._readable = [user_path(own)] if own else []
        self._writable = [Path(folder)] if folder else []

    def run(
        self, trial: Trial, variants: Sequence[Variant], tape: list[Taped] | None = None, seconds: float = 0.0
    ) -> list[Outcome]:
        """Return the outcomes of :func:`session`; errors of the method propagate.

        Raises :class:`Rejected` if the method's code reaches beyond its arguments.
        """
        outcomes = self.apart(trial.method, session, trial, variants, tape, seconds)
        refuse_outside(next(filter(None, (one.outside for one in outcomes)), ""))
        return outcomes

    def apart(self, method: MethodPlace | type[Method], work: Callable[..., T], *parts: Any) -> T:
        """Return ``work(*parts)`` from a new process, or from this one if no other can import `method`."""
        if not isinstance(method, MethodPlace):
            return work(*parts)
        readable = [*self._readable, *sources_of(method.load()), *map(Path, module_files())]
        dataset = next((part.dataset for part in parts if isinstance(part, Trial)), "")
        with tempfile.TemporaryDirectory(prefix="runs-") as place:
            given = readable, [*self._writable, Path(place)], place, dict(os.environ), dataset
            with ProcessPoolExecutor(1, self._context, initializer=_begin, initargs=given) as pool:
                try:
                    return cast("T", unpickled(pool.submit(answered, self._patience, pickled(work, *parts)).result()))
                except BrokenProcessPool as error:
                    raise BenchError(
                        "the process of a checked run died: it ran out of memory or was killed."
                    ) from error


def _begin(
    readable: Sequence[Path], writable: Sequence[Path], place: str, environment: Mapping[str, str], dataset: str
) -> None:
    """Prepare a new process: with `dataset` in memory, confined, with its temporary files in `place`."""
    os.environ.clear()  # the fork server's, which may name another data root
    os.environ.update(environment)
    tempfile.tempdir = os.environ["TMPDIR"] = place
    watch_environment()
    if dataset and (mapped := mapping_of(data_source.material(dataset).private.images)) is not None:
        readable = [*readable, mapped[0].path]  # too large to hold
    confine(readable, [*writable, *places_without_data()])
    begin_process()
