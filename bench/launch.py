"""Many cells executed. Now one after the other in this process (`inline`); a scheduler would be another launcher."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

from bench.console import Progress
from bench.plan import Cell
from bench.record import Record, Status
from bench.run import DataSource, run_cell
from bench.store import RunDir


class Stopped(BaseException):
    """Ctrl-C or SIGTERM: not an error of a cell, so not an Exception. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(slots=True)
class Outcome:
    """What a launcher did: the records that it wrote, and the signal that stopped it, if one did."""

    records: list[Record] = field(default_factory=list)
    stopped: int | None = None

    @property
    def failed(self) -> list[Record]:
        """The records of cells that failed."""
        return [record for record in self.records if record.status is Status.FAILED]


@contextmanager
def stopping_signals() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into :class:`Stopped` while open, so that locks and displays are closed.

    Closing may wait for work of other processes. A second signal does not: it ends this process as if nobody listened.
    """

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_inline(
    cells: Sequence[Cell],
    run_dir: RunDir,
    source: DataSource,
    progress: Progress,
    *,
    device: str = "cpu",
    workers: int = 1,
    done: Callable[[Record], None] = lambda record: None,
) -> Outcome:
    """Run `cells` one after the other and tell `done` of each record; a signal ends the run between any two writes.

    Raises :class:`bench.errors.BenchError` where a record cannot be written.
    """
    outcome = Outcome()
    try:
        with stopping_signals(), progress.stage("cells", len(cells)) as stage:
            for cell in cells:
                run_dir.mark_running(cell.key)
                with progress.stage(cell.title, 1):
                    record = run_cell(cell, run_dir, source, progress, device=device, workers=workers)
                outcome.records.append(record)
                done(record)
                stage.advance()
    except Stopped as stop:
        outcome.stopped = stop.number
    return outcome
