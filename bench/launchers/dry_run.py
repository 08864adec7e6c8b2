"""Forecast of a run (states, settings, order, jobs, running times), for ``run --dry-run`` and for packing jobs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.config import Preset, Reuse, as_dict
from bench.core.printable import counted
from bench.core.processes import available_cores
from bench.core.risk_target import RiskTarget
from bench.experiments.plan import Cell, State, bound_method, states
from bench.experiments.to_risk import risk_of
from bench.interface.method import Method, checked_claim
from bench.interface.registry import METHODS
from bench.launchers.runtime_estimate import EarlierRuns, RunningTime, duration, earlier_records, total
from bench.launchers.schedule import Order, Pack, Unit, packs_of, shared_names, waves_of
from bench.launchers.settings import Cluster, resources_of
from bench.launchers.slurm import arrays
from bench.launchers.slurm_cli import Limits, NoSlurmError, at_once, limits
from bench.results.run_dir import RunDir

TINY_SECONDS = 10.0  # assumed for a tiny cell without earlier records, so that tiny cells share a job
SHOWN = 200  # rows of the table
START_SECONDS = 5.0  # from the start of a process until its first cell: mostly imports


def running_times(units: Sequence[Unit], run_dir: RunDir) -> dict[str, RunningTime | None]:
    """Return each unit's running time by key, estimated from earlier records; None without any."""
    earlier = EarlierRuns(earlier_records(run_dir.records_path))
    made: set[str] = set()
    found: dict[str, RunningTime | None] = {}
    for unit in units:
        names = set(shared_names(unit.cell))
        known = earlier.estimate(unit.cell, makes=bool(names - made))
        if unit.shard is None or unit.shard[0] + 1 == unit.shard[1]:
            made |= names
        if unit.shard is not None and known is not None:
            known = RunningTime(known.seconds / unit.shard[1], f"{known.basis}, split")
        found[unit.key] = known
    return found


Times = Mapping[str, RunningTime | None]


def jobs_of(units: Sequence[Unit], times: Times, settings: Cluster) -> list[Pack]:
    """Pack `units`, which take `times`, into jobs."""

    def seconds(unit: Unit) -> float | None:
        known = times[unit.key]
        return known.seconds if known else TINY_SECONDS if unit.cell.preset is Preset.TINY else None

    target = 60 * min(settings.pack, 0.5 * settings.time)
    return packs_of(units, seconds, lambda unit: resources_of(settings, unit.cell), target)


@dataclass(frozen=True, slots=True)
class DryRun:
    """Forecast of a run. Each of `rows` is a cell or a shard, in running order, finished cells last."""

    rows: list[dict[str, Any]]
    totals: dict[str, Any]
    title: str
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"cells": self.rows, **self.totals}

    def table(self) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
        """Return a table's title, columns and first SHOWN rows, without empty columns."""
        names = ("state", "cell", "claimed", "risk", "setting", "runs after", "time", "job", "why not")
        rows = [
            (
                row["state"], row["title"], row["claimed"], row["risk"], row["setting"], "; ".join(row["after"]),
                _shown_time(row),
                str(row["job"] or ""), row["refused"],
            )
            for row in self.rows[:SHOWN]
        ]  # fmt: skip
        shown = [i for i in range(len(names)) if i < 2 or any(row[i] for row in rows)]
        return self.title, tuple(names[i] for i in shown), [tuple(row[i] for i in shown) for row in rows]


def _shown_time(row: Mapping[str, Any]) -> str:
    if row["state"] == "done" or row["refused"]:
        return ""
    return "unknown" if row["seconds"] is None else duration(row["seconds"])


def forecast(
    cells: Sequence[Cell], units: Sequence[Unit], run_dir: RunDir, settings: Cluster, reuse: Reuse,
    risk: RiskTarget | None = None,
) -> DryRun:  # fmt: skip
    """Return the forecast of a run of `cells`, calibrated to `risk` if given; `units` are the unfinished ones."""
    state = states(cells, run_dir, reuse)
    times = running_times(units, run_dir)
    title_of = {unit.key: unit.title for unit in units}
    jobs = [] if settings.launcher in ("inline", "local") else jobs_of(units, times, settings)
    job_of = {unit.key: number for number, pack in enumerate(jobs, 1) for unit in pack.units}
    answered = _limits(settings, jobs)
    limit = answered or Limits()
    slots = _slots(settings, jobs, limit)
    rows = [
        {
            **_planned(unit.cell, state[unit.cell.key], risk),
            "key": unit.key, "title": unit.title, "after": [title_of[key] for key in unit.after],
            "seconds": known.seconds if known else None, "basis": known.basis if known else "",
            "job": job_of.get(unit.key),
        }
        for unit in units
        for known in [times[unit.key]]
    ]  # fmt: skip
    rows += [
        {**_planned(cell, state[cell.key], risk), "after": [], "seconds": None, "basis": "", "job": None}
        for cell in cells
        if cell.key not in title_of
    ]
    seconds = _expected(units, jobs, times, settings, limit, slots)
    unknown, refused = sum(times[unit.key] is None for unit in units), sum(bool(unit.cell.refused) for unit in units)
    makers = len({key for unit in units for key in unit.after})
    notes = []
    if makers:
        make = counted(makers, "cell makes", "cells make")
        notes.append(f"{make} artefacts that others share; those run later and reuse them from the cache.")
    if settings.launcher == "slurm":
        most = settings.parallel or "any number"
        waves = counted(len(waves_of(jobs)), "wave")
        notes.append(f"{counted(len(jobs), 'job')} of Slurm in {waves}, {most} at a time.")
        if answered is None:
            notes.append("Slurm does not answer here, so its limits on jobs are not known.")
        if limit.most is not None and limit.most < len(jobs):
            told = "MaxJobCount in slurm.conf" if limit.jobs and limit.most == limit.jobs - 1 else "sacctmgr"
            notes.append(
                f"Slurm takes {counted(limit.most, 'job')} ({told}), in arrays of at most {limit.array}: the others "
                "are submitted as these end, while the launcher runs."
            )
    if unknown + refused < len(units):
        where = " on an empty cluster" if settings.launcher == "slurm" else ""
        notes.append(f"Time: {duration(seconds)} with {slots} at a time{where}, by earlier records.")
    if unknown:
        without = "no earlier record has the same method and preset"
        notes.append(
            f"The time leaves out {counted(unknown, 'cell')}: {without}."
            if unknown + refused < len(units)
            else f"No estimate of the time: {without}."
        )
    if len(rows) > SHOWN:
        notes.insert(0, f"The table shows {SHOWN} of {len(rows):,} rows; --json has all.")
    totals = {"seconds": seconds, "without_estimate": unknown, "slots": slots, "jobs": len(jobs)}
    run = len(units) - refused
    title = f"{counted(len(cells), 'cell')}; {run} would run" + ", in this order" * bool(run)
    title += f"; {refused} refused" * bool(refused)
    return DryRun(rows, totals, title, notes)


def _expected(
    units: Sequence[Unit], packs: Sequence[Pack], times: Times, settings: Cluster, limit: Limits, slots: int
) -> float:
    """Return the seconds until all `units` are done, in `packs` if the launcher has jobs, `slots` at a time."""
    if not packs:
        number = {unit.key: index for index, unit in enumerate(units)}
        needs = [[number[key] for key in unit.after] for unit in units]
        start = START_SECONDS if units and settings.launcher == "local" else 0.0
        return start + total([times[unit.key] for unit in units], slots, needs)
    lasts, needs, number = list[RunningTime](), list[list[int]](), dict[str, int]()
    capped = settings.launcher == "slurm" and settings.parallel is not None
    orders = [Order(pack.keys, pack.after, pack.resources) for pack in packs]
    if settings.launcher == "slurm":
        submitted = [array for wave in waves_of(orders) for array in arrays(wave, capped, limit.array)]
    else:
        submitted = [orders]
    for together in submitted:
        before = [len(lasts) - 1] if capped and lasts else []
        for order in together:
            needs.append(before if capped else [number[key] for key in order.after])
            number.update(dict.fromkeys(order.keys, len(lasts)))
            known = [known.seconds for key in order.keys if (known := times[key]) is not None]
            lasts.append(RunningTime(START_SECONDS + sum(known), "the cells of a job run in turn"))
        if capped:  # the next array starts when all of this one have ended
            needs.append(list(range(len(lasts) - len(together), len(lasts))))
            lasts.append(RunningTime(0.0, "the end of an array"))
    return total(lasts, slots, needs)


def _limits(settings: Cluster, packs: Sequence[Pack]) -> Limits | None:
    """Return Slurm's limits for the jobs `packs`, none for another launcher; None if Slurm does not answer."""
    if settings.launcher != "slurm":
        return Limits()
    with contextlib.suppress(NoSlurmError):
        return limits(settings.of(name) for name in {pack.resources for pack in packs})
    return None


def _slots(settings: Cluster, packs: Sequence[Pack], limit: Limits) -> int:
    if settings.launcher == "slurm":
        most = [n for n in (len(packs), settings.parallel, limit.most) if n is not None]
        with contextlib.suppress(NoSlurmError):
            most.append(at_once(settings.of(name) for name in {pack.resources for pack in packs}))
        return max(1, min(most))
    if settings.launcher == "inline":
        return 1
    return (settings.jobs or available_cores()) if settings.launcher == "local" else settings.at_once()


@functools.cache
def _default(method: type[Method]) -> dict[str, Any]:
    return as_dict(method.Config())


def _planned(cell: Cell, state: State, risk: RiskTarget | None) -> dict[str, Any]:
    method = METHODS.get(cell.method)
    default, config = _default(method), as_dict(cell.config)
    claimed = ""
    if not cell.refused:
        claim = checked_claim(bound_method(cell).claimed(cell.delta), f"{cell.method}.claimed()")
        claimed = f"{claim.epsilon:.4g}"
    changed = [f"{name}={value}" for name, value in config.items() if name not in default or value != default[name]]
    return {
        "key": cell.key,
        "title": cell.title,
        "state": state.value,
        "claimed": claimed,
        "risk": "" if risk is None or cell.refused else f"{risk.measure} {risk_of(cell, risk):.4g}",
        "setting": "" if cell.refused else ", ".join(changed),
        "config": config,
        "delta": cell.delta,
        "refused": cell.refused,
    }
