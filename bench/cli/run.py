"""``bench run``, ``status`` and ``cancel``: grids of cells. Parsing and printing only."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.cli.options import (
    Account,
    AdjacencyOption,
    BasisOption,
    BundleFile,
    ClusterFile,
    Cpus,
    Datasets,
    Delta,
    Detach,
    Device,
    Directives,
    DryRun,
    Epsilons,
    Gpus,
    Jobs,
    Json,
    Launcher,
    LauncherOption,
    Memory,
    MethodsOrNone,
    NoiseOption,
    NoiseSalt,
    Out,
    PackOption,
    Parallel,
    Partition,
    PrecisionFlag,
    PresetOption,
    Quiet,
    Retries,
    ReuseOption,
    Seeds,
    Sets,
    Shards,
    StudentOption,
    Teacher,
    Threads,
    Time,
    where,
)
from bench.core.config import Grid, NoiseKind, PrecisionKind, Preset, Reuse, check_overrides, seed_numbers
from bench.core.errors import BenchError
from bench.core.printable import counted
from bench.core.progress import echo, fits_unfolded, open_progress, print_fields, print_json, print_table
from bench.core.types import Basis, PrivacyUnit, TargetAdjacency

if TYPE_CHECKING:
    from bench.launchers.settings import Cluster
    from bench.launchers.worker import Outcome
    from bench.reports.leaderboard import Board
    from bench.results.attack_record import AuditRecord
    from bench.results.record import Record

GRID = (
    "methods", "datasets", "eps", "seeds", "preset", "basis", "adjacency", "delta", "noise", "set_", "teacher",
    "student", "precision",
)  # fmt: skip
"""Parameters that describe the grid."""

EXAMPLES = """\
python -m bench run -m pate,dp-sgd -d digits -p tiny
python -m bench run -m pate-gnmax -d digits -e 1,3,10 -s 0,1,2 --set student_epochs=50 --dry-run
python -m bench run -m nonprivate -d digits -p tiny --student small_cnn --launcher local --jobs 2"""


def run(
    context: typer.Context,
    methods: MethodsOrNone = None,
    datasets: Datasets = "mnist",
    eps: Epsilons = "1,10",
    seeds: Seeds = "0",
    preset: PresetOption = Preset.QUICK,
    basis: BasisOption = Basis.CLAIMED,
    adjacency: AdjacencyOption = TargetAdjacency.REPLACE_ONE,
    delta: Delta = None,
    noise: NoiseOption = NoiseKind.SEEDED,
    noise_salt: NoiseSalt = "random",
    set_: Sets = None,
    teacher: Teacher = None,
    student: StudentOption = None,
    bundle: BundleFile = None,
    out: Out = Path("runs"),
    reuse: ReuseOption = Reuse.DONE,
    launcher: LauncherOption = None,
    jobs: Jobs = None,
    dry_run: DryRun = False,
    shards: Shards = None,
    retries: Retries = None,
    gpus: Gpus = None,
    cluster: ClusterFile = None,
    partition: Partition = None,
    cpus: Cpus = None,
    memory: Memory = None,
    time: Time = None,
    parallel: Parallel = None,
    account: Account = None,
    slurm: Directives = None,
    pack: PackOption = None,
    detach: Detach = False,
    device: Device = "auto",
    workers: Annotated[
        int, where("--workers", help="Processes for the teachers of a cell; 0: the cores of its job.", min=0)
    ] = 0,
    threads: Threads = 1,
    precision: PrecisionFlag = PrecisionKind.FLOAT32,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Run or resume a grid of methods, data sets, epsilons and seeds; print the board.

    Several of these commands may share one directory; each cell runs once.
    """
    sources = {name: context.get_parameter_source(name) for name in GRID}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if bundle is not None and given:
        names = ", ".join(f"--{name.rstrip('_')}" for name in given)
        raise BenchError(f"--bundle holds the grid. Leave out {names}, or pack another bundle with them.")
    if bundle is None and methods is None:
        raise BenchError("give the methods to run, for instance --methods pate,dp-sgd; or a file by --bundle.")
    grid = None
    if bundle is None:
        grid = grid_of(
            methods or "", datasets, eps, seeds, preset, basis, adjacency, delta, noise, set_, teacher, student,
            precision,
        )  # fmt: skip
    flags: dict[str, Any] = {
        "launcher": None if launcher is None else launcher.value, "jobs": jobs, "shards": shards, "retries": retries,
        "partition": partition, "gpus": gpus, "cpus": cpus, "memory": memory, "time": time, "parallel": parallel,
        "account": account, "pack": pack,
    }  # fmt: skip
    with open_progress(quiet=quiet or json_) as progress:
        with progress.stage("starting", 1):  # shown before the imports, which take seconds
            from bench.launchers.grid import forecast_grid, run_grid
            from bench.launchers.settings import directives, read_cluster

            flags["extra"] = directives(slurm or ())
            settings = read_cluster(cluster, flags)
            check_flags(flags, settings, detach)
        packed = None
        if bundle is not None:
            from bench.launchers.bundle import unpack

            held = unpack(bundle, out / "bundle", progress)
            grid, packed = held.grid, held.cells
        assert grid is not None
        if dry_run:
            seen = forecast_grid(grid, out, progress, settings, reuse=reuse, noise_salt=noise_salt)
        else:
            ran = run_grid(
                grid, out, progress, settings, reuse=reuse, noise_salt=noise_salt, device=device, workers=workers,
                threads=threads, detach=detach, packed=packed,
            )  # fmt: skip
    if dry_run:
        if json_:
            print_json(seen.as_dict())
            return
        print_table(*seen.table())
        for line in seen.notes:
            echo(line)
        return
    print_board(ran.records, ran.audits, json_=json_, out=out)
    _leave(ran.outcome, settings, out, detach)
    for line in ran.unread:
        echo(f"error: {line}", err=True)
    if ran.unread or any(record.failure for record in ran.records):
        raise typer.Exit(1)


def grid_of(
    methods: str, datasets: str, eps: str, seeds: str, preset: Preset, basis: Basis, adjacency: TargetAdjacency,
    delta: float | None, noise: NoiseKind, set_: list[str] | None, teacher: str | None, student: str | None,
    precision: PrecisionKind,
) -> Grid:  # fmt: skip
    """Return the grid that the options of a command describe; raise :class:`BenchError` on a wrong name or value."""
    models = {"teacher": teacher, "student": student}
    overrides = [*(set_ or ()), *(f"{role}={name}" for role, name in models.items() if name)]
    grid = Grid(
        _names(methods), _names(datasets), tuple(_number(text) for text in _names(eps)),
        seed_numbers(seeds), preset, basis, delta, noise, precision, tuple(overrides), adjacency,
    )  # fmt: skip
    _check_names(grid)
    return grid


def _check_names(grid: Grid) -> None:
    """Raise :class:`BenchError` on unknown names, as planning does, but before anything is shown; imports no file."""
    from bench.data.datasets import get_dataset
    from bench.interface.registry import METHODS, methods_named

    names = methods_named(grid.methods)
    methods = [METHODS.get(name) for name in names if not name.endswith(".py")]
    if len(methods) == len(names):
        check_overrides(methods, grid.overrides)
    for name in grid.datasets:
        get_dataset(name)


def check_flags(flags: dict[str, Any], settings: Cluster, detach: bool = False) -> None:
    """Raise :class:`BenchError` on a flag that the launcher does not use."""
    given = {name for name, value in flags.items() if value is not None and value != {}} | (
        {"detach"} if detach else set()
    )
    only_slurm = {"partition", "cpus", "memory", "time", "parallel", "account", "pack", "extra", "detach"}
    wrong = given & only_slurm if settings.launcher != Launcher.SLURM.value else given & {"jobs"}
    wrong |= given & {"jobs", "gpus", "retries"} if settings.launcher == Launcher.INLINE.value else set()
    if wrong:
        names = ", ".join(f"--{'slurm' if name == 'extra' else name}" for name in sorted(wrong))
        other = "local" if not wrong & only_slurm else "slurm"
        instead = "--parallel" if settings.launcher == Launcher.SLURM.value else f"--launcher {other}"
        raise BenchError(f"--launcher {settings.launcher} does not use {names}. Use {instead}, or leave it out.")


def _leave(outcome: Outcome, settings: Cluster, out: Path, detach: bool) -> None:
    if not outcome.left:
        return
    left = counted(outcome.left, "cell is", "cells are")
    if settings.launcher == Launcher.SLURM.value and not outcome.cancelled and (detach or outcome.stopped is not None):
        echo(
            f"{left} left to the jobs, which continue. `python -m bench status -o {out}` shows them, "
            f"`python -m bench cancel -o {out}` ends them; the same command again waits for them.",
            err=True,
        )
    elif outcome.stopped is not None:
        echo(f"stopped; {left} left. Give the same command again to resume.", err=True)
    if outcome.stopped is not None:
        raise typer.Exit(128 + outcome.stopped)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BenchError(f"--eps takes numbers with commas between them, for instance 1,10; not {text!r}.") from None


def print_board(
    records: list[Record], audits: list[AuditRecord], *, json_: bool, board: Board | None = None,
    units: Collection[PrivacyUnit] | None = None, out: Path | None = None,
) -> None:  # fmt: skip
    """Print the board of `records` and `audits`, or a prebuilt `board`, as tables or JSON.

    Of `units`, where given; failed cells have no unit and are always printed, with their logs if all are in `out`.
    """
    from bench.reports.leaderboard import COLUMNS, build_board, cells_of
    from bench.results.audited import with_audits

    if json_:
        if units is not None:
            records = [record for record in records if record.privacy is None or record.privacy.unit in units]
        filled = with_audits(records, audits)
        print_json({"records": [record.model_dump(mode="json") for record in filled]})
        return
    board = build_board(records, audits) if board is None else board
    for (dataset, unit), rows in board.tables().items():
        if units is not None and unit not in units:
            continue
        deltas = ", ".join(f"{delta:g}" for delta in sorted({row.delta for row in rows}))
        title = f"{dataset}, unit {unit}, delta {deltas}; accuracy in %"
        lines = [cells_of(row) for row in rows]
        # What says nothing here is for the files: on a screen it would fold every other column.
        idle = {name for name in ("whole test set", "drop") if all(line[name] == "–" for line in lines)}
        if all(line["proven"] == line["proven, replace-one"] for line in lines):
            idle.add("proven, replace-one")
        shown = [name for name in COLUMNS if name not in idle | {"rank", "public data"}]
        notes: dict[str, int] = {}
        if not fits_unfolded(shown, [[line[name] for name in shown] for line in lines]):
            same = [name for name in ("seeds", "preset") if len({line[name] for line in lines}) == 1]
            title += "".join(f"; {name}: {lines[0][name]}" for name in same)
            shown = [name for name in shown if name not in {"drop", *same}]
            for line, row in zip(lines, rows, strict=True):
                line["proven"] = line["proven"].replace(" (add-remove)", "*")
                line["remarks"] = ", ".join(str(notes.setdefault(text, len(notes) + 1)) for text in row.remarks)
        print_table(title, tuple(shown), [tuple(line[name] for name in shown) for line in lines])
        if any("*" in line["proven"] for line in lines):
            echo("*: add-remove neighbours")
        for text, number in notes.items():
            print_fields(f"{number}: {text}")
    for record in board.failures:
        echo(f"failed: {record.key}: {record.failure.words(out) if record.failure else ''}")
    for key, why in board.refused:
        echo(f"not shown: {key}: {why}")


Former = Annotated[Path | None, typer.Argument(hidden=True)]  # the run directory without --out


def status(former: Former = None, out: Out = Path("runs"), json_: Json = False) -> None:
    """Show the launches of a run directory, from any terminal: cells done, running and where, failed, left."""
    from bench.launchers.status import overview

    seen = overview(former or out)
    if json_:
        print_json(seen.as_dict())
        return
    for title, columns, rows in seen.tables():
        print_table(title, columns, rows)
    for note in seen.notes:
        echo(note)


def cancel(former: Former = None, out: Out = Path("runs")) -> None:
    """Stop everything that runs on a run directory: local launchers and workers, and Slurm jobs. Records remain."""
    from bench.launchers.status import cancel_all

    for line in cancel_all(former or out):
        echo(line)
