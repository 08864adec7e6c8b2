"""Runs the cells of a launch as jobs of any submitit executor, built in or from a plug-in.

Executors have no common way to name dependencies or to list jobs, so this process submits a job once its dependencies
are done, and ends the jobs when it ends. Slurm has its own module, with arrays, dependencies and limits.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.core.errors import BenchError, UnknownNameError
from bench.core.printable import counted
from bench.core.processes import available_cores
from bench.core.progress import Progress
from bench.launchers.local import Done, Watch, doing
from bench.launchers.manifest import Launch
from bench.launchers.schedule import Pack
from bench.launchers.settings import SUBMITIT, Cluster
from bench.launchers.slurm_job import Job
from bench.launchers.slurm_jobs import POLL_SECONDS
from bench.launchers.slurm_run import give_up
from bench.launchers.worker import Outcome
from bench.results.run_dir import RunDir
from bench.storage.interrupts import Stopped, stopping_signals


def executor_of(settings: Cluster, launch: Launch) -> Any:
    """Return the executor that `settings` name, with their resources.

    Raises UnknownNameError for another name, :class:`BenchError` for parameters that it does not take.
    """
    import submitit
    from submitit.core.plugins import get_executors

    name = settings.launcher.removeprefix(SUBMITIT)
    if name not in (known := get_executors().keys() - {"debug"}):  # which runs jobs in this process, as inline does
        raise UnknownNameError("executor of submitit", name, known)
    prefixed = {f"{name}_{key}": value for key, value in settings.extra.items()}
    setup = {f"{name}_setup": list(settings.shell)} if settings.shell else {}
    python = {f"{name}_python": settings.python} if settings.python else {}
    try:
        executor = submitit.AutoExecutor(
            launch.folder / "jobs", name, **{f"{name}_max_num_timeout": launch.options.retries}, **python
        )
        executor.update_parameters(
            name=f"bench-{launch.id}", timeout_min=settings.time, cpus_per_task=settings.cpus, nodes=settings.nodes,
            gpus_per_node=settings.gpus, mem_gb=settings.memory, stderr_to_stdout=True, **setup, **prefixed,
        )  # fmt: skip
    except (NameError, ValueError, TypeError, AssertionError, RuntimeError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BenchError(f"--launcher {settings.launcher} does not take these settings: {said}.") from error
    return executor


def run_submitit(
    launch: Launch, packs: Sequence[Pack], settings: Cluster, run_dir: RunDir, progress: Progress, done: Done
) -> Outcome:
    """Run `packs` with the executor of `settings`, and call `done` with each record.

    At most `parallel` jobs run at once, by default as many as this machine has cores. A cell whose job ended without a
    record is submitted again at most min(`retries`, 3) times. Raises as :func:`executor_of`.
    """
    executor = executor_of(settings, launch)
    watch = Watch(launch, [unit for pack in packs for unit in pack.units], run_dir, done)
    waiting, running, losses = list(packs), list[tuple[Pack, Any]](), Counter[str]()
    most = settings.parallel or max(1, available_cores() // settings.cpus)
    folder, tries = str(launch.folder.resolve()), min(launch.options.retries, 3)
    try:
        with stopping_signals(), progress.stage("cells", len(watch.left)) as stage:
            while watch.left:
                if launch.cancelled:
                    raise Stopped(signal.SIGTERM)
                stage.advance(watch.look())
                ended = [(pack, job) for pack, job in running if job.done()]
                running = [one for one in running if one not in ended]
                stage.advance(watch.look())
                lost = [pack for pack, _ in ended if any(key in watch.left for key in pack.keys)]
                for pack in lost:
                    losses.update(pack.keys)
                    units = [unit for unit in pack.units if unit.key in watch.left and losses[unit.key] > tries]
                    what = "given up" if units else "submitted again"
                    progress.say(f"{counted(len(pack.keys), 'cell has', 'cells have')} lost the job: {what}")
                    give_up(units, watch, run_dir, {})
                    stage.advance(len(units))
                    waiting += [] if units else [pack]
                under_way = {key for pack in (*waiting, *(pack for pack, _ in running)) for key in pack.keys}
                for pack in [pack for pack in waiting if not under_way.intersection(pack.after)]:
                    if len(running) < most:
                        waiting.remove(pack)
                        running.append((pack, executor.submit(Job(folder, pack.keys, settings.time))))
                progress.doing(doing(run_dir, launch.id))
                if watch.left:
                    time.sleep(POLL_SECONDS)
    except Stopped as stopped:
        watch.outcome.stopped = stopped.number
    finally:
        for _, job in running:
            if not job.done():
                job.cancel(check=False)
    return watch.close()
