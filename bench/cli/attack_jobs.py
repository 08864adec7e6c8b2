"""Attacks on many students, in this process or as jobs of a launcher, and the pictures that compare students."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from bench.cli.audit_output import print_failures
from bench.cli.jobs import Job, Launched, bad, choice_words, kept, launch_jobs, leave, state_of
from bench.core.config import Reuse, check_overrides, parse_overrides
from bench.core.options import LaunchOptions, Resources, Students
from bench.core.printable import counted
from bench.core.progress import Progress, echo, open_progress, print_json, print_table
from bench.evaluation.attack.attack import applies, attack_names, attack_student, planned_key
from bench.evaluation.attack.inversion import comparable, compare, comparison_file
from bench.evaluation.attack.workplace import AttackOptions, Workplace
from bench.experiments.data_source import DataSource
from bench.interface.registry import ATTACKS
from bench.launchers.manifest import Task
from bench.launchers.settings import Cluster, launch_settings
from bench.launchers.students import chosen_in, each_student
from bench.launchers.worker import ClaimProgress, claimed_result, claiming
from bench.reports.attacks import findings, tables
from bench.results.attack_record import AttackRecord
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.storage.locks import Held


@dataclass(frozen=True, slots=True)
class Attacks:
    """What a command attacks, and how. "all" leaves out attacks that need images if none are released."""

    students: Students
    attacks: str
    options: AttackOptions
    reuse: Reuse
    resources: Resources
    quiet: bool

    @property
    def names(self) -> list[str]:
        """The names of the attacks."""
        return attack_names(self.attacks)

    def on(self, record: Record) -> list[str]:
        """Return the names of the attacks on the student of `record`."""
        return [name for name in self.names if self.attacks != "all" or applies(record, name)]

    def workplace(self, run_dir: RunDir, source: DataSource, progress: Progress, resources: Resources) -> Workplace:
        """Return the state that all attacks share."""
        options = self.options
        if options.auxiliary is not None:
            theirs = source.describe(options.auxiliary)
            revision = f"{theirs.facts.dataset}, {theirs.revision}"
            options = dataclasses.replace(options, auxiliary_revision=revision)
        return Workplace(run_dir, source, progress, options, resources, self.students.data)

    def words(self, names: Sequence[str], reuse: Reuse) -> list[str]:
        """Return the command-line options with which another command runs the attacks `names` as this one does."""
        kinds = [ATTACKS.get(name) for name in names]
        mine = [text for text in self.options.overrides if any(parse_overrides(kind, [text]) for kind in kinds)]
        return [
            "--attacks", ",".join(names), "--preset", self.options.preset.value,
            *(word for text in mine for word in ("--set", text)),
            *(["--auxiliary", self.options.auxiliary] if self.options.auxiliary is not None else []),
            "--shadow-runs", str(self.options.shadow_runs), "--seed", str(self.options.seed),
            *(["--tune", str(self.options.tune)] if self.options.tune else []),
            *choice_words(self.students, reuse),
        ]  # fmt: skip


def make_attacks(asked: Attacks, launch: LaunchOptions, *, json: bool) -> None:
    """Attack the students and print the results; raise :class:`typer.Exit` after a failure."""
    check_overrides([ATTACKS.get(name) for name in asked.names], asked.options.overrides)
    settings = launch_settings(launch)
    results, ended = _inline(asked) if settings.launcher == "inline" else _by_jobs(asked, settings)
    if json:
        print_json({"attacks": [result.model_dump(mode="json") for result in results]})
    else:
        out = asked.students.out
        for title, columns, rows in tables(RunDir(out).read_records().found, results):
            print_table(title, columns, rows)
        for line in findings(results):
            echo(line)
        if pictures := sum(len(result.pictures) for result in results):
            echo(f"{counted(pictures, 'picture')} in {out / 'attacks'}")
        print_failures(results, out)
    leave(ended, any(map(bad, results)))


def _inline(asked: Attacks) -> tuple[list[AttackRecord], Launched]:
    """Attack the students one after the other, each under its claim file, then draw the comparisons."""
    results, ended, places = list[AttackRecord](), Launched(), list[Workplace]()

    def attacked(record: Record, name: str, place: Workplace) -> None:
        def make(held: Held) -> AttackRecord:
            seen = ClaimProgress(place.progress, held)
            with seen.stage(name, 1):
                made = attack_student(record, name, dataclasses.replace(place, progress=seen))
            if made.failure is not None:
                seen.say(f"{made.key} FAILED: {made.failure.reason}")
            return made

        key, keep = planned_key(record, name, place), partial(kept, reuse=asked.reuse)
        found = claimed_result(place.run_dir, key, f"{name} on {record.key}", place.run_dir.read_attack, keep, make)
        if found is None:
            ended.elsewhere.append(key)
        else:
            results.append(found)

    def do(record: Record, run_dir: RunDir, source: DataSource, progress: Progress, resources: Resources) -> None:
        if not places:
            places.append(asked.workplace(run_dir, source, progress, resources))
            places[0].stack = stack
        for name in progress.each("attacks", asked.on(record)):
            attacked(record, name, places[0])

    def end(students: list[Record]) -> None:
        made = {(found.student, found.attack) for found in results if found.failure is None}
        for name in asked.names:
            known = [record for record in students if (record.key, name) in made]
            for dataset, some in comparable(known, name).items():
                about = {"title": f"{name}: picture of the students of {dataset}"}
                with claiming(places[0].run_dir, f"compare-{dataset}-{name}", about) as held:
                    if held is not None:
                        compare(dataset, name, some, places[0])

    stack = contextlib.ExitStack()  # Close it while the lock is held, because its processes write to the directory.
    ended.stopped = each_student(asked.students, do, asked.resources, asked.quiet, end, stack)
    return results, ended


def _by_jobs(asked: Attacks, settings: Cluster) -> tuple[list[AttackRecord], Launched]:
    """Run one command per student and goal, because attacks with the same goal share their expensive parts."""
    run_dir, students = chosen_in(asked.students)
    planned: dict[str, tuple[Record, str]] = {}
    with open_progress(quiet=asked.quiet) as progress, progress.stage("planning", len(students)) as stage:
        place = asked.workplace(run_dir, DataSource(progress), progress, asked.resources)
        for record in students:
            planned |= {planned_key(record, name, place): (record, name) for name in asked.on(record)}
            stage.advance()
    todo: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for key, (record, name) in planned.items():
        if not kept(run_dir.read_attack(key), asked.reuse):
            todo[record.key, ATTACKS.get(name).goal][key] = name
    jobs = {
        f"{student}--{goal}": Job(
            ["attack", student, *asked.words(list(names.values()), asked.reuse)],
            [Task.of(run_dir, key, f"{name} on {student}", f"attacks/{key}.json") for key, name in names.items()],
        )
        for (student, goal), names in todo.items()
    }
    with open_progress(quiet=asked.quiet) as progress:
        ended = launch_jobs(jobs, state_of(run_dir.read_attack), run_dir, settings, asked.resources, progress)
    made = {key: found for key in planned if (found := run_dir.read_attack(key)) is not None}
    if ended.stopped is None:
        new = {key for names in todo.values() for key in names}
        good = [key for key, found in made.items() if found.failure is None and key not in ended.elsewhere]
        pictures = _comparisons(asked, run_dir, {key: planned[key] for key in good}, new)
        with open_progress(quiet=asked.quiet) as progress:
            drawn = launch_jobs(pictures, state_of(run_dir.read_attack), run_dir, settings, asked.resources, progress)
        ended.stopped = drawn.stopped
        ended.lost += drawn.lost
    return list(made.values()), ended


def _comparisons(asked: Attacks, run_dir: RunDir, made: dict[str, tuple[Record, str]], new: set[str]) -> dict[str, Job]:
    """Return a job for each comparison picture that is missing or includes a `new` attack."""
    jobs = {}
    for name in asked.names:
        mine = {record.key: (key, record) for key, (record, kind) in made.items() if kind == name}
        for dataset, students in comparable([record for _, record in mine.values()], name).items():
            file = comparison_file(dataset, name)
            if (run_dir.path / file).exists() and not any(mine[record.key][0] in new for record in students):
                continue
            words = ["attack", *(record.key for record in students), *asked.words([name], Reuse.ALL)]
            key = f"compare-{dataset}-{name}"
            jobs[key] = Job(words, [Task.of(run_dir, key, f"{name}: picture of the students of {dataset}", file)])
    return jobs
