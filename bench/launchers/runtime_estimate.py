"""Running times of cells, from earlier records with similar cache hits, and of the rest of a launch, from its pace.

No result depends on them.
"""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.core.grouping import grouped
from bench.core.plain_files import read_plain
from bench.core.printable import counted
from bench.experiments.plan import Cell
from bench.interface.registry import METHODS
from bench.results.record import Record, Status, parse_record

COMMITTED = Path(__file__).resolve().parent.parent.parent / "leaderboards" / "records"  # the project's own, in a clone


@dataclass(frozen=True, slots=True)
class RunningTime:
    """Estimated running time of a cell, and a text on the basis of the estimate."""

    seconds: float
    basis: str


@dataclass(frozen=True, slots=True)
class _Run:
    """One record's running time; `made`: whether it had cache misses, None without shared artefacts."""

    dataset: str
    settings: tuple[object, ...]
    private_records: int
    made: bool | None
    seconds: float


class EarlierRuns:
    """Earlier running times of finished records by method and preset."""

    def __init__(self, records: Iterable[Record]) -> None:
        """Of `records` with the same key, take the last."""
        self._runs: dict[tuple[str, str], list[_Run]] = defaultdict(list)
        self._known: dict[tuple[object, ...], RunningTime | None] = {}  # thousands of cells differ in seed and epsilon
        for record in {record.key: record for record in records}.values():
            # Tuned cells hide their time; times on a user's own data are rounded up to minutes.
            hidden = record.cell.tuning is not None or "wall_seconds" in record.provenance.unread
            if record.status is not Status.DONE or hidden:
                continue
            settings = (record.method_version, *record.reduced)
            seconds = record.provenance.wall_seconds
            run = _Run(record.dataset, settings, record.private_records, _made(record), seconds)
            self._runs[record.method, record.preset].append(run)

    def estimate(self, cell: Cell, makes: bool) -> RunningTime | None:
        """Estimate `cell`, with cache misses if `makes`; None without an earlier record of its method and preset."""
        if cell.refused:
            return RunningTime(0.0, "it is refused")
        settings = (METHODS.get(cell.method).version, *cell.reduced)
        alike = (cell.method, cell.preset, cell.facts.dataset, cell.facts.private_records, makes, settings)
        if alike not in self._known:
            self._known[alike] = self._estimate(cell, makes, settings)
        return self._known[alike]

    def _estimate(self, cell: Cell, makes: bool, settings: tuple[object, ...]) -> RunningTime | None:
        def distance(run: _Run) -> tuple[bool, bool, bool]:
            elsewhere = run.dataset != cell.facts.dataset
            # A preset's settings depend on the data set, so they are compared within one data set only.
            return run.made is not None and run.made != makes, elsewhere, not elsewhere and run.settings != settings

        runs = self._runs.get((cell.method, cell.preset.value), [])
        if not runs:
            return None
        nearest = min(map(distance, runs))
        near = [run for run in runs if distance(run) == nearest]
        other_side, elsewhere, other_settings = nearest
        seconds = median(
            run.seconds * (cell.facts.private_records / max(run.private_records, 1) if elsewhere else 1.0)
            for run in near
        )
        words = [counted(len(near), "earlier record")]
        words += ["other data set, scaled by records"] if elsewhere else []
        words += ["other settings"] if other_settings else []
        if other_side:
            words.append("cache hits where this one misses" if makes else "cache misses where this one hits")
        return RunningTime(seconds, ", ".join(words))


def _made(record: Record) -> bool | None:
    seen = record.provenance
    # Older records have one count for all kinds.
    counts = list(seen.artefacts.values()) or [(seen.artefacts_made, seen.artefacts_found)]
    if not any(made or found for made, found in counts):
        return None
    return any(made for made, _ in counts)


def earlier_records(records: Path, *, most: int = 400) -> list[Record]:
    """Return the newest `most` records of the project's folder, then those of `records`, skipping damaged ones."""
    found: list[Record] = []
    for folder in dict.fromkeys((COMMITTED, records.resolve())):
        try:
            with os.scandir(folder) as entries:
                aged = [(entry.stat().st_mtime, entry.path) for entry in entries if entry.name.endswith(".json")]
        except OSError:  # a folder may be absent
            continue
        for _, path in heapq.nlargest(most, aged):
            with suppress(OSError, ValueError):
                found.append(parse_record(read_plain(Path(path))))
    return found


def total(estimates: Sequence[RunningTime | None], slots: int, needs: Sequence[Sequence[int]] = ()) -> float:
    """Return the seconds until all cells are finished, each started in order as soon as one of `slots` is free.

    `needs` holds for each cell the positions of the cells that must finish first, without cycles; it is empty if no
    cell waits. Cells without an estimate take no time.
    """
    waiting = [len(set(needed)) for needed in needs] or [0] * len(estimates)
    after = grouped((first, cell) for cell, needed in enumerate(needs) for first in set(needed))
    ready = [cell for cell, count in enumerate(waiting) if count == 0]  # ascending order makes it a heap
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < slots:
            cell = heapq.heappop(ready)
            estimate = estimates[cell]
            heapq.heappush(running, (now + (estimate.seconds if estimate else 0.0), cell))
        now, cell = heapq.heappop(running)
        for later in after[cell]:
            waiting[later] -= 1
            if waiting[later] == 0:
                heapq.heappush(ready, later)
    return now


def duration(seconds: float) -> str:
    """Return a rounded duration as text: ``about 2 h 10 min``."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 57.5:
        return f"about {round(seconds) if seconds < 10 else 5 * round(seconds / 5)} s"
    minutes = max(1, round(seconds / 60))
    if minutes < 60:
        return f"about {minutes} min"
    hours, minutes = divmod(10 * round(seconds / 600), 60)
    if hours < 48:
        return f"about {hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(round(seconds / 3600), 24)
    return f"about {days} days" + (f" {hours} h" if hours else "")


@dataclass(frozen=True, slots=True)
class Progressed:
    """One result of a launch: its kind, its running time, and its age, the time since it began, both in seconds.

    Both are None if it has not begun; while it runs, its running time is the time so far.
    """

    kind: tuple[str, ...]
    seconds: float | None = None
    age: float | None = None
    done: bool = False


def remaining(results: Sequence[Progressed]) -> float | None:
    """Return the seconds until all `results` of a running launch are done; None before the first is done.

    A remaining result is expected to take the median time of its kind, or of all. Results begin in their order, as many
    at a time as now or on average so far, with the same breaks between them as so far.
    """
    elapsed = max((result.age or 0.0 for result in results), default=0.0)
    took = grouped((one.kind, one.seconds) for one in results if one.done and one.seconds is not None)
    every = [seconds for kind in took.values() for seconds in kind]
    pace = sum(result.seconds or 0.0 for result in results) / elapsed if elapsed > 0 else 0.0
    if not every or not pace or any(result.done and result.age is None for result in results):
        return None
    slots = max(1, round(pace), sum(result.seconds is not None and not result.done for result in results))
    begun = sorted((result for result in results if not result.done), key=lambda result: result.seconds is None)
    left = [max(0.0, median(took[result.kind] or every) - (result.seconds or 0.0)) for result in begun]
    times = [RunningTime(seconds, "") for seconds in left]
    return total(times, slots) * slots / pace
