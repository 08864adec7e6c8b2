"""``bench audit --plan`` and ``--share``: rows without an audit, and rows that can share another row's audit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.cli.audit_output import print_results
from bench.core.printable import counted
from bench.core.progress import Progress, echo, open_progress, print_json, print_table
from bench.launchers.students import choose_students
from bench.publishing.shared_audits import Planned, planned_audits
from bench.results.full_size import lacks_full_size
from bench.results.run_dir import RunDir
from bench.results.text import epsilon_text

_COLUMNS = ("student", "proven", "minutes", "expected", "audit")


def unaudited(out: Path, keys: Sequence[str] | None, methods: str, progress: Progress) -> list[Planned]:
    """Return the chosen rows of `out` without an audit, cheapest per row first."""
    run_dir = RunDir(out)
    asked = {record.key for record in choose_students(run_dir, keys, methods)}  # imports the method files among them
    students = choose_students(run_dir, None)
    audits, damaged = run_dir.read_audits()
    for line in damaged:
        echo(f"warning: {line}", err=True)
    with progress.stage("rows without an audit", 1):
        found = [planned for planned in planned_audits(students, audits) if planned.record.key in asked]
    return sorted(found, key=lambda planned: (-planned.gain, planned.record.key))


def print_plan(out: Path, keys: Sequence[str] | None, methods: str, *, quiet: bool, json: bool) -> None:
    """Print :func:`unaudited` with the expected time of the audits and the commands that run them."""
    with open_progress(quiet=quiet or json) as progress:
        found = unaudited(out, keys, methods, progress)
    if json:
        print_json({"plan": [_values(planned) for planned in found]})
        return
    print_table(f"rows of {out} without an audit", _COLUMNS, [_cells(planned) for planned in found])
    alone = [planned for planned in found if planned.audit is None]
    if len(alone) < len(found):
        echo(f"{counted(len(found) - len(alone), 'row')} can share an audit: python -m bench audit --share -o {out}")
    if alone:
        hours = sum(planned.minutes for planned in alone) / 60
        need = counted(len(alone), "row needs its", "rows need their")
        echo(f"{need} own, about {hours:.1f} hours: python -m bench audit KEY -o {out}")
    if lacking := _without_pair(out, keys, methods):
        need = counted(lacking, "audit has", "audits have")
        echo(f"{need} no pair at the row's own size: python -m bench audit KEY --full-size -o {out}")


def _without_pair(out: Path, keys: Sequence[str] | None, methods: str) -> int:
    run_dir = RunDir(out)
    asked = {record.key for record in choose_students(run_dir, keys, methods)}
    return sum(audit.student in asked and lacks_full_size(audit) for audit in run_dir.read_audits()[0])


def print_shared(out: Path, keys: Sequence[str] | None, methods: str, *, quiet: bool, json: bool) -> None:
    """Write the audits that rows of `out` can share, and print them."""
    made = []
    with open_progress(quiet=quiet or json) as progress:
        for planned in unaudited(out, keys, methods, progress):
            if planned.audit is not None:
                made.append(planned.audit)
                RunDir(out).write_row(made[-1])
    print_results(made, out, json)


def _values(planned: Planned) -> dict[str, object]:
    return {
        "student": planned.record.key,
        "shared": planned.audit.shared if planned.audit else None,
        "minutes": 0.0 if planned.audit else planned.minutes,
        "reached": planned.reached,
    }


def _cells(planned: Planned) -> tuple[str, ...]:
    proven = planned.record.privacy.proven.epsilon if planned.record.privacy else None
    reached = "–" if planned.reached is None else f"{100 * planned.reached:.0f}%"
    minutes, audit = f"{planned.minutes:.1f}", "its own"
    if planned.audit is not None:
        minutes, audit = "0", f"shares that of {planned.audit.shared.rsplit('--', 1)[0]}"
    return planned.record.key, epsilon_text(proven, "up"), minutes, reached, audit
