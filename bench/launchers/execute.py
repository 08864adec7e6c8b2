"""Single entry point of the launchers `inline`, `local`, `slurm`, `submitit:NAME`, and of installed packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.core.options import Resources
from bench.core.processes import available_cores
from bench.core.progress import Progress
from bench.experiments.data_source import DataSource
from bench.experiments.device import prepare_device
from bench.launchers import slurm_run
from bench.launchers.dry_run import jobs_of, running_times
from bench.launchers.executors import run_by_executor
from bench.launchers.local import Done, run_inline, run_local, visible_devices
from bench.launchers.manifest import Launch, Options, begin
from bench.launchers.schedule import Unit
from bench.launchers.settings import Cluster
from bench.launchers.slurm_cli import check, limits
from bench.launchers.worker import Outcome
from bench.results.run_dir import RunDir


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
    chosen = prepare_device(resources)
    return run_inline(launched(chosen.workers), units, run_dir, source, progress, chosen, done=done)
