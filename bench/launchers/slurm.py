"""Slurm launcher: submitit submits packed cells as array jobs; files and ``squeue`` (not ``sacct``) give their state.

All jobs of a launch have one name, so ``bench cancel`` finds them even if the launcher died during submission. submitit
pickles only a folder name and keys, into the launch's private folder. Results of jobs are never read.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.interface.registry import METHODS
from bench.launchers.local import Done, Watch, doing
from bench.launchers.manifest import Launch, launches
from bench.launchers.schedule import Pack, waves_of
from bench.launchers.settings import Cluster, Resources
from bench.launchers.slurm_cli import command, undisturbed
from bench.launchers.worker import Outcome, settled
from bench.results.run_dir import RunDir
from bench.storage.interrupts import Stopped, stop, stopping_signals

POLL_SECONDS = 2.0
LONGEST_PAUSE = 30.0  # between calls of squeue without news: frequent calls load the controller
GRACE_SECONDS = 15.0  # delay of a record on a network disk after its job has ended
SAVES_PER_JOB = 20  # at least, of a training: what was not saved at a time limit is trained again
LARGEST_ARRAY = 1000  # Slurm's default (MaxArraySize 1001)


@dataclass(frozen=True, slots=True)
class Job:
    """Body of a Slurm job of at most `minutes`, pickled by submitit; `folder` is the launch's."""

    folder: str
    keys: tuple[str, ...]
    minutes: int

    def __call__(self) -> str:
        """Run this job's unfinished units."""
        from bench.launchers.worker import run_units
        from bench.training.checkpoint import saving_every

        try:
            # Slurm repeats SIGTERM; only the first may interrupt, or it would disturb the cleanup.
            with _time_limit_stops(), saving_every(60 * self.minutes / SAVES_PER_JOB):
                run_units(Path(self.folder), self.keys, wait=False, once=True)
        except Stopped as stopped:
            # Cancelled or requeued by Slurm. Records are in files; the remaining units stay unfinished.
            return f"stopped by signal {stopped.number}"
        return "done"

    def checkpoint(self) -> Any:
        """Return the same job to run after a requeue."""
        from submitit.helpers import DelayedSubmission

        # Runs in the handler of the signal before a time limit. The requeue's SIGTERM must not interrupt the cleanup.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return DelayedSubmission(self)


@contextlib.contextmanager
def _time_limit_stops() -> Iterator[None]:
    """Let submitit's handler of the signal before a time limit, which ends in `sys.exit`, end in :class:`Stopped`.

    A `sys.exit` amid a cell would count as the cell's own, which is a failure.
    """
    from submitit.core.utils import UncompletedJobError

    theirs = signal.getsignal(signal.SIGUSR2)

    def handle(number: int, frame: FrameType | None) -> None:
        assert callable(theirs)
        try:
            theirs(number, frame)
        except UncompletedJobError as error:
            raise BenchError(
                "its job reached its time limit too often. Give more --time, or more --retries."
            ) from error
        except (SystemExit, OSError, subprocess.SubprocessError):
            # Requeued; or Slurm did not answer, and the launcher submits the job again.
            stop(number)

    if callable(theirs):
        signal.signal(signal.SIGUSR2, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, theirs)


def job_name(launch_id: str) -> str:
    """Return the common name of a launch's jobs."""
    return f"bench-{launch_id}"


def submit(launch: Launch, packs: Sequence[Pack], cluster: Cluster) -> list[str]:
    """Submit `packs` as array jobs and return their ids. If Slurm refuses, cancel all and raise :class:`BenchError`."""
    capped = cluster.parallel is not None
    job_of: dict[str, str] = {}
    ids: list[str] = []
    for wave in waves_of(packs):
        for resources, after, together in _arrays(wave, capped):
            # The cap applies per array, so with a cap arrays run in turn, one per wave and kind of resources.
            waits = [ids[-1].partition("_")[0]] if capped and ids else sorted({job_of[key] for key in after})
            folder = str(launch.folder.resolve())
            own = cluster.of(resources)
            jobs = [Job(folder, tuple(unit.key for unit in pack.units), own.time) for pack in together]
            ids += (made := submit_array(launch, jobs, cluster, own, waits))
            for pack, name in zip(together, made, strict=True):
                job_of.update(dict.fromkeys((unit.key for unit in pack.units), name))
    return ids


def submit_array(
    launch: Launch,
    calls: Sequence[Callable[[], str]],
    cluster: Cluster,
    resources: Resources,
    waits: Sequence[str] = (),
) -> list[str]:
    """Submit `calls` as one array that waits for the jobs `waits`, and return the jobs' ids.

    If Slurm refuses, cancel all jobs of the launch and raise :class:`BenchError`.
    """
    import submitit

    logging.getLogger("submitit").setLevel(logging.ERROR)
    executor = submitit.SlurmExecutor(launch.folder / "jobs", max_num_timeout=launch.options.retries)
    executor.update_parameters(**_parameters(cluster, resources, launch.id, waits))
    try:
        # submitit prints sbatch's errors to stderr; the BenchError below repeats them.
        with _outside_any_job(), contextlib.redirect_stderr(io.StringIO()), executor.batch():
            jobs = [executor.submit(call) for call in calls]
    except submitit.core.utils.FailedJobError as error:
        cancel(launch.id)
        lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in str(error).splitlines()]
        reason = "; ".join(line for line in lines if line.strip())
        raise BenchError(f"Slurm refused a job: {reason.rstrip('.')}.") from error
    return [str(job.job_id) for job in jobs]


@contextlib.contextmanager
def _outside_any_job() -> Iterator[None]:
    before = dict(os.environ)
    for name in before.keys() - undisturbed(before).keys():
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)


def _arrays(wave: Sequence[Pack], capped: bool) -> list[tuple[str, tuple[str, ...], list[Pack]]]:
    """Return the array jobs of a wave as (resources, keys they wait for, packs)."""
    groups: dict[tuple[str, tuple[str, ...]], list[Pack]] = {}
    for pack in wave:
        groups.setdefault((pack.resources, () if capped else pack.after), []).append(pack)
    return [
        (resources, after, packs[i : i + LARGEST_ARRAY])
        for (resources, after), packs in groups.items()
        for i in range(0, len(packs), LARGEST_ARRAY)
    ]


def _parameters(cluster: Cluster, resources: Resources, launch_id: str, waits: Sequence[str]) -> dict[str, Any]:
    extra: dict[str, Any] = {**resources.extra}
    if waits:
        # afterany, failures included: a cell can make its artefacts itself.
        theirs = [str(extra["dependency"])] if "dependency" in extra else []
        extra["dependency"] = ",".join([*theirs, "afterany:" + ":".join(waits)])
    parameters: dict[str, Any] = {
        "job_name": job_name(launch_id),
        "time": resources.time,
        "cpus_per_task": resources.cpus,
        "partition": resources.partition,
        # Many clusters have users set this in the shell; other SBATCH_ variables are ignored.
        "account": resources.account or os.environ.get("SBATCH_ACCOUNT") or None,
        "qos": resources.qos,
        "gpus_per_node": resources.gpus or None,
        "mem": None if resources.memory is None else f"{int(resources.memory * 1024)}M",
        "array_parallelism": cluster.parallel or LARGEST_ARRAY,
        "setup": list(cluster.setup) or None,
        # Time to close a large cell at its checkpoint; a fraction of a short limit.
        "signal_delay_s": max(5, min(90, resources.time * 60 // 4)),
        "stderr_to_stdout": True,
        "additional_parameters": extra,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def queue(launch_id: str) -> dict[str, tuple[str, str]]:
    """Return (state, reason) by id of a launch's unfinished jobs. Raises :class:`BenchError` without an answer."""
    text = command("squeue", "-h", "-r", "-u", str(os.getuid()), "-n", job_name(launch_id), "-o", "%i|%T|%r")
    over = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")
    rows = (line.strip().split("|", 2) for line in text.splitlines())
    return {name: (state, reason) for name, state, reason in rows if state not in over}


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


def in_hand(launch: Launch, run_dir: RunDir, others: Sequence[Launch]) -> dict[str, set[str]]:
    """Return the keys of `launch` that `others` with jobs will still run, by launch.

    An older launch with a live launcher counts too, since it resubmits; a younger one would wait for this one.
    """
    mine = {entry.key for entry in launch.entries}
    found = {}
    for other in others:
        keys = {entry.key for entry in other.entries if entry.key in mine and not settled(entry, run_dir)}
        if keys and ((other.launcher_lives and other.id < launch.id) or queue(other.id)):
            found[other.id] = keys
    return found


def _others(launch: Launch, run_dir: RunDir) -> list[Launch]:
    return [other for other in launches(run_dir) if other.kind == "slurm" and other.id != launch.id]


def start(launch: Launch, packs: Sequence[Pack], cluster: Cluster, run_dir: RunDir, progress: Progress) -> None:
    """Submit `packs` less other launches' units. Raises :class:`BenchError` if Slurm refuses or a method is unknown."""
    for name in cluster.methods:
        METHODS.get(name)
    theirs = in_hand(launch, run_dir, _others(launch, run_dir))
    cells = {entry.key for entry in launch.records}
    for other, keys in theirs.items():
        count = len(keys & cells)
        progress.say(f"{count} cells are in the jobs of an earlier launch, {job_name(other)}, and come from there")
    mine = {entry.key for entry in launch.entries}.difference(*theirs.values())
    ids = submit(launch, _rest(packs, mine), cluster) if mine else []
    if ids:
        jobs = "job" if len(ids) == 1 else "jobs"
        progress.say(f"{len(mine & cells)} cells in {len(ids)} {jobs} of Slurm, named {job_name(launch.id)}")


def wait_for(
    launch: Launch, packs: Sequence[Pack], cluster: Cluster, run_dir: RunDir, progress: Progress, done: Done
) -> Outcome:
    """Call `done` with each new record until no cell is left, cells in other launches' jobs included.

    Cells whose jobs ended without a record are resubmitted at most min(`retries`, 3) times, then count as failed.
    Ctrl-C leaves the jobs running.
    """
    watch = Watch(launch, [unit for pack in packs for unit in pack.units], run_dir, done)
    others = _others(launch, run_dir)
    rounds, gone_since = 0, None
    pause = POLL_SECONDS
    ask = time.monotonic()
    try:
        with stopping_signals(), progress.stage("cells", len(watch.left)) as stage:
            while True:
                if launch.cancelled:
                    raise Stopped(signal.SIGTERM)
                news = watch.look()
                stage.advance(news)
                progress.doing(doing(run_dir, launch.id))
                if not watch.left:
                    break
                now = time.monotonic()
                if news:
                    pause = POLL_SECONDS
                    ask = min(ask, now + pause)
                if any(key in watch.left for key in run_dir.running()):
                    gone_since, ask = None, now + pause
                elif now < ask and gone_since is None:
                    pass
                elif at_work(launch, run_dir, others):
                    pause = min(LONGEST_PAUSE, 1.5 * pause)
                    gone_since, ask = None, now + pause
                elif gone_since is None:
                    gone_since, pause = now, POLL_SECONDS
                elif now - gone_since > GRACE_SECONDS:
                    stage.advance(watch.look())
                    rounds += 1
                    if rounds > min(launch.options.retries, 3):
                        progress.say(f"{len(watch.left)} cells are given up{_last_words(launch)}")
                        _give_up(watch, run_dir)
                        break
                    rest = _rest(packs, set(watch.left))
                    if rest:
                        what = f"{len(watch.left)} cells have no record and no job is left: submitted again"
                        progress.say(what + _last_words(launch))
                        submit(launch, rest, cluster)
                    gone_since = None
                time.sleep(POLL_SECONDS)
            _until_gone(launch)
    except Stopped as stopped:
        watch.outcome.stopped = stopped.number
    return watch.close()


def _until_gone(launch: Launch) -> None:
    """Wait briefly for finished jobs to end: they hold the directory, but can hang while their node does not answer."""
    deadline = time.monotonic() + GRACE_SECONDS
    with contextlib.suppress(BenchError):
        while queue(launch.id) and time.monotonic() < deadline:
            time.sleep(0.5)


def at_work(launch: Launch, run_dir: RunDir, others: Sequence[Launch]) -> bool:
    """Return whether jobs of `launch` are left, or of `others` with its cells; True while Slurm does not answer."""
    try:
        return bool(queue(launch.id)) or bool(in_hand(launch, run_dir, others))
    except BenchError:  # the controller may be down temporarily
        return True


def _rest(packs: Sequence[Pack], left: set[str]) -> list[Pack]:
    rest = []
    for pack in packs:
        units = tuple(unit for unit in pack.units if unit.key in left)
        if units:
            rest.append(Pack(units, tuple(key for key in pack.after if key in left), pack.resources))
    return rest


def _last_words(launch: Launch) -> str:
    """Return the end of the last failed job's log, for the terminal only: it may quote private data."""
    logs = sorted((launch.folder / "jobs").glob("*_log.out"), key=lambda log: log.stat().st_mtime, reverse=True)
    for log in logs:
        lines = log.read_text(errors="replace").strip().splitlines()
        if lines and not lines[-1].endswith("Exiting after successful completion"):
            return f"; the last words of one: {' / '.join(line.strip() for line in lines[-2:])} (log: {log})"
    return ""


def _give_up(watch: Watch, run_dir: RunDir) -> None:
    from bench.experiments.run import record_failure  # imports torch, which `bench status` does not need

    for unit in list(watch.left.values()):
        error = BenchError(
            "its jobs ended without a record (cancelled, out of memory, or over their time too often). Their logs lie "
            "in the jobs folder of the launch; --time, --memory and --retries give more."
        )
        watch.finish(unit, record_failure(unit.cell, run_dir, error))
