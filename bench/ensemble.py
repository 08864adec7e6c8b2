"""Many teachers on disjoint parts of the private records, and their votes on public queries.

A teacher is a function of its own part, its own random stream (named by its number) and the settings, and of nothing
else: not of how many teachers there are beside it, nor of the chunk or the worker process that trains it. So changing
one record changes one teacher and at most one vote per query, which is the sensitivity that every vote mechanism here
assumes. To keep that true to the byte, each teacher is trained by itself on a CPU, on one thread, in one loop, which is
faster there than programs that batch small nets. On a GPU one program trains many: see :mod:`bench.batched`, also for
why that leaves teachers apart.
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
from bench.precision import Precision, arithmetic, check_precision
from bench.training import FitSettings, fit, predict, seeded

if TYPE_CHECKING:
    from bench.checkpoint import Checkpoint
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
    precision: Precision = "float32"
    devices: tuple[str, ...] = ()
    """More than one: each teacher is trained on all of them, a share of every batch on each."""
    batched: bool | None = None
    """Train and ask many teachers as one program; None: on a GPU. Weights then agree with the loop's up to rounding."""

    def __post_init__(self) -> None:
        """Refuse a precision that the device has not."""
        check_precision(self.precision, self.device)

    @property
    def bf16(self) -> bool:
        """Whether forward passes run in bfloat16."""
        return self.precision == "bf16"

    @property
    def together(self) -> bool:
        """Whether many teachers are to be one program, where their net allows it."""
        if len(self.devices) > 1:
            return False
        return self.batched if self.batched is not None else torch.device(self.device).type == "cuda"


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
        if self._together():
            return self._logits_together(images, stage)
        found = torch.empty(len(self), len(images), self.task.classes)
        net = self.teacher(0)
        with one_thread(), arithmetic(self.task.precision, self.task.device):
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
        if self._together():
            chosen: Labels = self._logits_together(images, stage).argmax(2).numpy()
            return chosen
        jobs = [
            (self.task, self.shape, {name: array[number] for name, array in self.states.items()}, images)
            for number in range(len(self))
        ]
        return np.stack(list(_each(pool, teacher_labels, jobs, stage)))

    def _together(self) -> bool:
        from bench.batched import why_not

        return self.task.together and not why_not(self.task, self.shape)

    def _logits_together(self, images: Tensor, stage: Stage | None) -> Tensor:
        from bench.batched import logits_together

        found = logits_together(self.task, self.states, images)
        if stage is not None:
            stage.advance(len(self))
        return found


def train_teacher(
    task: TeacherTask,
    images: Tensor,
    labels: Tensor,
    streams: Streams,
    watched: Tensor | None = None,
    checkpoint: Checkpoint | None = None,
) -> Arrays:
    """Train one teacher on `images` (uint8) with `labels` (int64), its own part; return its weights by name.

    `streams` must be the teacher's own; `watched` are the public images of the settings' rule `settle`. With a
    `checkpoint` a training that was stopped goes on. Classes that the part misses stay among the outputs and are simply
    never learnt, so the shape of the votes says nothing of it.
    """
    from bench.models.classifiers import build

    start = streams.torch("weights")
    with one_thread(), arithmetic(task.precision, task.device), seeded(start):
        model = build(task.model, task.classes, images.shape[1], (images.shape[2], images.shape[3]), **task.options)
        order = streams.torch("order")
        # A teacher that diverges still votes: were it an error, one record could decide whether there is a student.
        if len(task.devices) > 1:
            from bench.distributed import fit_on_devices

            fit_on_devices(
                model, images, labels, task.settings, order, task.devices, precision=task.precision, must_converge=False
            )
        else:
            fit(
                model, images, labels, task.settings, order, device=task.device, bf16=task.bf16, must_converge=False,
                watched=watched, checkpoint=checkpoint,
            )  # fmt: skip
    return {name: value.detach().cpu().contiguous().numpy() for name, value in model.state_dict().items()}


def teacher_labels(task: TeacherTask, shape: tuple[int, int, int], state: Arrays, images: Tensor) -> Labels:
    """Return the labels (n,) that one teacher, rebuilt from `state`, gives `images`."""
    with one_thread(), arithmetic(task.precision, task.device):
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
    find: Callable[[int, int], Arrays | None] | None = None,
    pool: ProcessPoolExecutor | None = None,
    stage: Stage | None = None,
    watched: Tensor | None = None,
    at_once: int | None = None,
    say: Callable[[str], None] | None = None,
    only: range | None = None,
    checkpoint: Callable[[str, int], Checkpoint] | None = None,
) -> Ensemble:
    """Train one teacher on each of `parts` of the private records and return them.

    Teacher number i draws from ``streams.child("teacher-i")``. Teachers are made in chunks of `chunk`;
    ``keep(first, last, make)`` may store what ``make()`` gives for the teachers first..last-1 and hand back what it has
    stored before, so that a killed run loses one chunk at most. The processes of a `pool` share the chunks; the
    result is the same to the byte for every `chunk` and with or without one. `stage` is advanced once per teacher.
    `watched` are the public images that the settings' rule `settle` looks at.

    Where the task has its teachers trained as one program, ``find(first, last)``, which gives what `keep` has stored or
    None, tells which chunks are missing; teachers of many chunks are then trained at once, `at_once` at most (None: as
    the memory allows), and kept chunk by chunk. A killed run loses what is trained at once. ``say`` is told why a net
    is trained in the loop all the same. Of the chunks those that begin in `only` are made (None: all), and the teachers
    in them returned: a shard of the ensemble, for one of several jobs. ``checkpoint(kind, number)`` names what a killed
    run goes on with inside a chunk: the chunk that begins with a teacher ("teachers"), or the teacher ("teacher").

    Raises :class:`BenchError` for parts that overlap or are empty.
    """
    check_disjoint(parts, len(images))
    if chunk < 1:
        raise BenchError(f"chunk must be at least 1, not {chunk}.")
    keep = keep if keep is not None else lambda first, last, make: make()
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    starts = [first for first in range(0, len(parts), chunk) if only is None or first in only]
    chunks = [(first, min(first + chunk, len(parts))) for first in starts]
    done: dict[tuple[int, int], Arrays] = {}
    if _as_one_program(task, shape, say):
        done = {one: stored for one in chunks if find is not None and (stored := find(*one)) is not None}
        if stage is not None:
            stage.advance(sum(last - first for first, last in done))
        missing = [one for one in chunks if one not in done]
        for (first, last), made in _trained_together(task, images, labels, parts, streams, missing, watched, at_once):
            done[first, last] = keep(first, last, lambda made=made: made)  # type: ignore[misc]
            if stage is not None:
                stage.advance(last - first)
        chunks_left = []
    else:
        chunks_left = chunks
    # Chunks are filled by all workers together: what is kept then never depends on how many there are.
    for first, last in chunks_left:

        def make(first: int = first, last: int = last) -> Arrays:
            with contextlib.ExitStack() as until_done:
                saved = until_done.enter_context(checkpoint("teachers", first)) if checkpoint is not None else None
                states = _finished(saved)
                for number in range(first, first + len(states)):
                    if checkpoint is not None:
                        checkpoint("teacher", number).clear()
                jobs: list[tuple[Any, ...]] = []
                for number in range(first + len(states), last):
                    part, own = torch.from_numpy(parts[number]), streams.child(f"teacher-{number}")
                    jobs.append((task, images[part], labels[part], own, watched))
                    if checkpoint is not None and pool is None and len(task.devices) < 2:
                        # In this process a teacher can go on itself; others hand over finished ones only.
                        jobs[-1] = (*jobs[-1], until_done.enter_context(checkpoint("teacher", number)))
                for state in _each(pool, train_teacher, jobs, None):
                    states.append(state)
                    if saved is not None and saved.due() and len(states) < last - first:
                        saved.save({name: torch.from_numpy(array) for name, array in _stacked(states).items()})
            return _stacked(states)

        done[first, last] = keep(first, last, make)
        if stage is not None:
            stage.advance(last - first)
    every = [done[one] for one in chunks]
    return Ensemble(task, shape, {name: np.concatenate([part[name] for part in every]) for name in every[0]})


def _stacked(states: Sequence[Arrays]) -> Arrays:
    return {name: np.stack([state[name] for state in states]) for name in states[0]}


def _finished(saved: Checkpoint | None) -> list[Arrays]:
    """Return the teachers of a chunk that an earlier run had finished."""
    found = None if saved is None else saved.load()
    if saved is None or not found:
        return []
    saved.say_resumed()
    count = len(next(iter(found.values())))
    return [{name: array[number].numpy() for name, array in found.items()} for number in range(count)]


def _as_one_program(task: TeacherTask, shape: tuple[int, int, int], say: Callable[[str], None] | None) -> bool:
    """Whether the teachers are to be trained as one program and can be; say why not where they cannot."""
    from bench.batched import why_not

    if not task.together:
        return False
    reason = why_not(task, shape)
    if reason and say is not None:
        say(f"teachers are trained one after the other: {reason}")
    return not reason


def _trained_together(
    task: TeacherTask,
    images: Tensor,
    labels: Tensor,
    parts: Sequence[Labels],
    streams: Streams,
    missing: list[tuple[int, int]],
    watched: Tensor | None,
    at_once: int | None,
) -> Iterator[tuple[tuple[int, int], Arrays]]:
    """Train the teachers of the `missing` chunks, as many at once as fit, and yield them chunk by chunk."""
    from bench.batched import evenly, fitting, train_together

    if not missing:
        return
    if at_once is None:
        at_once = fitting(task, (images.shape[1], images.shape[2], images.shape[3]), max(map(len, parts)))
    for run in evenly(list(range(len(missing))), max(1, at_once // (missing[0][1] - missing[0][0]))):
        numbers = [number for place in run for number in range(*missing[place])]
        made = train_together(
            task, images, labels, [parts[number] for number in numbers],
            [streams.child(f"teacher-{number}") for number in numbers], at_once=at_once, watched=watched,
        )  # fmt: skip
        start = 0
        for place in run:
            rows = slice(start, start + missing[place][1] - missing[place][0])
            yield missing[place], {name: array[rows] for name, array in made.items()}
            start = rows.stop


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
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=start_worker)
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


def start_worker() -> None:
    """Ask Linux to end this worker when the process that started it is killed, and leave Ctrl-C to that process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    if sys.platform.startswith("linux"):
        set_parent_death_signal = 1
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
