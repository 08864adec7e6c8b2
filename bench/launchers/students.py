"""Students of a run directory: `bench attack` and `bench audit` choose them, and work through them one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from bench.core.errors import BenchError, UnknownNameError
from bench.core.options import Resources, Students
from bench.core.plain_files import check_run_dir
from bench.core.progress import Progress, echo, open_progress
from bench.experiments.data_source import DataSource
from bench.experiments.device import prepare_device
from bench.experiments.noise_salt import sweep_salts
from bench.experiments.plan import data_named, other_program
from bench.interface.registry import METHODS, methods_named
from bench.results.record import Record, Status
from bench.results.run_dir import RunDir
from bench.storage.interrupts import Stopped, stopping_signals

Do = Callable[[Record, RunDir, DataSource, Progress, Resources], None]


def each_student(
    asked: Students, do: Do, resources: Resources, quiet: bool,
    end: Callable[[list[Record]], None] = lambda students: None, closing: contextlib.ExitStack | None = None,
) -> int | None:  # fmt: skip
    """Call `do` for each chosen student, then `end`; return the signal that stopped it.

    It shares the directory with other commands: `do` claims each result that it makes.
    """
    run_dir, students = chosen_in(asked)
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(open_progress(quiet=quiet))
        stack.enter_context(run_dir.joined())
        sweep_salts(run_dir)
        source = DataSource(progress)
        resources = prepare_device(resources)
        try:
            with (
                stopping_signals(),
                closing or contextlib.ExitStack(),
                progress.stage("students", len(students)) as stage,
            ):
                for record in students:
                    with progress.stage(record.key, 1):
                        do(record, run_dir, source, progress, resources)
                    stage.advance()
                end(students)
        except Stopped as stop:
            return stop.number
    return None


def chosen_in(asked: Students) -> tuple[RunDir, list[Record]]:
    """Return the run directory, and the students that :func:`choose_students` finds in it.

    Raises :class:`BenchError` if a student trained on a user's own data and `asked` does not name it.
    """
    run_dir = RunDir(asked.out)
    check_run_dir(asked.out, asked.keys)
    students = choose_students(run_dir, asked.keys, asked.methods)
    for record in students:
        data_named(record, asked.data)
    return run_dir.create(), students


def choose_students(run_dir: RunDir, keys: Sequence[str] | None, methods: str = "") -> list[Record]:
    """Return finished records by key prefix and method; raise BenchError without any, UnknownNameError on no match."""
    read = run_dir.read_records()
    for line in read.damaged:
        echo(f"warning: {line}", err=True)
    done = [record for record in read.found if record.status is Status.DONE]
    if not done:
        raise BenchError(
            f"no finished student in {run_dir.path}. Make one with `python -m bench run --out {run_dir.path}`."
        )
    for key in keys or ():
        if not any(record.key.startswith(key) for record in done):
            raise UnknownNameError("record", key, [record.key for record in done])
    chosen = methods_named(word for word in map(str.strip, methods.split(",")) if word)
    # Importing a file registers the name of its method.
    wanted = {METHODS.get(n).name if n.endswith(".py") else n: itself for n, itself in chosen.items()}
    for name, itself in wanted.items():
        if itself and not any(record.method == name for record in done):
            raise UnknownNameError("method among the students", name, {record.method for record in done})
    if wanted and not any(record.method in wanted for record in done):
        others = ", ".join(sorted({record.method for record in done}))
        raise BenchError(f"none of {methods} has a student in {run_dir.path}. These methods do: {others}.")
    asked = [
        record
        for record in done
        if (not keys or any(record.key.startswith(key) for key in keys)) and (not wanted or record.method in wanted)
    ]
    strange = {record.method: record.cell.method_file or "FILE.py" for record in asked if record.method not in METHODS}
    kept = [record for record in asked if record.method not in strange]
    for name, file in strange.items():
        if not kept or wanted.get(name):
            raise BenchError(f"the method {name} is not registered. Give its file: --methods PATH/{file}.")
        echo(f"skipped: the students of {name}, because its file is not given: --methods PATH/{file}", err=True)
    former = [] if keys else [record.key for record in kept if other_program(record.cell, METHODS.get(record.method))]
    if 0 < len(former) < len(kept):
        kept = [record for record in kept if record.key not in former]
        more = f" and {len(former) - 1} more" * (len(former) > 1)
        echo(f"skipped: {former[0]}{more}, whose methods have changed since they were made", err=True)
    return kept
