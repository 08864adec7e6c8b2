"""Runs of a method on a worst-case pair, in parallel processes: noisy releases, and transcripts."""

from __future__ import annotations

import dataclasses
import math
import pickle
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from bench.core.errors import BenchError, no_exit
from bench.core.fork_server import begin_process
from bench.core.progress import Progress
from bench.core.seeds import Streams, new_salt
from bench.core.transforms import as_float
from bench.core.types import Released
from bench.evaluation.audit.lockstep import Transcript, in_lockstep
from bench.evaluation.audit.pairs import WorstPair
from bench.evaluation.audit.release_score import Channels, as_channels, channels_of, of_parts
from bench.evaluation.check.check_runs import MethodPlace
from bench.evaluation.check.processes import fresh_processes
from bench.evaluation.check.released_parts import released_parts
from bench.experiments.device import prepare_device
from bench.interface.method import Method
from bench.privacy.auditing.transcript_loss import exact_epsilon
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise, Silence
from bench.storage.cache import Cache, digest_of
from bench.training.context import Context
from bench.training.divergence import CollapsedError
from bench.training.processes import start_worker

R = TypeVar("R")
_LOOK = 0.5  # seconds between two looks at the clock while calls run


@dataclass(frozen=True, slots=True)
class Runs:
    """Settings shared by the runs on one pair."""

    method: MethodPlace | type[Method]
    pair: WorstPair
    seed: int = 0
    """Seed of the transcripts' public randomness."""
    known: Cache | None = None
    """Cache of the row's own run: its features serve both sets, by the images' digests."""


def class_of(method: MethodPlace | type[Method]) -> type[Method]:
    """Return the class of `method`, imported in this process."""
    return method.load() if isinstance(method, MethodPlace) else method


def release(runs: Runs, side: int, seed: int, *, silent: bool = False) -> Channels:
    """Return the release of a run on the first (0) or second (1) set, with public randomness of `seed` and fresh noise.

    `silent` runs have no noise.
    """
    method, pair = class_of(runs.method), runs.pair
    noise = (Silence if silent else SeededNoise)(np.random.default_rng(secrets.randbits(256)))
    ledger = Ledger(method.unit, method.adjacency, Noisy(noise))
    try:
        released = trained(method, pair, side, seed, {}, new_salt(), ledger)
    except CollapsedError as error:  # a failed row shows its images
        shown = {"synthetic_images": error.images.detach().cpu(), "synthetic_labels": error.labels.detach().cpu()}
        return {**as_channels(of_parts(shown, pair.facts.classes)), "failure": np.ones(1, np.float32)}
    except BenchError:  # some answers cannot train a student, which an attacker also sees
        return {"failure": np.ones(1, np.float32)}
    return {**channels_of(released, _probes(pair)), "failure": np.zeros(1, np.float32)}


def transcript(runs: Runs, swapped: bool, tilt: float, delta: float) -> Transcript:
    """Return the transcript of runs on both sets in lockstep; with `swapped` losses are second over first.

    All have the same public randomness and share cached artefacts, such as teachers, within this process.
    """
    method, pair = class_of(runs.method), runs.pair
    sides = (1, 0) if swapped else (0, 1)
    generator = np.random.default_rng(secrets.randbits(256))
    cell = new_salt()  # unique per transcript, so that no other run resumes its checkpoints
    works = tuple(partial(trained, method, pair, side, runs.seed, _CACHES, cell, known=runs.known) for side in sides)
    found, first, second = in_lockstep((works[0], works[1]), method.unit, method.adjacency, generator, tilt)
    if first is not None and second is not None:
        found.difference = _first_difference(first, second, _probes(pair))
    if found.comparisons is not None:  # comparisons cannot be pickled
        epsilons = [exact_epsilon(comparison, delta) for comparison in found.comparisons]
        found.exact = None if None in epsilons else (epsilons[0], epsilons[1])  # type: ignore[assignment]
        found.comparisons = None
    return found


_CACHES: dict[str, Cache] = {}
"""Caches in this process's memory, by pair, set and seed; only the last pair's are kept."""


def _cache(caches: dict[str, Cache], pair: WorstPair, side: int, seed: int, known: Cache | None) -> Cache:
    name = f"{pair.name}, {digest_of(pair.config)}, {seed}"
    for other in [other for other in caches if not other.startswith(name)]:
        del caches[other]
    made = caches.setdefault(f"{name}, {side}", Cache(None, {"dataset": pair.facts.dataset, "split": str(pair.facts)}))
    made.parent = known
    return made


def trained(
    method: type[Method], pair: WorstPair, side: int, seed: int, caches: dict[str, Cache], cell: str, ledger: Ledger,
    *, known: Cache | None = None,
) -> Released:  # fmt: skip
    """Return the release of a run on the first (0) or second (1) set of `pair`, with public randomness of `seed`.

    Features are taken from `known` if it has them, because a record's do not depend on the other records.
    """
    given = (pair.first, pair.second)[side]
    private = dataclasses.replace(given, images=given.images.clone(), labels=given.labels.clone())
    streams = Streams(seed)
    streams.seed_globals()
    context = Context(torch.device("cpu"), streams, _cache(caches, pair, side, seed, known), Progress(), cell=cell)
    with no_exit(method.name):
        run = method(method.Config(**pair.config), private.facts)
        return run.train_checked(private, pair.material.public, ledger, context)


def _probes(pair: WorstPair) -> torch.Tensor:
    """Return the images on which students are compared: the unit's own, black, white, public and test images."""
    own = [(pair.first if len(pair.first) >= len(pair.second) else pair.second).images[:1], pair.second.images[:1]]
    black = torch.zeros_like(own[0])
    images = torch.cat([*own, black, black + 255, pair.material.public.images[:4], pair.material.test_images[:4]])
    return as_float(images)


def _first_difference(first: Released, second: Released, probes: torch.Tensor) -> str:
    """Return the first part of two releases that is not bytewise equal, empty if all are."""
    for (name, value), (other, other_value) in zip(released_parts(first), released_parts(second), strict=False):
        if name != other or value != other_value:
            return f"the runs differ in {name} though every answer of the ledger is the same"
    with torch.no_grad():  # a student in memory may hold more than its weights
        if not torch.equal(*(one.student.eval()(probes).nan_to_num() for one in (first, second))):
            return "the students answer differently though their weights and every answer of the ledger are the same"
    return ""


class Crew:
    """Worker processes for training; work runs in this process if another cannot import the method."""

    def __init__(self, workers: int, *, apart: bool) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        if apart:
            self._start()

    def _start(self) -> None:
        self._pool = ProcessPoolExecutor(self.workers, fresh_processes(), initializer=_start)

    def each(
        self, calls: Sequence[Callable[[], R]], more: Callable[[], bool], patience: float = math.inf
    ) -> Iterator[tuple[int, R]]:
        """Yield (position, result) of `calls` as they finish; start no further call once ``more()`` is False.

        Calls that then still run `patience` seconds later end without a result, unless they run in this process.
        """
        if self._pool is None:
            for position, call in enumerate(calls):
                if not more():
                    return
                yield position, call()
            return
        waiting = list(enumerate(calls))[::-1]
        running: dict[Future[R], int] = {}
        until = math.inf
        while waiting or running:
            while waiting and len(running) < 2 * self.workers and more():
                position, call = waiting.pop()
                running[self._pool.submit(_called, pickle.dumps(call))] = position
            if not running:
                return
            if until == math.inf and not more():
                until = time.monotonic() + patience
            if time.monotonic() > until:
                self.close()
                self._start()
                return
            for done in wait(running, None if patience == math.inf else _LOOK, return_when=FIRST_COMPLETED).done:
                try:
                    yield running.pop(done), done.result()
                except BrokenProcessPool as error:
                    raise BenchError("a process that trains died: it ran out of memory or was killed.") from error

    def once(self, call: Callable[[], R], seconds: float) -> R:
        """Return the result of `call`; raise :class:`TimeoutError` if another process needs more than `seconds`."""
        if self._pool is None:
            return call()
        try:
            found: R = self._pool.submit(_called, pickle.dumps(call)).result(seconds)
            return found
        except BrokenProcessPool as error:
            raise BenchError("its process died: it ran out of memory or was killed.") from error

    def close(self) -> None:
        """End the processes without waiting for running work."""
        if self._pool is None:
            return
        # If a process died while sending a result or reading a call, a thread here waits at the other end of the pipe
        # until the dead process's end is closed. Close the ends before the processes end: afterwards the pool's own
        # thread closes them too, and the later of the two might close a file opened since.
        for end in (self._pool._result_queue._writer, self._pool._call_queue._reader):  # type: ignore[attr-defined]
            end.close()
        processes = list((self._pool._processes or {}).values())
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _called(call: bytes) -> Any:
    """Return the result of a pickled call.

    The pool's own pickling would pass tensors as shared files, from a thread that prints a traceback when
    :meth:`Crew.close` ends the receiving process.
    """
    return pickle.loads(call)()  # noqa: S301 (pickled by this program)


def _start() -> None:
    begin_process()
    prepare_device()
    start_worker()
