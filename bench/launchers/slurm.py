"""Arrays of jobs: submitted to Slurm by submitit, looked up in the queue, cancelled.

All jobs of a launch have one name, so ``bench cancel`` finds them even if the launcher died during submission. submitit
pickles only a folder name and keys, into the launch's private folder. Results of jobs are never read.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.core.errors import BenchError
from bench.core.grouping import grouped
from bench.core.lazy_libraries import submitit
from bench.launchers.manifest import Launch
from bench.launchers.schedule import Order
from bench.launchers.settings import Cluster, JobResources
from bench.launchers.slurm_cli import LARGEST_ARRAY, account_of_shell, command, undisturbed
from bench.launchers.slurm_ends import STATES


class RefusedError(BenchError):
    """Slurm refused a job; `passing` if the same job may be accepted later."""

    passing = False


def job_name(launch_id: str) -> str:
    """Return the common name of a launch's jobs."""
    return f"bench-{launch_id}"


def submit_array(
    launch: Launch, calls: Sequence[Callable[[], str]], cluster: Cluster, resources: JobResources,
    waits: Sequence[str] = (), requeues: int = 0,
) -> list[str]:  # fmt: skip
    """Submit `calls` as one array that waits for the jobs `waits`, and return the jobs' ids.

    A job that reaches its time limit goes back to the queue, up to `requeues` times. Raises :class:`RefusedError`.
    """
    logging.getLogger("submitit").setLevel(logging.ERROR)
    executor = submitit.SlurmExecutor(launch.folder / "jobs", max_num_timeout=requeues, python=cluster.python)
    executor.update_parameters(**job_parameters(cluster, resources, launch.id, waits))
    try:
        # submitit prints sbatch's errors to stderr; the BenchError below repeats them.
        with outside_any_job(), contextlib.redirect_stderr(io.StringIO()), executor.batch():
            jobs = [executor.submit(call) for call in calls]
    except submitit.core.utils.FailedJobError as error:
        lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in str(error).splitlines()]
        reason = "; ".join(line for line in lines if line.strip())
        refused = RefusedError(f"Slurm refused a job: {reason.rstrip('.')}.")
        refused.passing = bool(re.search(PASSING, reason, re.IGNORECASE))
        raise refused from error
    return [str(job.job_id) for job in jobs]


@contextlib.contextmanager
def outside_any_job() -> Iterator[None]:
    """Inside the block, hide environment variables that would change Slurm's answers."""
    before = dict(os.environ)
    for name in before.keys() - undisturbed(before).keys():
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)


def arrays(wave: Sequence[Order], capped: bool, largest: int = LARGEST_ARRAY) -> list[list[Order]]:
    """Return the array jobs of a wave: orders with the same resources that wait for the same keys."""
    groups = grouped(((order.resources, order.more, () if capped else order.after), order) for order in wave)
    return [same[i : i + largest] for same in groups.values() for i in range(0, len(same), largest)]


def job_parameters(cluster: Cluster, resources: JobResources, launch_id: str, waits: Sequence[str]) -> dict[str, Any]:
    """Return submitit's parameters of an array whose jobs start after the jobs `waits`."""
    extra: dict[str, Any] = {**resources.extra}
    if waits:
        # afterany includes failures, because a cell can make its artefacts itself.
        theirs = [str(extra["dependency"])] if "dependency" in extra else []
        extra["dependency"] = ",".join([*theirs, "afterany:" + ":".join(waits)])
    parameters: dict[str, Any] = {
        "job_name": job_name(launch_id),
        "time": resources.time,
        "cpus_per_task": resources.cpus,
        "partition": resources.partition,
        # Other SBATCH_ variables are ignored.
        "account": resources.account or account_of_shell() or None,
        "qos": resources.qos,
        "gpus_per_node": resources.gpus or None,
        "mem": None if resources.memory is None else f"{int(resources.memory * 1024)}M",
        "array_parallelism": cluster.parallel or LARGEST_ARRAY,
        "setup": cluster.shell or None,
        "nodes": resources.nodes if resources.nodes > 1 else None,
        "ntasks_per_node": 1 if resources.nodes > 1 else None,
        "srun_args": list(cluster.srun_args) or None,
        # Leave time to close a large cell, but little of a short limit: Slurm signals up to half a minute early.
        "signal_delay_s": max(5, min(90, resources.time * 60 // 12)),
        "stderr_to_stdout": True,
        "additional_parameters": extra,
    }
    return {name: value for name, value in parameters.items() if value is not None}


PASSING = "temporar|try again|contact|connect|communicat|timed out|submit limit|SubmitJob"
"""Patterns in sbatch's messages of refusals that may pass: a restarting controller, or a full queue."""

OVER = (*STATES, "FAILED")  # states of ended jobs


def queue(launch_id: str, *, over: bool = False) -> dict[str, tuple[str, str]]:
    """Return (state, reason) by id of a launch's unfinished jobs and, with `over`, of ended ones that Slurm remembers.

    Raises :class:`BenchError` if Slurm does not answer.
    """
    words = ["squeue", "-h", "-r", "-u", str(os.getuid()), "-n", job_name(launch_id), "-o", "%i|%T|%r"]
    text = command(*words, *(["-t", "all"] if over else []))
    rows = (line.strip().split("|", 2) for line in text.splitlines())
    return {name: (state, reason) for name, state, reason in rows if over or state not in OVER}


def cancel(launch_id: str, wait: float = 90.0) -> int:
    """Cancel a launch's jobs and return their number. Raises :class:`BenchError` if any remain after `wait` seconds."""
    there = queue(launch_id)
    deadline = time.monotonic() + wait
    while queue(launch_id):
        command("scancel", "-u", str(os.getuid()), "-n", job_name(launch_id))
        if time.monotonic() > deadline:
            raise BenchError(f"Slurm still has jobs of {job_name(launch_id)} after {wait:.0f} s. Try `squeue`.")
        time.sleep(0.5)
    return len(there)
