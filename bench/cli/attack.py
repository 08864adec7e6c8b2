"""``bench attack`` and ``bench audit`` on the students of a run directory. Parsing and printing only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.options import CREW, Json, Quiet, ReuseOption, with_options
from bench.core.config import Preset, Reuse, check_overrides
from bench.core.errors import BenchError
from bench.core.options import PRESET, LaunchOptions, Resources, what
from bench.core.progress import echo, open_progress, print_json, print_table, starting
from bench.core.types import AuditKind
from bench.evaluation.audit.options import AuditOptions

if TYPE_CHECKING:
    from bench.core.progress import Progress
    from bench.experiments.data_source import DataSource
    from bench.results.attack_record import AttackRecord, AuditRecord
    from bench.results.record import Record
    from bench.results.run_dir import RunDir
    from bench.storage.locks import Held

students = partial(typer.Option, rich_help_panel="Students")

Keys = Annotated[
    list[str] | None,
    typer.Argument(help="Keys of records or their prefixes, or method files; default: every student of the directory."),
]
Out = Annotated[Path, students("--out", "-o", help="Run directory of `bench run`.")]
Methods = Annotated[
    str, students("--methods", "-m", help="Only students of these methods, comma-separated; method files work too.")
]
Data = Annotated[str | None, students("--data", help="folder:PATH, if the students trained on your own data.")]


@with_options(shards=..., retries=..., gpus=..., pack=..., detach=..., workers=CREW)
def audit(
    keys: Keys = None,
    *,
    out: Out = Path("runs"),
    methods: Methods = "",
    options: AuditOptions,
    data: Data = None,
    plan: Annotated[bool, what("--plan", help="Only list the rows without an audit, cheapest per row first.")] = False,
    share: Annotated[
        bool, what("--share", help="Only copy audits to other rows for which the audit is the same experiment.")
    ] = False,
    reuse: ReuseOption = Reuse.DONE,
    launch: LaunchOptions,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Audit the methods behind the students of a run directory: bound each one's epsilon from below.

    Runs the method many times on two worst-case adjacent private sets with the student's privacy settings, and
    distinguishes them by the releases and by the exact privacy losses of the mechanisms' answers. With canaries (--kind
    one-run, many-run), retrains the student's pipeline with a random subset of the canaries in its data. Exits with
    status 1 if a bound exceeds the proven epsilon. Several commands with --kind pair may share a directory; --launcher
    runs each audit as a process or a Slurm job. Rows with the same method, privacy settings and small data sets can
    share one audit (--share), whatever their own data sets.
    """
    with starting(quiet=quiet or json_):
        from bench.cli.audit_plan import print_plan, share_audits
        from bench.cli.jobs import Job, Launched, bad, check_time, choice_words, kept, launch_jobs, leave, state_of
        from bench.core.options import words_of
        from bench.evaluation.audit.audit import audit_key, audit_student
        from bench.launchers.manifest import Task
        from bench.launchers.settings import launch_settings
        from bench.launchers.students import chosen_in, each_student
        from bench.launchers.worker import ClaimProgress, claimed_result

    keys, methods = _without_files(keys, methods)
    if plan and share:
        raise BenchError("--plan lists what --share would write: give only one of them.")
    if plan:
        print_plan(out, keys, methods, quiet=quiet, json=json_)
        return
    if share:
        _print_results(share_audits(out, keys, methods, quiet=quiet or json_), out, json_)
        return
    results: list[AuditRecord] = []
    ended = Launched()

    def do(record: Record, run_dir: RunDir, source: DataSource, progress: Progress, resources: Resources) -> None:
        def make(held: Held) -> AuditRecord:
            folder = data if record.cell.own_folder else None
            seen = ClaimProgress(progress, held)
            made = audit_student(record, options, run_dir, source, seen, dataset=folder, resources=resources)
            progress.say(f"{record.key}: {made.verdict}")
            return made

        key, keep = audit_key(record, options), partial(kept, reuse=reuse)  # raises on invalid options before any run
        result = claimed_result(run_dir, key, f"audit of {record.key}", run_dir.read_audit, keep, make)
        if result is None:
            ended.elsewhere.append(key)
        else:
            results.append(result)

    settings, silent = launch_settings(launch), quiet or json_
    if settings.launcher == "inline":
        ended.stopped = each_student(keys, out, methods, data, do, launch.resources, silent)
    else:
        if options.kind is AuditKind.PAIR:
            check_time(settings, options.minutes)
        run_dir, students = chosen_in(out, keys, methods, data)
        planned = {audit_key(record, options): record.key for record in students}
        words = [*words_of(options), *choice_words(methods, reuse, data)]
        jobs = {
            key: Job(["audit", student, *words], [Task.of(run_dir, key, f"audit of {student}", f"audits/{key}.json")])
            for key, student in planned.items()
            if not kept(run_dir.read_audit(key), reuse)
        }
        with open_progress(quiet=silent) as shown:
            ended = launch_jobs(jobs, state_of(run_dir.read_audit), run_dir, settings, launch.resources, shown)
        results = [found for key in planned if (found := run_dir.read_audit(key)) is not None]
    _print_results(results, out, json_)
    leave(ended, any(map(bad, results)))


def _print_results(results: Sequence[AuditRecord], out: Path, json: bool) -> None:
    from bench.cli.audit_output import print_audits

    if json:
        print_json({"audits": [result.model_dump(mode="json") for result in results]})
    else:
        print_audits(results)
        _print_failures(results, out)


def _without_files(keys: Sequence[str] | None, methods: str) -> tuple[list[str], str]:
    """Separate method files from record keys; return the keys, and `methods` with the files appended."""
    files = [key for key in keys or () if key.endswith(".py")]
    return [key for key in keys or () if key not in files], ",".join([methods, *files])


@with_options(shards=..., retries=..., gpus=..., pack=..., detach=..., workers=CREW)
def attack(
    keys: Keys = None,
    *,
    out: Out = Path("runs"),
    attacks: Annotated[
        str,
        what("--attacks", "-a", help="Attacks, comma-separated; or quick, or all. `bench ls attacks` lists them."),
    ] = "quick",
    methods: Methods = "",
    preset: Annotated[Preset, PRESET] = Preset.QUICK,
    set_: Annotated[list[str] | None, what("--set", help="FIELD=VALUE or ATTACK.FIELD=VALUE; repeatable.")] = None,
    auxiliary: Annotated[
        str | None, what("--auxiliary", help="Data set known to the attacker; default: half of the public images.")
    ] = None,
    shadow_runs: Annotated[
        int, what("--shadow-runs", help="Shadow runs of membership attacks; 0: 2 in quick, 64 in paper.", min=0)
    ] = 0,
    tune: Annotated[
        int,
        what(
            "--tune",
            help="Settings that inversion attacks try on shadow students of other people; 0: no tuning.",
            min=0,
        ),
    ] = 0,
    seed: Annotated[int, what("--seed", help="Seed of the attacks.")] = 0,
    data: Data = None,
    reuse: ReuseOption = Reuse.DONE,
    launch: LaunchOptions,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Attack the students of a run directory and their controls: inversion, membership, release; and robustness.

    The controls are the same net without privacy, one trained on other records, and an untrained one. A cell is
    inconclusive (`no power`) if its attack does not break the net without privacy. Several of these commands may share
    a directory; --launcher runs the attacks of one goal on one student as a process or a Slurm job.
    """
    with starting(quiet=quiet or json_):
        from bench.cli.attack_jobs import Attacks, attack_by_jobs, attack_inline
        from bench.cli.jobs import bad, leave
        from bench.evaluation.attack.attack import attack_names
        from bench.evaluation.attack.workplace import AttackOptions
        from bench.interface.registry import ATTACKS
        from bench.launchers.settings import launch_settings

    names = attack_names(attacks)
    options = AttackOptions(preset, tuple(set_ or ()), seed, auxiliary, shadow_runs=shadow_runs, tune=tune)
    check_overrides([ATTACKS.get(name) for name in names], options.overrides)
    keys, methods = _without_files(keys, methods)
    settings = launch_settings(launch)
    asked = Attacks(
        keys=keys, out=out, methods=methods, data=data, names=names, options=options, fitting=attacks == "all",
        reuse=reuse, resources=launch.resources, quiet=quiet or json_,
    )  # fmt: skip
    inline = settings.launcher == "inline"
    results, ended = attack_inline(asked) if inline else attack_by_jobs(asked, settings)
    if json_:
        print_json({"attacks": [result.model_dump(mode="json") for result in results]})
    else:
        _print_attacks(results, out)
        _print_failures(results, out)
    leave(ended, any(map(bad, results)))


def _print_attacks(results: Sequence[AttackRecord], out: Path) -> None:
    from bench.reports.attacks import findings, tables
    from bench.results.run_dir import RunDir

    for title, columns, rows in tables(RunDir(out).read_records().found, results):
        print_table(title, columns, rows)
    for line in findings(results):
        echo(line)
    if pictures := sum(len(result.pictures) for result in results):
        echo(f"{pictures} pictures in {out / 'attacks'}")


def _print_failures(results: Sequence[AttackRecord | AuditRecord], out: Path) -> None:
    for result in results:
        if result.failure is not None:
            echo(f"failed: {result.key}: {result.failure.words(out)}")
