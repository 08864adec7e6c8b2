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
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.core.errors import BenchError
from bench.core.printable import counted
from bench.core.progress import Progress
from bench.interface.registry import METHODS
from bench.launchers.local import Done, Watch, doing
from bench.launchers.manifest import Launch, launches
from bench.launchers.schedule import Pack, Unit, waves_of
from bench.launchers.settings import Cluster, JobResources
from bench.launchers.slurm_cli import LARGEST_ARRAY, account_of_shell, check_room, command, largest_array, undisturbed
from bench.launchers.slurm_job import Job
from bench.launchers.worker import Outcome, settled
from bench.results.run_dir import RunDir
from bench.storage.interrupts import Stopped, stopping_signals

POLL_SECONDS = 2.0
LONGEST_PAUSE = 30.0  # between calls of squeue without news: frequent calls load the controller
GRACE_SECONDS = 15.0  # delay of a record on a network disk after its job has ended


def job_name(launch_id: str) -> str:
    """Return the common name of a launch's jobs."""
    return f"bench-{launch_id}"


def submit(launch: Launch, packs: Sequence[Pack], cluster: Cluster, job_of: dict[str, str]) -> int:
    """Submit `packs` as array jobs, put the job of each unit into `job_of` and return the number of jobs.

    If Slurm refuses, cancel all and raise :class:`BenchError`.
    """
    capped = cluster.parallel is not None
    folder = str(launch.folder.resolve())
    largest, count = largest_array(), 0
    for wave in waves_of(packs):
        for resources, after, together in arrays(wave, capped, largest):
            if capped and job_of:
                # The cap applies per array, so with a cap arrays run in turn, one per wave and kind of resources.
                waits = [str(max(int(job.partition("_")[0]) for job in job_of.values()))]
            else:
                waits = sorted({job_of[key] for key in after})
            own = cluster.of(resources)
            jobs = [Job(folder, tuple(unit.key for unit in pack.units), own.time) for pack in together]
            made = submit_array(launch, jobs, cluster, own, waits)
            count += len(made)
            for pack, name in zip(together, made, strict=True):
                job_of.update(dict.fromkeys((unit.key for unit in pack.units), name))
    return count


def submit_array(
    launch: Launch,
    calls: Sequence[Callable[[], str]],
    cluster: Cluster,
    resources: JobResources,
    waits: Sequence[str] = (),
) -> list[str]:
    """Submit `calls` as one array that waits for the jobs `waits`, and return the jobs' ids.

    If Slurm refuses, cancel all jobs of the launch and raise :class:`BenchError`.
    """
    import submitit

    logging.getLogger("submitit").setLevel(logging.ERROR)
    executor = submitit.SlurmExecutor(launch.folder / "jobs", max_num_timeout=launch.options.retries)
    executor.update_parameters(**job_parameters(cluster, resources, launch.id, waits))
    try:
        # submitit prints sbatch's errors to stderr; the BenchError below repeats them.
        with outside_any_job(), contextlib.redirect_stderr(io.StringIO()), executor.batch():
            jobs = [executor.submit(call) for call in calls]
    except submitit.core.utils.FailedJobError as error:
        cancel(launch.id)
        lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in str(error).splitlines()]
        reason = "; ".join(line for line in lines if line.strip())
        raise BenchError(f"Slurm refused a job: {reason.rstrip('.')}.") from error
    return [str(job.job_id) for job in jobs]


@contextlib.contextmanager
def outside_any_job() -> Iterator[None]:
    """Hide, inside the block, the environment's variables that would change what Slurm answers."""
    before = dict(os.environ)
    for name in before.keys() - undisturbed(before).keys():
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)


def arrays(
    wave: Sequence[Pack], capped: bool, largest: int = LARGEST_ARRAY
) -> list[tuple[str, tuple[str, ...], list[Pack]]]:
    """Return the array jobs of a wave as (resources, keys they wait for, packs)."""
    groups: dict[tuple[str, tuple[str, ...]], list[Pack]] = {}
    for pack in wave:
        groups.setdefault((pack.resources, () if capped else pack.after), []).append(pack)
    return [
        (resources, after, packs[i : i + largest])
        for (resources, after), packs in groups.items()
        for i in range(0, len(packs), largest)
    ]


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
        "setup": list(cluster.setup) or None,
        # Leave time to close a large cell, but little of a short limit: Slurm signals up to half a minute early.
        "signal_delay_s": max(5, min(90, resources.time * 60 // 12)),
        "stderr_to_stdout": True,
        "additional_parameters": extra,
    }
    return {name: value for name, value in parameters.items() if value is not None}


OVER = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")


def queue(launch_id: str, *, over: bool = False) -> dict[str, tuple[str, str]]:
    """Return (state, reason) by id of a launch's unfinished jobs or, with `over`, of ended ones that Slurm remembers.

    Raises :class:`BenchError` if Slurm does not answer.
    """
    words = ["squeue", "-h", "-r", "-u", str(os.getuid()), "-n", job_name(launch_id), "-o", "%i|%T|%r"]
    text = command(*words, *(["-t", "all"] if over else []))
    rows = (line.strip().split("|", 2) for line in text.splitlines())
    return {name: (state, reason) for name, state, reason in rows if (state in OVER) == over}


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
    """Return, by launch, the keys of `launch` that `others` with jobs will still run.

    An older launch with a live launcher counts too, since it resubmits; a younger one would wait for this one.
    """
    mine = {entry.key for entry in launch.entries}
    found = {}
    for other in others:
        keys = {entry.key for entry in other.entries if entry.key in mine and not settled(entry, run_dir)}
        if keys and ((other.launcher_lives and other.id < launch.id) or queue(other.id)):
            found[other.id] = keys
    return found


def other_launches(launch: Launch, run_dir: RunDir) -> list[Launch]:
    """Return the other Slurm launches of the run directory."""
    return [other for other in launches(run_dir) if other.kind == "slurm" and other.id != launch.id]


def start(
    launch: Launch, packs: Sequence[Pack], cluster: Cluster, run_dir: RunDir, progress: Progress
) -> dict[str, str]:
    """Submit `packs` without other launches' units, and return the job of each unit.

    Raises :class:`BenchError` if Slurm refuses or a method is unknown.
    """
    for name in cluster.methods:
        METHODS.get(name)
    theirs = in_hand(launch, run_dir, other_launches(launch, run_dir))
    cells = {entry.key for entry in launch.records}
    for other, keys in theirs.items():
        some = counted(len(keys & cells), "cell is", "cells are")
        progress.say(f"{some} in the jobs of an earlier launch, {job_name(other)}, and will come from there")
    mine = {entry.key for entry in launch.entries}.difference(*theirs.values())
    job_of: dict[str, str] = {}
    if mine:
        jobs = counted(submit(launch, _rest(packs, mine), cluster, job_of), "job")
        progress.say(f"{counted(len(mine & cells), 'cell')} in {jobs} of Slurm, named {job_name(launch.id)}")
    return job_of


@dataclass
class Jobs:
    """Jobs of a launch by unit or command, and those whose job was lost: cancelled, out of memory, or never begun."""

    launch: Launch
    progress: Progress
    job_of: dict[str, str] = field(default_factory=dict)
    _gone: dict[str, float] = field(default_factory=dict)  # since when
    _losses: Counter[str] = field(default_factory=Counter)
    _said: set[str] = field(default_factory=set)

    def lost(self, left: Iterable[str]) -> list[str]:
        """Return those of `left` whose jobs have been gone for GRACE_SECONDS; none while Slurm does not answer."""
        try:
            there = queue(self.launch.id)
        except BenchError:  # the controller may be down temporarily
            return []
        stuck = Counter(reason for state, reason in there.values() if state == "PENDING" and not _passes(reason))
        for reason in stuck.keys() - self._said:
            self._said.add(reason)
            jobs = counted(stuck[reason], "job waits", "jobs wait")
            self.progress.say(f"{jobs} for {reason}, which may never pass; `scontrol show job` tells more")
        now = time.monotonic()
        self._gone = {key: self._gone.get(key, now) for key in left if self.job_of.get(key) not in there}
        return [key for key, since in self._gone.items() if now - since >= GRACE_SECONDS]

    @property
    def some_gone(self) -> bool:
        """Whether something was without a job at the last look."""
        return bool(self._gone)

    def resubmitted(self, lost: Sequence[str], what: str) -> tuple[list[str], list[str]]:
        """Return which `lost` ones get another job and which are given up after min(`retries`, 3) more; print both."""
        self._losses.update(lost)
        most = min(self.launch.options.retries, 3)
        again = [key for key in lost if self._losses[key] <= most]
        given_up = [key for key in lost if self._losses[key] > most]
        for keys, outcome in ((again, "submitted again"), (given_up, "given up")):
            if keys:
                whose = counted(len(keys), f"{what} has lost its job", f"{what}s have lost their jobs")
                self.progress.say(f"{whose}{self._ends(keys)}: {outcome}{self._last_words(keys)}")
        for key in lost:
            self._gone.pop(key)
        return again, given_up

    def _ends(self, keys: Sequence[str]) -> str:
        jobs = {self.job_of[key] for key in keys if key in self.job_of}
        with contextlib.suppress(BenchError):
            ends = [f"{job} {state}" for job, (state, _) in queue(self.launch.id, over=True).items() if job in jobs]
            return f" ({', '.join(ends[:3])}{', ...' if len(ends) > 3 else ''})" if ends else ""
        return ""

    def _last_words(self, keys: Sequence[str]) -> str:
        """Return the end of the newest log of these jobs, for the terminal only: it may quote private data."""
        folder = self.launch.folder / "jobs"
        logs = [log for key in keys if key in self.job_of for log in folder.glob(f"{self.job_of[key]}_*_log.out")]
        for log in sorted(logs, key=lambda log: log.stat().st_mtime, reverse=True):
            lines = log.read_text(errors="replace").strip().splitlines()
            if lines and not lines[-1].endswith("Exiting after successful completion"):
                return f"; the last words of one: {' / '.join(line.strip() for line in lines[-2:])} (log: {log})"
        return ""


def _passes(reason: str) -> bool:
    """Return whether a job that waits for `reason` starts by itself when others have ended."""
    usual = ("None", "Priority", "Resources", "Dependency", "JobArrayTaskLimit", "BeginTime", "Cleaning")
    return reason in usual or reason.startswith(("Assoc", "QOS"))


def wait_for(
    launch: Launch, packs: Sequence[Pack], cluster: Cluster, run_dir: RunDir, progress: Progress, done: Done,
    job_of: dict[str, str],
) -> Outcome:  # fmt: skip
    """Call `done` with each new record until no cell is left, cells in other launches' jobs included.

    A cell whose job ended without a record is submitted again at most min(`retries`, 3) times, then counts as failed.
    Ctrl-C leaves the jobs running.
    """
    watch = Watch(launch, [unit for pack in packs for unit in pack.units], run_dir, done)
    others, jobs = other_launches(launch, run_dir), Jobs(launch, progress, job_of)
    pause, ask = POLL_SECONDS, time.monotonic()
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
                if news:
                    pause = POLL_SECONDS
                    ask = min(ask, time.monotonic() + pause)
                if time.monotonic() >= ask:
                    lost = jobs.lost(watch.left.keys() - _elsewhere(launch, run_dir, others, watch, job_of))
                    stage.advance(watch.look())  # what was lost may have left a record
                    lost = [key for key in lost if key in watch.left]
                    if lost and _room(len(lost), progress):
                        again, given_up = jobs.resubmitted(lost, "cell")
                        _give_up([watch.left[key] for key in given_up], watch, run_dir)
                        stage.advance(len(given_up))
                        submit(launch, _rest(packs, set(again)), cluster, job_of)
                    pause = POLL_SECONDS if jobs.some_gone else min(LONGEST_PAUSE, 1.5 * pause)
                    ask = time.monotonic() + pause
                time.sleep(POLL_SECONDS)
            _until_gone(launch)
    except Stopped as stopped:
        watch.outcome.stopped = stopped.number
    return watch.close()


def _elsewhere(
    launch: Launch, run_dir: RunDir, others: Sequence[Launch], watch: Watch, job_of: Mapping[str, str]
) -> set[str]:
    """Return the keys of the cells that run, or that other launches will run."""
    held = set(run_dir.running())
    if watch.left.keys() - held - job_of.keys():
        try:
            held.update(*in_hand(launch, run_dir, others).values())
        except BenchError:  # no answer from Slurm: nothing is known
            held.update(watch.left)
    return held


def _room(jobs: int, progress: Progress) -> bool:
    try:
        check_room(jobs)
    except BenchError as error:
        progress.say(f"{counted(jobs, 'job')} cannot be submitted again yet: {error}")
        return False
    return True


def _until_gone(launch: Launch) -> None:
    """Wait briefly for finished jobs to end: they hold the directory, but can hang while their node does not answer."""
    deadline = time.monotonic() + GRACE_SECONDS
    with contextlib.suppress(BenchError):
        while queue(launch.id) and time.monotonic() < deadline:
            time.sleep(0.5)


def _rest(packs: Sequence[Pack], left: set[str]) -> list[Pack]:
    rest = []
    for pack in packs:
        units = tuple(unit for unit in pack.units if unit.key in left)
        if units:
            rest.append(Pack(units, tuple(key for key in pack.after if key in left), pack.resources))
    return rest


def _give_up(units: Sequence[Unit], watch: Watch, run_dir: RunDir) -> None:
    from bench.experiments.run import record_failure  # imports torch, which `bench status` does not need

    for unit in units:
        error = BenchError(
            "its jobs ended without a record (cancelled, out of memory, or over their time too often). Their logs lie "
            "in the jobs folder of the launch; --time, --memory and --retries give more."
        )
        watch.finish(unit, record_failure(unit.cell, run_dir, error))
