"""Run a grid, from plan to records, or forecast it: shared by ``bench run`` and :func:`bench.run`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.core.config import Grid, Reuse
from bench.core.errors import BenchError
from bench.core.options import Resources
from bench.core.plain_files import check_unshared, read_plain
from bench.core.printable import counted
from bench.core.processes import available_cores
from bench.core.progress import Progress
from bench.experiments.calibration_cache import Calibrations
from bench.experiments.data_source import DataSource
from bench.experiments.noise_salt import RANDOM, check_repeats, check_salt, sweep_salts
from bench.experiments.plan import Cell, Refusal, expand, to_run
from bench.experiments.to_risk import expand_to_risk
from bench.interface.registry import methods_named
from bench.launchers import slurm_run
from bench.launchers.dry_run import DryRun, forecast, jobs_of, running_times
from bench.launchers.executors import run_by_executor
from bench.launchers.hooks import at_end, hooked
from bench.launchers.local import Done, run_inline, run_local, visible_devices
from bench.launchers.manifest import Launch, Options, begin
from bench.launchers.schedule import Unit, units_of
from bench.launchers.settings import Cluster
from bench.launchers.slurm_cli import check, limits
from bench.launchers.worker import Outcome
from bench.results.attack_record import AuditRecord
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.storage.array_store import user_cache


@dataclass(slots=True)
class Ran:
    """A grid's records in its order, all audits of the directory, and in `unread` a line per unreadable record."""

    records: list[Record]
    audits: list[AuditRecord]
    outcome: Outcome
    unread: list[str] = field(default_factory=list)


def run_grid(
    grids: Grid | Sequence[Grid], out: Path, progress: Progress, settings: Cluster, resources: Resources, *,
    reuse: Reuse = Reuse.DONE, noise_salt: str = RANDOM, detach: bool = False, packed: Sequence[str] | None = None,
) -> Ran:  # fmt: skip
    """Run the cells of `grids` that have no record yet in the run directory `out`, with the launcher of `settings`.

    `packed` are the cells' keys according to a bundle. Failed cells have records too. Raises :class:`BenchError` for an
    invalid grid, before data is fetched if possible, and as :func:`execute` does.
    """
    grids = [grids] if isinstance(grids, Grid) else grids
    source, run_dir = DataSource(progress), RunDir(out)
    run_dir.check_writable()  # before data is fetched
    calibrations = Calibrations(run_dir.cache_path, user_cache())
    planned = [cell for grid in grids for cell in plan_grid(grid, source, calibrations, progress, noise_salt)]
    cells = list({cell.key: cell for cell in planned}.values())
    if packed is not None and (strange := [cell.key for cell in cells if cell.key not in packed]):
        raise BenchError(
            f"the bundle was packed by another version of this program, which plans no {strange[0]}. Use the same "
            "version on both machines: `bench bundle --wheels` packs it."
        )
    run_dir.create()
    with run_dir.joined():
        calibrations.keep()
        if any(cell.facts.disclosure.owner_only for cell in cells):
            check_unshared(run_dir.cache_path)
        sweep_salts(run_dir)
        run_dir.sweep_claims()
        todo, units, earlier = _units(cells, run_dir, settings, reuse, progress, set_aside=True)
        if noise_salt != RANDOM:
            check_repeats(noise_salt, {cell.key for cell in cells} - {cell.key for cell in todo}, earlier, out)
        if len(todo) < len(cells):
            done, are = len(cells) - len(todo), "is" if len(cells) - len(todo) == 1 else "are"
            progress.say(f"{done} of {counted(len(cells), 'cell')} {are} done already (--reuse none repeats them)")
        outcome = Outcome()
        if todo:

            def tell(record: Record) -> None:
                outcome.records.append(record)
                outcome.left -= 1
                _tell(progress, run_dir, record)

            outcome.left = len(todo)
            try:
                outcome = execute(
                    units, run_dir, source, progress, settings, resources,
                    plugins=[name for grid in grids for name in grid.methods if name.endswith(".py")], detach=detach,
                    done=hooked(tell, settings, run_dir, progress), noise_salt=noise_salt,
                )  # fmt: skip
            finally:
                if not detach:
                    at_end(outcome, settings, run_dir, progress)
        keys = {cell.key for cell in todo}
        known = {record.key: record for record in earlier if record.key not in keys}
        newer, unread = run_dir.read_records_of([cell.key for cell in cells if cell.key not in known])
        known |= {record.key: record for record in newer}
        records = [known[cell.key] for cell in cells if cell.key in known]
        return Ran(records, run_dir.read_audits()[0], outcome, unread)


def execute(
    units: Sequence[Unit], run_dir: RunDir, source: DataSource, progress: Progress, settings: Cluster,
    resources: Resources, *, plugins: Sequence[str], detach: bool, done: Done, noise_salt: str,
) -> Outcome:  # fmt: skip
    """Run `units` with the launcher of `settings`, call `done` with each record, and return the outcome.

    With `detach`, return after submission to Slurm. Raises :class:`BenchError` for a missing device, a refusal by
    Slurm, or workers that cannot run.
    """
    on_slurm = settings.launcher == "slurm"
    retries = settings.retries if settings.retries is not None else 10 if on_slurm else 3

    def launched(cores: int) -> Launch:
        own = replace(resources, workers=resources.workers or cores)
        options = Options(resources=own, retries=retries, gpus=max(1, settings.gpus), noise_salt=noise_salt)
        return begin(run_dir, settings.launcher, units, options, plugins)

    if on_slurm:
        packs = jobs_of(units, running_times(units, run_dir), settings)
        wanted = [settings.of(name) for name in {pack.resources for pack in packs}]
        check(wanted, run_dir.path)
        limit = limits(wanted)
        if detach:
            limit.check_room(len(packs))
        launch = launched(0)
        started = slurm_run.start(launch, packs, settings, run_dir, progress, limit, detach=detach)
        if detach:
            return Outcome(left=len(units))
        return slurm_run.wait_for(launch, packs, run_dir, progress, done, started)
    if settings.launcher == "local":
        devices = visible_devices(settings.gpus) if resources.device in ("auto", "cuda") else []
        jobs = settings.jobs or len(devices) or max(1, available_cores() // resources.threads)
        launch = launched(max(1, available_cores() // jobs))
        return run_local(
            launch, units, run_dir, progress, jobs=jobs, devices=devices, done=done, scratch=settings.scratch or ""
        )
    if settings.launcher != "inline":
        packs = jobs_of(units, running_times(units, run_dir), settings)
        return run_by_executor(launched(settings.cpus), packs, settings, run_dir, progress, done)
    from bench.experiments.device import prepare_device  # imports torch

    chosen = prepare_device(resources)
    return run_inline(launched(chosen.workers), units, run_dir, source, progress, chosen, done=done)


def forecast_grid(
    grid: Grid, out: Path, progress: Progress, settings: Cluster, *, reuse: Reuse = Reuse.DONE, noise_salt: str = RANDOM
) -> DryRun:
    """Return what :func:`run_grid` would do; writes nothing but slow calibrations, into the user's cache folder."""
    run_dir = RunDir(out)
    run_dir.check_layout()
    calibrations = Calibrations(user_cache(), run_dir.cache_path)
    cells = plan_grid(grid, DataSource(progress), calibrations, progress, noise_salt)
    with contextlib.suppress(BenchError):  # on failure, the next plan only takes longer
        calibrations.keep()
    _, units, _ = _units(cells, run_dir, settings, reuse, progress, set_aside=False)
    return forecast(cells, units, run_dir, settings, reuse, grid.risk)


def plan_grid(
    grid: Grid, source: DataSource, calibrations: Calibrations, progress: Progress, noise_salt: str = RANDOM
) -> list[Cell]:
    """Return the cells of `grid`; raise :class:`BenchError` on an invalid one."""
    chosen = methods_named(grid.methods)
    grid = replace(grid, methods=tuple(chosen))
    with progress.stage("planning", len(grid.datasets) * len(grid.methods) * len(grid.epsilons)) as stage:
        if grid.risk is None:
            cells = expand(grid, source.describe, calibrations, stage.advance)
        else:
            cells = expand_to_risk(
                grid, source.describe, calibrations, progress.say, stage.advance, lambda name: not chosen[name]
            )
    # A group selects only the methods that can run on this data; a file is given by its path.
    left = {cell.key: cell for cell in cells if cell.refused and not chosen.get(cell.method, True)}
    for line in dict.fromkeys(f"left out: {cell.title.rpartition(',')[0]}: {cell.refused}" for cell in left.values()):
        progress.say(line)
    cells = [cell for cell in cells if cell.key not in left]
    _check_possible(grid, cells, source, calibrations)
    if left and not cells:
        raise BenchError(f"no method of {', '.join(grid.methods)} can run on {', '.join(grid.datasets)}.")
    for cell in cells:
        check_salt(noise_salt, cell)
    return cells


def _check_possible(grid: Grid, cells: Sequence[Cell], source: DataSource, calibrations: Calibrations) -> None:
    """Raise :class:`BenchError` if, without the overrides, some cell of a method and a data set could run."""
    for method in dict.fromkeys(cell.method for cell in cells if cell.spec.overrides):
        for name in grid.datasets:
            mine = [cell for cell in cells if (cell.method, cell.dataset) == (method, name)]
            if mine and all(cell.refusal is Refusal.CALIBRATION for cell in mine):
                plain = replace(grid, methods=(method,), datasets=(name,), overrides=())
                if not all(cell.refused for cell in expand(plain, source.describe, calibrations)):
                    raise BenchError(f"{mine[0].title.rpartition(',')[0]}: {mine[0].refused}")


def _units(
    cells: Sequence[Cell], run_dir: RunDir, settings: Cluster, reuse: Reuse, progress: Progress, *, set_aside: bool
) -> tuple[list[Cell], list[Unit], list[Record]]:
    """Return the cells to run, their units in order, and the existing records."""
    # Read these before the states, so that cells finished by another run from now on count as done.
    before = {cell.key: run_dir.signature(cell.key) for cell in cells}
    earlier, damaged = run_dir.read_records_of((cell.key for cell in cells), set_aside=set_aside)
    for line in damaged:
        progress.say(f"warning: {line}")
    todo = to_run(cells, run_dir, reuse)
    keys = {cell.key for cell in todo}
    done = [cell for cell in cells if cell.key not in keys]
    units = units_of(todo, done, settings.shards, lambda cell: before[cell.key]) if todo else []
    return todo, units, earlier


def _tell(progress: Progress, run_dir: RunDir, record: Record) -> None:
    for note in record.notes:
        progress.say(f"{record.key}: {note}")
    if record.failure is not None:
        if record.failure.log and not record.disclosure.messages:  # shown to the owner, who may see what records omit
            with contextlib.suppress(OSError, ValueError):
                lines = read_plain(run_dir.path / record.failure.log).decode().splitlines()
                progress.say("".join(lines[-1:]).removeprefix("bench.core.errors."))
        progress.say(f"{record.key} FAILED: {record.failure.words(run_dir.path)}")
    elif record.utility is not None:
        shared = ", ".join(
            f"{kind} {misses} misses, {hits} hits" for kind, (misses, hits) in record.provenance.artefacts.items()
        )
        rounded = "at most " * ("wall_seconds" in record.provenance.unread)
        progress.say(
            f"{record.key}: accuracy {100 * record.utility.accuracy:.2f}% in {rounded}"
            f"{record.provenance.wall_seconds:.0f} s" + (f" (cache: {shared})" if shared else "")
        )
