"""Runs the cells of a launch as Slurm jobs. Their state comes from files and the queue, never from exit codes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from bench.core.errors import BenchError
from bench.core.printable import counted
from bench.core.progress import Progress
from bench.interface.registry import METHODS
from bench.launchers import slurm
from bench.launchers.local import Done, Watch, doing
from bench.launchers.manifest import Launch, launches
from bench.launchers.schedule import Order, Pack, Unit
from bench.launchers.settings import Cluster, JobResources
from bench.launchers.slurm_cli import Limits
from bench.launchers.slurm_ends import End
from bench.launchers.slurm_job import Job
from bench.launchers.slurm_jobs import GRACE_SECONDS, POLL_SECONDS, Jobs
from bench.launchers.worker import Outcome, settled
from bench.results.run_dir import RunDir
from bench.storage.interrupts import Stopped, stopping_signals


def in_hand(launch: Launch, run_dir: RunDir, others: Sequence[Launch]) -> dict[str, set[str]]:
    """Return, by launch, the keys of `launch` that `others` with jobs will still run.

    An older launch with a live launcher counts too, since it resubmits; a younger one would wait for this one.
    """
    mine = {entry.key for entry in launch.entries}
    found = {}
    for other in others:
        keys = {entry.key for entry in other.entries if entry.key in mine and not settled(entry, run_dir)}
        if keys and ((other.launcher_lives and other.id < launch.id) or slurm.queue(other.id)):
            found[other.id] = keys
    return found


def other_launches(launch: Launch, run_dir: RunDir) -> list[Launch]:
    """Return the other Slurm launches of the run directory."""
    return [other for other in launches(run_dir) if other.kind == "slurm" and other.id != launch.id]


def start(
    launch: Launch, packs: Sequence[Pack], cluster: Cluster, run_dir: RunDir, progress: Progress, limits: Limits, *,
    detach: bool = False,
) -> Jobs:  # fmt: skip
    """Submit as many of `packs` as Slurm accepts, without the units of other launches.

    Raises :class:`BenchError` if Slurm refuses or a method is unknown.
    """
    for name in cluster.methods:
        METHODS.get(name)
    theirs = in_hand(launch, run_dir, other_launches(launch, run_dir))
    cells = {entry.key for entry in launch.records}
    for other, keys in theirs.items():
        some = counted(len(keys & cells), "cell is", "cells are")
        progress.say(f"{some} in the jobs of an earlier launch, {slurm.job_name(other)}, and will come from there")
    elsewhere = set[str]().union(*theirs.values())
    orders = [Order(pack.keys, pack.after, pack.resources) for pack in packs]

    def body(keys: tuple[str, ...], own: JobResources, ends_itself: bool) -> Job:
        return Job(str(launch.folder.resolve()), keys, own.time, ends_itself)

    jobs = Jobs(launch, run_dir, cluster, limits, progress, body, orders, grows=not detach)
    jobs.waiting = [rest for order in orders if (rest := _without(order, elsewhere)).keys]
    if count := len(jobs.waiting):
        mine = counted(len(cells - elsewhere), "cell")
        progress.say(f"{mine} in {counted(count, 'job')} of Slurm, named {slurm.job_name(launch.id)}")
        jobs.submit()
    return jobs


def _without(order: Order, keys: set[str]) -> Order:
    rest, after = ([key for key in names if key not in keys] for names in (order.keys, order.after))
    return Order(tuple(rest), tuple(after), order.resources)


def wait_for(
    launch: Launch, packs: Sequence[Pack], run_dir: RunDir, progress: Progress, done: Done, jobs: Jobs
) -> Outcome:
    """Call `done` with each new record until no cell is left, cells in other launches' jobs included.

    A cell whose job ended without a record is submitted again, see :meth:`Jobs.again`, or counts as failed.
    Ctrl-C leaves the jobs running.
    """
    watch = Watch(launch, [unit for pack in packs for unit in pack.units], run_dir, done)
    others = other_launches(launch, run_dir)
    pause, ask = POLL_SECONDS, time.monotonic()
    try:
        with stopping_signals(), progress.stage("cells", len(watch.left)) as stage:
            while True:
                launch.check_cancelled()
                news = watch.look()
                stage.advance(news)
                progress.doing(doing(run_dir, launch.id))
                if not watch.left:
                    break
                if news:
                    pause = POLL_SECONDS
                    ask = min(ask, time.monotonic() + pause)
                if time.monotonic() >= ask:
                    lost = jobs.lost(watch.left.keys() - _elsewhere(launch, run_dir, others, watch, jobs))
                    stage.advance(watch.look())  # a lost job may have left a record
                    if lost := [key for key in lost if key in watch.left]:
                        given_up = jobs.again(lost, "cell")
                        give_up([watch.left[key] for key in given_up], watch, run_dir, jobs.ends)
                        stage.advance(len(given_up))
                    jobs.submit()
                    pause = POLL_SECONDS if jobs.some_gone else min(jobs.pause, 1.5 * pause)
                    ask = time.monotonic() + pause
                time.sleep(POLL_SECONDS)
            _until_gone(launch)
    except Stopped as stopped:
        watch.outcome.stopped = stopped.number
    return watch.close()


def _elsewhere(launch: Launch, run_dir: RunDir, others: Sequence[Launch], watch: Watch, jobs: Jobs) -> set[str]:
    """Return the keys of cells that are running or that other launches will run."""
    held = set(run_dir.running())
    if watch.left.keys() - held - jobs.mine:
        try:
            held.update(*in_hand(launch, run_dir, others).values())
        except BenchError:  # Slurm did not answer, so nothing is known
            held.update(watch.left)
    return held


def _until_gone(launch: Launch) -> None:
    """Wait briefly for finished jobs to end: they hold the directory, but can hang while their node does not answer."""
    deadline = time.monotonic() + GRACE_SECONDS
    with contextlib.suppress(BenchError):
        while slurm.queue(launch.id) and time.monotonic() < deadline:
            time.sleep(0.5)


def give_up(units: Sequence[Unit], watch: Watch, run_dir: RunDir, ends: dict[str, End]) -> None:
    """Write failed records for `units` whose jobs ended without a record, with the reasons in `ends`."""
    from bench.experiments.run import record_failure  # imports torch, which `bench status` does not need

    for unit in units:
        last = f", the last one {ends[unit.key].words}" if unit.key in ends else ""
        error = BenchError(
            f"its jobs ended without a record{last}. `bench logs {unit.key}` shows each attempt; --time, --max-time, "
            "--memory, --max-memory and --retries give more."
        )
        watch.finish(unit, record_failure(unit.cell, run_dir, error))
