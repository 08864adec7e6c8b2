"""Single entry point of the launchers `inline`, `local`, `slurm` and `submitit:NAME`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.core.options import Resources
from bench.core.processes import available_cores
from bench.core.progress import Progress
from bench.experiments.data_source import DataSource
from bench.experiments.device import prepare_device
from bench.experiments.noise_salt import RANDOM
from bench.launchers import slurm_run
from bench.launchers.dry_run import jobs_of
from bench.launchers.hooks import at_end, hooked
from bench.launchers.local import Done, run_inline, run_local, visible_devices
from bench.launchers.manifest import Launch, Options, begin
from bench.launchers.schedule import Unit
from bench.launchers.settings import SUBMITIT, Cluster
from bench.launchers.slurm_cli import check, limits
from bench.launchers.submitit_run import run_submitit
from bench.launchers.worker import Outcome
from bench.results.run_dir import RunDir


def execute(
    units: Sequence[Unit], run_dir: RunDir, source: DataSource, progress: Progress, settings: Cluster,
    resources: Resources, *, plugins: Sequence[str], detach: bool, done: Done, noise_salt: str = RANDOM,
) -> Outcome:  # fmt: skip
    """Run `units` with the launcher of `settings`, call `done` with each record, and return the outcome.

    With `detach`, return after submission to Slurm; the user's ``on_`` commands then do not run. Raises
    :class:`BenchError` for a missing device, a refusal by Slurm, or workers that cannot run.
    """
    then = hooked(done, settings, run_dir, progress)
    outcome = _execute(
        units, run_dir, source, progress, settings, resources, plugins=plugins, detach=detach, done=then,
        noise_salt=noise_salt,
    )  # fmt: skip
    if not detach:
        at_end(outcome, settings, run_dir, progress)
    return outcome


def _execute(
    units: Sequence[Unit], run_dir: RunDir, source: DataSource, progress: Progress, settings: Cluster,
    resources: Resources, *, plugins: Sequence[str], detach: bool, done: Done, noise_salt: str,
) -> Outcome:  # fmt: skip
    on_slurm = settings.launcher == "slurm"
    retries = settings.retries if settings.retries is not None else 10 if on_slurm else 3

    def launched(cores: int) -> Launch:
        own = replace(resources, workers=resources.workers or cores)
        options = Options(resources=own, retries=retries, gpus=max(1, settings.gpus), noise_salt=noise_salt)
        return begin(run_dir, settings.launcher, units, options, plugins)

    if on_slurm:
        packs = jobs_of(units, run_dir, settings)
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
    if settings.launcher.startswith(SUBMITIT):
        return run_submitit(launched(0), jobs_of(units, run_dir, settings), settings, run_dir, progress, done)
    if settings.launcher == "local":
        devices = visible_devices(settings.gpus) if resources.device in ("auto", "cuda") else []
        jobs = settings.jobs or len(devices) or max(1, available_cores() // resources.threads)
        launch = launched(max(1, available_cores() // jobs))
        return run_local(
            launch, units, run_dir, progress, jobs=jobs, devices=devices, done=done, scratch=settings.scratch or ""
        )
    chosen = prepare_device(resources)
    return run_inline(launched(chosen.workers), units, run_dir, source, progress, chosen, done=done)
