"""Teachers on disjoint parts of the private records, and their votes on public queries.

A teacher depends only on its own part, its random stream (named by its number) and the settings, not on the number of
teachers, the chunk or the worker process. So changing one record changes one teacher and at most one vote per query,
the sensitivity that every vote mechanism here assumes. To keep this true byte for byte, a CPU trains each teacher alone
on one thread, which also beats batching small nets there; a GPU trains many: :mod:`bench.training.vectorised`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.core.errors import BenchError
from bench.core.precision import arithmetic
from bench.core.progress import SILENT, Stage
from bench.core.seeds import Streams
from bench.storage.checkpoint import Checkpoint
from bench.training.heap import release_freed
from bench.training.loop import predict
from bench.training.mapped_rows import rows_of, sendable
from bench.training.processes import one_thread
from bench.training.teacher import Arrays, Labels, Result, TeacherTask, answered, rebuilt, teacher_labels, train_teacher
from bench.training.vectorised import evenly, fitting, logits_together, train_together, why_not


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Trained teachers: `states` holds their weights, (teachers, ...) by name; `shape` is that of an input.

    `see` maps images to the teachers' inputs; None: the images are the inputs.
    """

    task: TeacherTask
    shape: tuple[int, int, int]
    states: Arrays
    see: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.states.values())))

    def part(self, first: int, last: int) -> Ensemble:
        """Return the teachers first..last-1."""
        return replace(self, states={name: array[first:last] for name, array in self.states.items()})

    def teacher(self, number: int) -> nn.Module:
        """Return teacher `number` as a net in evaluation mode."""
        return rebuilt(self.task, self.shape, {name: array[number] for name, array in self.states.items()})

    def logits(self, images: Tensor, stage: Stage = SILENT) -> Tensor:
        """Return all logits (teachers, n, classes) of `images` (n, channels, height, width)."""
        if self.see is not None:
            return replace(self, see=None).logits(self.see(images), stage)
        if _as_one_program(self.task, self.shape):
            return self._logits_together(images, stage)
        found = torch.empty(len(self), len(images), self.task.classes)
        for number, logits in enumerate(self._one_by_one(images, stage)):
            found[number] = logits
        return found

    def labels(self, images: Tensor, pool: ProcessPoolExecutor | None = None, stage: Stage = SILENT) -> Labels:
        """Return all labels (teachers, n), int64, of `images` (n, channels, height, width), whatever the `pool`."""
        if self.see is not None:
            return replace(self, see=None).labels(self.see(images), pool, stage)
        if _as_one_program(self.task, self.shape):
            return self._logits_together(images, stage).argmax(2).numpy()
        if pool is None:
            return np.stack([logits.argmax(1).numpy() for logits in self._one_by_one(images, stage)])
        images = sendable(images)
        jobs = [
            (self.task, self.shape, {name: array[number] for name, array in self.states.items()}, images)
            for number in range(len(self))
        ]
        return np.stack(list(_each(pool, teacher_labels, jobs, stage)))

    def _one_by_one(self, images: Tensor, stage: Stage) -> Iterator[Tensor]:
        """Yield each teacher's logits (n, classes), reusing one net, because new nets would fragment memory."""
        net = self.teacher(0)
        with one_thread(), arithmetic(self.task.precision, self.task.device):
            for number in range(len(self)):
                weights = {name: torch.as_tensor(array[number]) for name, array in self.states.items()}
                net.load_state_dict(weights, strict=not self.task.batch_statistics)  # `net` has no running statistics
                yield answered(self.task, predict(net, images, device=self.task.device, bf16=self.task.bf16))
                release_freed()
                stage.advance()

    def _logits_together(self, images: Tensor, stage: Stage) -> Tensor:
        found = answered(self.task, logits_together(self.task, self.states, images))
        stage.advance(len(self))
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
    stage: Stage = SILENT,
    watched: Tensor | None = None,
    say: Callable[[str], None] | None = None,
    only: range | None = None,
    checkpoint: Callable[[str, int], Checkpoint] | None = None,
) -> Ensemble:
    """Train one teacher on each of `parts` of the private records and return them.

    Teacher i draws from ``streams.child("teacher-i")``; `chunk` and `pool` do not change a byte. ``keep(first, last,
    make)`` stores what ``make()`` returns for teachers first..last-1, or returns what is stored, so a killed run loses
    at most one chunk. One program trains all chunks for which ``find(first, last)`` is None, as many teachers at a time
    as memory allows; a kill loses these. ``say`` gets the reason if the net cannot be one program. `stage` advances
    once per teacher. `watched` are the public images for `settle`. `only` selects a shard: the chunks that begin in it.
    ``checkpoint(kind, number)`` returns the checkpoint of a teacher ("teacher") or of the finished teachers of the
    chunk that begins with it ("teachers"). Raises :class:`BenchError` for overlapping or empty parts.
    """
    check_disjoint(parts, len(images))
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    starts = [first for first in range(0, len(parts), chunk) if only is None or first in only]
    chunks = [(first, min(first + chunk, len(parts))) for first in starts]
    done: list[tuple[int, int]] = []
    states: Arrays = {}

    def put(one: tuple[int, int], made: Arrays) -> None:
        """Copy a chunk's weights into the result, so that no weights end up in memory twice."""
        for name, array in made.items():
            if name not in states:
                states[name] = np.empty((chunks[-1][1] - starts[0], *array.shape[1:]), array.dtype)
            states[name][one[0] - starts[0] : one[1] - starts[0]] = array
        done.append(one)

    shown = 0

    def show(begun: int = 0) -> None:
        """Advance the stage to the teachers of finished chunks plus `begun` ones of the next chunk."""
        nonlocal shown
        now = sum(last - first for first, last in done) + begun
        if now > shown:
            stage.advance(now - shown)
            shown = now

    def finish(one: tuple[int, int], make: Callable[[], Arrays]) -> None:
        put(one, make() if keep is None else keep(*one, make))
        show()

    if _as_one_program(task, shape, say):
        for one in chunks:
            if find is not None and (stored := find(*one)) is not None:
                put(one, stored)
        show()
        missing = [one for one in chunks if one not in done]
        for one, made in _trained_together(task, images, labels, parts, streams, missing, watched, show):
            finish(one, lambda made=made: made)  # type: ignore[misc]
    # All workers fill one chunk together, so that what is kept does not depend on their number.
    for first, last in [one for one in chunks if one not in done]:

        def make(first: int = first, last: int = last) -> Arrays:
            with contextlib.ExitStack() as until_done:
                saved = until_done.enter_context(checkpoint("teachers", first)) if checkpoint is not None else None
                trained = _finished(saved)
                for number in range(first, first + len(trained)):
                    if checkpoint is not None:
                        checkpoint("teacher", number).clear()
                jobs: list[tuple[Any, ...]] = []
                for number in range(first + len(trained), last):
                    part, own = torch.from_numpy(parts[number]), streams.child(f"teacher-{number}")
                    jobs.append((task, rows_of(images, part), labels[part], own, watched))
                    if checkpoint is not None and pool is None and len(task.devices) < 2:
                        # A teacher can resume in the middle of its training only in this process.
                        jobs[-1] = (*jobs[-1], until_done.enter_context(checkpoint("teacher", number)))
                for state in _each(pool, train_teacher, jobs, SILENT):
                    trained.append(state)
                    release_freed()
                    show(len(trained))
                    if saved is not None and saved.due() and len(trained) < last - first:
                        saved.save({name: torch.from_numpy(array) for name, array in _stacked(trained).items()})
            return _stacked(trained)

        finish((first, last), make)
    return Ensemble(task, shape, states)


def _stacked(states: Sequence[Arrays]) -> Arrays:
    return {name: np.stack([state[name] for state in states]) for name in states[0]}


def _finished(saved: Checkpoint | None) -> list[Arrays]:
    found = None if saved is None else saved.load()
    if saved is None or not found:
        return []
    saved.say_resumed()
    count = len(next(iter(found.values())))
    return [{name: array[number].numpy() for name, array in found.items()} for number in range(count)]


def _as_one_program(task: TeacherTask, shape: tuple[int, int, int], say: Callable[[str], None] | None = None) -> bool:
    """Return whether to train as one program; report the reason if only the net forbids it."""
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
    show: Callable[[int], None],
) -> Iterator[tuple[tuple[int, int], Arrays]]:
    """Train the `missing` chunks, with as many teachers together as fit in memory; yield them chunk by chunk.

    `show` gets the number of teachers trained beyond the chunks yielded so far, unfinished ones counted by their steps.
    """
    if not missing:
        return
    at_once = fitting(task, (images.shape[1], images.shape[2], images.shape[3]), max(map(len, parts)))
    for run in evenly(list(range(len(missing))), max(1, at_once // (missing[0][1] - missing[0][0]))):
        numbers = [number for place in run for number in range(*missing[place])]
        made = train_together(
            task, images, labels, [parts[number] for number in numbers],
            [streams.child(f"teacher-{number}") for number in numbers], at_once=at_once, watched=watched,
            tell=lambda trained: show(int(trained)),
        )  # fmt: skip
        start = 0
        for place in run:
            rows = slice(start, start + missing[place][1] - missing[place][0])
            yield missing[place], {name: array[rows] for name, array in made.items()}
            start = rows.stop


def _each(
    pool: ProcessPoolExecutor | None, work: Callable[..., Result], jobs: Sequence[tuple[Any, ...]], stage: Stage
) -> Iterator[Result]:
    """Yield ``work(*job)`` for each of `jobs`, in order."""
    waiting = [pool.submit(work, *job) for job in jobs] if pool is not None else None
    for number, job in enumerate(jobs):
        yield work(*job) if waiting is None else waiting[number].result()
        stage.advance()


def check_disjoint(parts: Sequence[Labels], records: int) -> None:
    """Raise :class:`BenchError` unless all `parts` are non-empty, disjoint, and within `records`."""
    if not parts or any(len(part) == 0 for part in parts):
        raise BenchError("every teacher needs at least one private record of its own.")
    every = np.concatenate(parts)
    if len(np.unique(every)) != len(every):
        raise BenchError("teachers' parts overlap: a record in two parts would change two votes.")
    if every.min() < 0 or every.max() >= records:
        raise BenchError(f"a teacher's part names a record outside the {records} private ones.")


def count_votes(predictions: Labels, classes: int) -> Labels:
    """Return int64 counts (queries, classes) of labels (teachers, queries); raise :class:`BenchError` out of range."""
    if predictions.ndim != 2:
        raise BenchError(f"predictions must be (teachers, queries), not of shape {predictions.shape}.")
    if predictions.size and (predictions.min() < 0 or predictions.max() >= classes):
        raise BenchError(f"a teacher's label lies outside 0..{classes - 1}.")
    return np.stack([(predictions == label).sum(0) for label in range(classes)], axis=1).astype(np.int64)


def shard_range(total: int, shard: int, shards: int, step: int) -> range:
    """Return the teachers of `shard` among `total`, in whole artefacts of `step` teachers."""
    artefacts = math.ceil(total / step)
    begin, end = artefacts * shard // shards, artefacts * (shard + 1) // shards
    return range(begin * step, min(total, end * step))
