"""``bench attack`` and ``bench audit`` on the students of a run directory. Parsing only."""

from __future__ import annotations

from typing import Annotated

from bench.cli.options import CREW, Json, Quiet, ReuseOption, with_options
from bench.core.config import Preset, Reuse
from bench.core.errors import BenchError
from bench.core.options import PRESET, LaunchOptions, Students, what
from bench.core.plain_files import check_run_dir
from bench.core.progress import starting
from bench.evaluation.audit.options import AuditOptions

Plan = Annotated[bool, what("--plan", help="Only list the rows without an audit, cheapest per row first.")]
Share = Annotated[
    bool, what("--share", help="Only copy audits to other rows for which the audit is the same experiment.")
]
FullSize = Annotated[
    bool, what("--full-size", help="Only add the full-size pair to finished audits that lack it, each in --minutes.")
]


@with_options(shards=..., retries=..., gpus=..., pack=..., detach=..., workers=CREW)
def audit(
    *, students: Students, options: AuditOptions, plan: Plan = False, share: Share = False, full_size: FullSize = False,
    reuse: ReuseOption = Reuse.DONE, launch: LaunchOptions, quiet: Quiet = False, json_: Json = False,
) -> None:  # fmt: skip
    """Audit the methods behind the students of a run directory: bound each one's epsilon from below.

    Runs the method many times on two worst-case adjacent private sets with the student's privacy settings, and
    distinguishes them by the releases and by the exact privacy losses of the mechanisms' answers. With canaries (--kind
    one-run, many-run), retrains the student's pipeline with a random subset of the canaries in its data. Exits with
    status 1 if a bound exceeds the proven epsilon. Several commands with --kind pair may share a directory; --launcher
    runs each audit as a process or a Slurm job. Rows with the same method, privacy settings and small data sets can
    share one audit (--share), whatever their own data sets.
    """
    if plan + share + full_size > 1:
        raise BenchError("--plan, --share and --full-size each replace the audit: give only one of them.")
    check_run_dir(students.out, students.keys)
    with starting(quiet=quiet or json_):
        from bench.cli.audit_jobs import Audits, add_pairs, make_audits, print_plan, print_shared

    students = students.resolved()
    if plan:
        print_plan(students, quiet=quiet, json=json_)
    elif share:
        print_shared(students, quiet=quiet, json=json_)
    else:
        asked = Audits(students, options, reuse, quiet or json_)
        (add_pairs if full_size else make_audits)(asked, launch, json=json_)


AttackNames = Annotated[
    str, what("--attacks", "-a", help="Attacks, comma-separated; or quick, or all. `bench ls attacks` lists them.")
]
AttackPreset = Annotated[Preset, PRESET]
Settings = Annotated[
    list[str] | None, what("--set", metavar="FIELD=VALUE", help="A setting, or ATTACK.FIELD=VALUE; repeatable.")
]
Auxiliary = Annotated[
    str | None, what("--auxiliary", help="Data set known to the attacker; default: half of the public images.")
]
ShadowRuns = Annotated[
    int, what("--shadow-runs", help="Shadow runs of membership attacks; 0: 2 in quick, 64 in paper.", min=0)
]
Tune = Annotated[
    int,
    what("--tune", help="Settings that inversion attacks try on shadow students of other people; 0: no tuning.", min=0),
]
Seed = Annotated[int, what("--seed", help="Seed of the attacks.")]


@with_options(shards=..., retries=..., gpus=..., pack=..., detach=..., workers=CREW)
def attack(
    *, students: Students, attacks: AttackNames = "quick", preset: AttackPreset = Preset.QUICK, set_: Settings = None,
    auxiliary: Auxiliary = None, shadow_runs: ShadowRuns = 0, tune: Tune = 0, seed: Seed = 0,
    reuse: ReuseOption = Reuse.DONE, launch: LaunchOptions, quiet: Quiet = False, json_: Json = False,
) -> None:  # fmt: skip
    """Attack the students of a run directory and their controls: inversion, membership, release and robustness.

    The controls are the same net without privacy, one trained on other records, and an untrained one. A cell is
    inconclusive (`no power`) if its attack does not break the net without privacy. Several of these commands may share
    a directory; --launcher runs the attacks of one goal on one student as a process or a Slurm job.
    """
    check_run_dir(students.out, students.keys)
    with starting(quiet=quiet or json_):
        from bench.cli.attack_jobs import Attacks, make_attacks
        from bench.evaluation.attack.workplace import AttackOptions

    options = AttackOptions(preset, tuple(set_ or ()), seed, auxiliary, shadow_runs=shadow_runs, tune=tune)
    asked = Attacks(students.resolved(), attacks, options, reuse, launch.resources, quiet or json_)
    make_attacks(asked, launch, json=json_)
