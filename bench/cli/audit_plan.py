"""``bench audit --plan`` and ``--share``: rows without an audit, and rows that can share another row's audit."""

from __future__ import annotations

from bench.cli.audit_output import print_results
from bench.core.options import Students
from bench.core.printable import counted
from bench.core.progress import Progress, echo, open_progress, print_json, print_table
from bench.launchers.students import choose_students
from bench.publishing.shared_audits import Planned, planned_audits
from bench.results.full_size import lacks_full_size
from bench.results.run_dir import RunDir
from bench.results.text import epsilon_text

_COLUMNS = ("student", "proven", "minutes", "expected", "audit")


def unaudited(asked: Students, progress: Progress) -> tuple[list[Planned], int]:
    """Return the chosen rows without an audit, cheapest per row first, and how many audits lack a pair at full size."""
    run_dir = RunDir(asked.out)
    # Imports the method files among them.
    keys = {record.key for record in choose_students(run_dir, asked.keys, asked.methods)}
    students = choose_students(run_dir, None)
    audits, damaged = run_dir.read_audits()
    for line in damaged:
        echo(f"warning: {line}", err=True)
    with progress.stage("rows without an audit", 1):
        found = [planned for planned in planned_audits(students, audits) if planned.record.key in keys]
    lacking = sum(audit.student in keys and lacks_full_size(audit) for audit in audits)
    return sorted(found, key=lambda planned: (-planned.gain, planned.record.key)), lacking


def print_plan(asked: Students, *, quiet: bool, json: bool) -> None:
    """Print :func:`unaudited` with the expected time of the audits and the commands that run them."""
    out = asked.out
    with open_progress(quiet=quiet or json) as progress:
        found, lacking = unaudited(asked, progress)
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
    if lacking:
        need = counted(lacking, "audit has", "audits have")
        echo(f"{need} no pair at the row's own size: python -m bench audit KEY --full-size -o {out}")


def print_shared(asked: Students, *, quiet: bool, json: bool) -> None:
    """Write the audits that rows can share, and print them."""
    with open_progress(quiet=quiet or json) as progress:
        made = [planned.audit for planned in unaudited(asked, progress)[0] if planned.audit is not None]
        for audit in made:
            RunDir(asked.out).write_row(audit)
    print_results(made, asked.out, json)


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
