"""Many teachers on disjoint parts of the private records, and their votes on public queries.

A teacher is a function of its own part, its own random stream (named by its number) and the settings, and of nothing
else: not of how many teachers there are beside it, nor of the chunk or the worker process that trains it. So changing
one record changes one teacher and at most one vote per query, which is the sensitivity that every vote mechanism here
assumes. To keep that true to the byte, each teacher is trained by itself, on one thread, in one loop: on a CPU a loop
over small nets is also as fast as programs that batch them.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.errors import BenchError
from bench.training import FitSettings, fit, predict, seeded

if TYPE_CHECKING:
    from bench.console import Stage
    from bench.seeds import Streams

Labels = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TeacherTask:
    """What every teacher of an ensemble has in common: the net, the data's public facts, how to train."""

    model: str
    classes: int
    settings: FitSettings
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the net's entry point."""
    device: str = "cpu"
    bf16: bool = False


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Trained teachers. `states` holds each weight of all of them, (teachers, ...), `shape` that of an image."""

    task: TeacherTask
    shape: tuple[int, int, int]
    states: Arrays

    def __len__(self) -> int:
        return len(next(iter(self.states.values())))

    def teacher(self, number: int) -> nn.Module:
        """Return teacher `number` as a net in evaluation mode."""
        return _rebuilt(self.task, self.shape, {name: array[number] for name, array in self.states.items()})

    def logits(self, images: Tensor, stage: Stage | None = None) -> Tensor:
        """Return what every teacher says of `images` (n, channels, height, width): (teachers, n, classes).

        `stage` is advanced once per teacher.
        """
        found = torch.empty(len(self), len(images), self.task.classes)
        net = self.teacher(0)
        with one_thread():
            for number in range(len(self)):
                net.load_state_dict({name: torch.from_numpy(array[number]) for name, array in self.states.items()})
                found[number] = predict(net, images, device=self.task.device, bf16=self.task.bf16)
                if stage is not None:
                    stage.advance()
        return found

    def labels(self, images: Tensor, pool: ProcessPoolExecutor | None = None, stage: Stage | None = None) -> Labels:
        """Return every teacher's labels of `images` (n, channels, height, width): (teachers, n), int64.

        With a `pool` its processes share the teachers; the labels are the same to the byte. `stage` is advanced once
        per teacher.
        """
        jobs = [
            (self.task, self.shape, {name: array[number] for name, array in self.states.items()}, images)
            for number in range(len(self))
        ]
        return np.stack(list(_each(pool, teacher_labels, jobs, stage)))


def train_teacher(task: TeacherTask, images: Tensor, labels: Tensor, streams: Streams) -> Arrays:
    """Train one teacher on `images` (uint8) with `labels` (int64), its own part; return its weights by name.

    `streams` must be the teacher's own. Classes that the part misses stay among the outputs and are simply never
    learnt, so the shape of the votes says nothing of the part.
    """
    from bench.models.classifiers import build

    start = streams.torch("weights")
    with one_thread(), seeded(start):
        model = build(task.model, task.classes, images.shape[1], (images.shape[2], images.shape[3]), **task.options)
        order = streams.torch("order")
        # A teacher that diverges still votes: were it an error, one record could decide whether there is a student.
        fit(model, images, labels, task.settings, order, device=task.device, bf16=task.bf16, must_converge=False)
    return {name: value.detach().cpu().contiguous().numpy() for name, value in model.state_dict().items()}


def teacher_labels(task: TeacherTask, shape: tuple[int, int, int], state: Arrays, images: Tensor) -> Labels:
    """Return the labels (n,) that one teacher, rebuilt from `state`, gives `images`."""
    with one_thread():
        logits = predict(_rebuilt(task, shape, state), images, device=task.device, bf16=task.bf16)
    found: Labels = logits.argmax(1).numpy()
    return found


def train_teachers(
    task: TeacherTask,
    images: Tensor,
    labels: Tensor,
    parts: Sequence[Labels],
    streams: Streams,
    *,
    chunk: int = 10,
    keep: Callable[[int, int, Callable[[], Arrays]], Arrays] | None = None,
    pool: ProcessPoolExecutor | None = None,
    stage: Stage | None = None,
) -> Ensemble:
    """Train one teacher on each of `parts` of the private records and return them.

    Teacher number i draws from ``streams.child("teacher-i")``. Teachers are made in chunks of `chunk`;
    ``keep(first, last, make)`` may store what ``make()`` gives for the teachers first..last-1 and hand back what it has
    stored before, so that a killed run loses one chunk at most. The processes of a `pool` share the chunks; the
    result is the same to the byte for every `chunk` and with or without one. `stage` is advanced once per teacher.

    Raises :class:`BenchError` for parts that overlap or are empty.
    """
    check_disjoint(parts, len(images))
    if chunk < 1:
        raise BenchError(f"chunk must be at least 1, not {chunk}.")
    keep = keep if keep is not None else lambda first, last, make: make()
    done: list[Arrays] = []
    # Chunks are filled by all workers together: what is kept then never depends on how many there are.
    for first in range(0, len(parts), chunk):
        last = min(first + chunk, len(parts))

        def make(first: int = first, last: int = last) -> Arrays:
            jobs = []
            for number in range(first, last):
                part = torch.from_numpy(parts[number])
                jobs.append((task, images[part], labels[part], streams.child(f"teacher-{number}")))
            states = list(_each(pool, train_teacher, jobs, None))
            return {name: np.stack([state[name] for state in states]) for name in states[0]}

        done.append(keep(first, last, make))
        if stage is not None:
            stage.advance(last - first)
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    return Ensemble(task, shape, {name: np.concatenate([part[name] for part in done]) for name in done[0]})


def _each(
    pool: ProcessPoolExecutor | None, work: Callable[..., Result], jobs: Sequence[tuple[Any, ...]], stage: Stage | None
) -> Iterator[Result]:
    """Yield ``work(*job)`` for each of `jobs`, in their order."""
    waiting = [pool.submit(work, *job) for job in jobs] if pool is not None else None
    for number, job in enumerate(jobs):
        yield work(*job) if waiting is None else waiting[number].result()
        if stage is not None:
            stage.advance()


def _rebuilt(task: TeacherTask, shape: tuple[int, int, int], state: Arrays) -> nn.Module:
    from bench.models.classifiers import build

    with torch.random.fork_rng([]):  # the start of the weights is overwritten: it must not move anybody's stream
        model = build(task.model, task.classes, shape[0], shape[1:], **task.options)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    return model.eval()


def check_disjoint(parts: Sequence[Labels], records: int) -> None:
    """Raise :class:`BenchError` unless all `parts` are non-empty, disjoint, and within `records`."""
    if not parts or any(len(part) == 0 for part in parts):
        raise BenchError("every teacher needs at least one private record of its own.")
    every = np.concatenate(parts)
    if len(np.unique(every)) != len(every):
        raise BenchError("teachers' parts overlap: a record in two of them would change two votes.")
    if every.min() < 0 or every.max() >= records:
        raise BenchError(f"a teacher's part names a record outside the {records} private ones.")


def count_votes(predictions: Labels, classes: int) -> Labels:
    """Return how many teachers chose each class: (teachers, queries) labels to (queries, classes) counts, int64.

    Raises :class:`BenchError` for labels outside 0..classes-1.
    """
    if predictions.ndim != 2:
        raise BenchError(f"predictions must be (teachers, queries), not of shape {predictions.shape}.")
    if predictions.size and (predictions.min() < 0 or predictions.max() >= classes):
        raise BenchError(f"a teacher's label lies outside 0..{classes - 1}.")
    counts: Labels = np.stack([(predictions == label).sum(0) for label in range(classes)], axis=1).astype(np.int64)
    return counts


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operations on one thread inside: sums then have one order, whatever the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def worker_pool(workers: int, device: str = "cpu") -> Iterator[ProcessPoolExecutor | None]:
    """Open `workers` fresh processes (never forked: torch's threads do not survive that) that end with this one.

    None for one worker, or where the work is for a GPU, which one process fills.
    """
    if workers < 2 or device != "cpu":
        yield None
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_start_worker)
    try:
        yield pool
    except BaseException as error:
        if isinstance(error, BrokenProcessPool):
            # Who ended the workers by a signal (Slurm signals all processes of a job) may have sent it to this one as
            # well: then it is to end by that signal, and not with an error that counts as the cell's.
            time.sleep(1.0)
        # Stopped or failed: nobody waits for what the others are at. What they had finished is kept.
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """Ask Linux to end this worker when the process that started it is killed, and leave Ctrl-C to that process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    if sys.platform.startswith("linux"):
        set_parent_death_signal = 1
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
