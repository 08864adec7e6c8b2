"""Audits of many students, in this process or as jobs of a launcher; and which rows lack an audit or can share one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from bench.cli.audit_output import print_results
from bench.cli.jobs import Job, Launched, bad, check_time, choice_words, kept, launch_jobs, leave, state_of
from bench.core.config import Reuse
from bench.core.errors import BenchError
from bench.core.options import LaunchOptions, Resources, Students, words_of
from bench.core.printable import counted
from bench.core.progress import Progress, echo, open_progress, print_json, print_table
from bench.core.types import AuditKind
from bench.evaluation.audit.audit import audit_key, audit_student
from bench.evaluation.audit.full_size import add_full_size
from bench.evaluation.audit.options import AuditOptions
from bench.experiments.data_source import DataSource
from bench.launchers.manifest import Task
from bench.launchers.settings import Cluster, launch_settings
from bench.launchers.students import choose_students, chosen_in, each_student
from bench.launchers.worker import ClaimProgress, claimed_result
from bench.publishing.shared_audits import Planned, planned_audits
from bench.results.attack_record import AuditRecord
from bench.results.full_size import has_full_size, lacks_full_size
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.results.text import epsilon_text
from bench.storage.locks import Held


@dataclass(frozen=True, slots=True)
class Audits:
    """What a command audits, and how."""

    students: Students
    options: AuditOptions
    reuse: Reuse
    quiet: bool


def make_audits(asked: Audits, launch: LaunchOptions, *, json: bool) -> None:
    """Audit the students and print the results; raise :class:`typer.Exit` after a failure or a violation."""
    settings = launch_settings(launch)
    inline = settings.launcher == "inline"
    results, ended = _inline(asked, launch.resources) if inline else _by_jobs(asked, settings, launch.resources)
    print_results(results, asked.students.out, json)
    leave(ended, any(map(bad, results)))


def _inline(asked: Audits, resources: Resources) -> tuple[list[AuditRecord], Launched]:
    results, ended = list[AuditRecord](), Launched()

    def do(record: Record, run_dir: RunDir, source: DataSource, progress: Progress, resources: Resources) -> None:
        def make(held: Held) -> AuditRecord:
            seen, data = ClaimProgress(progress, held), asked.students.data
            made = audit_student(record, asked.options, run_dir, source, seen, dataset=data, resources=resources)
            progress.say(f"{record.key}: {made.verdict}")
            return made

        # The key raises on invalid options before any run.
        key, keep = audit_key(record, asked.options), partial(kept, reuse=asked.reuse)
        result = claimed_result(run_dir, key, f"audit of {record.key}", run_dir.read_audit, keep, make)
        if result is None:
            ended.elsewhere.append(key)
        else:
            results.append(result)

    ended.stopped = each_student(asked.students, do, resources, asked.quiet)
    return results, ended


def add_pairs(asked: Audits, launch: LaunchOptions, *, json: bool) -> None:
    """Run the pairs at full size that finished audits of the students lack; print and exit as :func:`make_audits`."""
    if launch_settings(launch).launcher != "inline":
        raise BenchError("--full-size runs here, one pair after the other: leave --launcher out.")
    audits, damaged = RunDir(asked.students.out).read_audits()
    for line in damaged:
        echo(f"warning: {line}", err=True)
    results, ended, failed = list[AuditRecord](), Launched(), list[str]()

    def do(record: Record, run_dir: RunDir, source: DataSource, progress: Progress, resources: Resources) -> None:
        lacking = [a for a in audits if a.student == record.key and lacks_full_size(a)]
        if not lacking:
            progress.say(f"{record.key}: nothing to do: no finished pair audit lacks its full-size pair")
        for audit in lacking:

            def make(held: Held, audit: AuditRecord = audit) -> AuditRecord:
                seen, minutes, data = ClaimProgress(progress, held), asked.options.minutes, asked.students.data
                return add_full_size(record, audit, minutes, run_dir, source, seen, dataset=data, resources=resources)

            what = f"pair at full size of {record.key}"
            try:
                result = claimed_result(run_dir, audit.key, what, run_dir.read_audit, has_full_size, make)
            except BenchError as error:
                failed.append(f"failed: {error}")
                continue
            if result is None:
                ended.elsewhere.append(audit.key)
            else:
                results.append(result)

    ended.stopped = each_student(asked.students, do, launch.resources, asked.quiet)
    print_results(results, asked.students.out, json)
    for line in failed:
        echo(line, err=True)
    leave(ended, bool(failed) or any(map(bad, results)))


def _by_jobs(asked: Audits, settings: Cluster, resources: Resources) -> tuple[list[AuditRecord], Launched]:
    if asked.options.kind is AuditKind.PAIR:
        check_time(settings, asked.options.minutes)
    run_dir, students = chosen_in(asked.students)
    planned = {audit_key(record, asked.options): record.key for record in students}
    words = [*words_of(asked.options), *choice_words(asked.students, asked.reuse)]
    jobs = {
        key: Job(["audit", student, *words], [Task.of(run_dir, key, f"audit of {student}", f"audits/{key}.json")])
        for key, student in planned.items()
        if not kept(run_dir.read_audit(key), asked.reuse)
    }
    with open_progress(quiet=asked.quiet) as shown:
        ended = launch_jobs(jobs, state_of(run_dir.read_audit), run_dir, settings, resources, shown)
    return [found for key in planned if (found := run_dir.read_audit(key)) is not None], ended


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
    columns = ("student", "proven", "minutes", "expected", "audit")
    where = f"-o {out}" + f" --methods {asked.methods}" * bool(asked.methods)
    print_table(f"rows of {out} without an audit", columns, [_cells(planned) for planned in found])
    alone = [planned for planned in found if planned.audit is None]
    if len(alone) < len(found):
        echo(f"{counted(len(found) - len(alone), 'row')} can share an audit: python -m bench audit --share {where}")
    if alone:
        hours = sum(planned.minutes for planned in alone) / 60
        need = counted(len(alone), "row needs its", "rows need their")
        echo(f"{need} own, about {hours:.1f} hours: python -m bench audit KEY {where}")
    if lacking:
        need = counted(lacking, "audit has", "audits have")
        echo(f"{need} no pair at the row's own size: python -m bench audit KEY --full-size {where}")


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
