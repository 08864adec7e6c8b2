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
from bench.core.progress import echo, open_progress, print_json, starting
from bench.core.types import AuditKind
from bench.evaluation.audit.options import AuditOptions

if TYPE_CHECKING:
    from bench.core.progress import Progress
    from bench.experiments.data_source import DataSource
    from bench.results.attack_record import AttackRecord, AuditRecord
    from bench.results.record import Record
    from bench.results.run_dir import RunDir

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
    plan: Annotated[
        bool, what("--plan", help="Only list the rows without an audit, the largest gain per minute first.")
    ] = False,
    share: Annotated[
        bool, what("--share", help="Only give rows the audit of another row that is the same experiment.")
    ] = False,
    reuse: ReuseOption = Reuse.DONE,
    launch: LaunchOptions,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Audit the methods behind the students of a run directory: bound each one's epsilon from below.

    Runs the method many times on two worst-case adjacent private sets with the student's privacy settings, and tells
    the sets apart by the releases and by the exact privacy losses of the mechanisms' answers. With canaries (--kind
    one-run, many-run), retrains the student's pipeline with a random subset of the canaries in its data. Exits with
    status 1 if a bound exceeds the proven epsilon. Several commands with --kind pair may share a directory;
    --launcher runs each audit as a process or a Slurm job. Rows for which method, privacy and small data sets are the
    same, whatever their own data sets, need one audit between them: --share.
    """
    with starting(quiet=quiet or json_):
        from bench.cli.audit_plan import print_plan, share_audits
        from bench.cli.jobs import Job, Launched, bad, check_time, choice_words, kept, launch_jobs, leave, state_of
        from bench.core.options import words_of
        from bench.evaluation.audit.audit import audit_key, audit_student
        from bench.launchers.manifest import Task
        from bench.launchers.settings import launch_settings
        from bench.launchers.students import chosen_in, each_student
        from bench.launchers.worker import ClaimProgress, claiming
        from bench.storage.locks import PATIENCE_SECONDS

    keys, methods = _without_files(keys, methods)
    if plan and share:
        raise BenchError("--plan lists what --share would write: give one of them.")
    if plan:
        print_plan(out, keys, methods, quiet=quiet, json=json_)
        return
    if share:
        _print_results(share_audits(out, keys, methods, quiet=quiet or json_), out, json_)
        return
    results: list[AuditRecord] = []
    ended = Launched()

    def do(record: Record, run_dir: RunDir, source: DataSource, progress: Progress, resources: Resources) -> None:
        key = audit_key(record, options)  # raises on invalid options, before a record exists
        with claiming(run_dir, key, {"title": f"audit of {record.key}"}, patience=PATIENCE_SECONDS + 5) as held:
            if held is None:
                ended.elsewhere.append(key)
                return
            result = run_dir.read_audit(key)
            if result is None or not kept(result, reuse):
                folder = data if record.cell.own_folder else None
                seen = ClaimProgress(progress, held)
                result = audit_student(record, options, run_dir, source, seen, dataset=folder, resources=resources)
                progress.say(f"{record.key}: {result.verdict}")
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
    """Return the record keys, and `methods` extended by the files given among the keys."""
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
        str | None, what("--auxiliary", help="Data set known to the attacker; default: half the public part.")
    ] = None,
    shadow_runs: Annotated[
        int, what("--shadow-runs", help="Shadow runs of membership attacks; 0: 2 in quick, 64 in paper.", min=0)
    ] = 0,
    tune: Annotated[
        int,
        what("--tune", help="Settings that inversion attacks try on shadow students of other people; 0: none.", min=0),
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
        from bench.cli.attack_output import print_attacks
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
        print_attacks(results, out)
        _print_failures(results, out)
    leave(ended, any(map(bad, results)))


def _print_failures(results: Sequence[AttackRecord | AuditRecord], out: Path) -> None:
    for result in results:
        if result.failure is not None:
            echo(f"failed: {result.key}: {result.failure.words(out)}")
