"""What a run would do: order, jobs and time, for ``run --dry-run`` and for packing cells into jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.config import Preset, Reuse
from bench.experiments.plan import Cell, states
from bench.launchers.runtime_estimate import Costs, Estimate, Forecast, earlier_records, total, words
from bench.launchers.schedule import Pack, Unit, packs_of, shared_names, waves_of
from bench.launchers.settings import Cluster, resources_of
from bench.results.run_dir import RunDir
from bench.training.processes import available_cores

TINY_SECONDS = 10.0
"""What a cell of the tiny preset is taken for where nobody knows: none of them wants a job of its own."""


def estimates(units: Sequence[Unit], run_dir: RunDir) -> dict[str, Estimate | None]:
    """Return how long each of `units` may take, by earlier records; None where there are none."""
    costs = Costs.from_records(earlier_records(run_dir.records_path))
    made: set[str] = set()
    found: dict[str, Estimate | None] = {}
    for unit in units:
        names = set(shared_names(unit.cell))
        estimate = costs.estimate(unit.cell, makes=bool(names - made))
        if unit.shard is None or unit.shard[0] + 1 == unit.shard[1]:
            made |= names
        if unit.shard is not None and estimate is not None:
            estimate = Estimate(estimate.seconds / unit.shard[1], f"{estimate.basis}, split")
        found[unit.key] = estimate
    return found


def jobs_of(units: Sequence[Unit], run_dir: RunDir, settings: Cluster) -> list[Pack]:
    """Return the jobs that `units` are packed into for Slurm."""
    known = estimates(units, run_dir)

    def seconds(unit: Unit) -> float | None:
        estimate = known[unit.key]
        if estimate is not None:
            return estimate.seconds
        return TINY_SECONDS if unit.cell.preset is Preset.TINY else None

    target = 60 * min(settings.pack, 0.5 * settings.time)
    return packs_of(units, seconds, lambda unit: resources_of(settings, unit.cell), target)


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would do. Each of `rows` is a cell or a shard, in the order of their runs; those done come last."""

    rows: list[dict[str, Any]]
    cells: int
    makers: int
    jobs: list[Pack]
    slots: int
    time: Forecast
    launcher: str
    parallel: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "cells": self.rows,
            "seconds": self.time.seconds,
            "without_estimate": self.time.unknown,
            "slots": self.slots,
            "jobs": len(self.jobs),
        }

    def table(self) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
        """Return title, columns and rows of a table."""
        slurm = self.launcher == "slurm"
        columns = ("state", "cell", "runs after", "estimate", *(("job",) if slurm else ()), "why not")
        rows = [
            (
                row["state"],
                row["title"],
                "; ".join(row["after"]),
                "" if row["state"] == "done" else "unknown" if row["seconds"] is None else words(row["seconds"]),
                *((str(row["job"] or ""),) if slurm else ()),
                row["refused"],
            )
            for row in self.rows
        ]
        would = sum(row["state"] != "done" for row in self.rows)
        return f"{self.cells} cells; {would} would run, in this order", columns, rows

    def lines(self) -> list[str]:
        """Return what there is to say of all of them."""
        said = []
        if self.makers:
            said.append(f"{self.makers} of them make what others share: these run after them, and find it.")
        if self.launcher == "slurm":
            most = self.parallel or "any number"
            said.append(f"{len(self.jobs)} jobs of Slurm in {len(waves_of(self.jobs))} waves, {most} at a time.")
        if self.time.unknown < sum(row["state"] != "done" for row in self.rows):
            said.append(f"Time: {words(self.time.seconds)} with {self.slots} at a time, by earlier records.")
        if self.time.unknown:
            said.append(
                f"{self.time.unknown} have no earlier record of their method and preset: their time is not known, and "
                "not in the sum."
            )
        return said


def forecast(cells: Sequence[Cell], units: Sequence[Unit], run_dir: RunDir, settings: Cluster, reuse: Reuse) -> DryRun:
    """Return what a run of `cells` would do, of which `units` are not done yet."""
    state = states(cells, run_dir, reuse)
    known = estimates(units, run_dir)
    title_of = {unit.key: unit.title for unit in units}
    number_of = {unit.key: number for number, unit in enumerate(units)}
    jobs = jobs_of(units, run_dir, settings) if settings.launcher == "slurm" else []
    job_of = {unit.key: number for number, pack in enumerate(jobs, 1) for unit in pack.units}
    slots = {"inline": 1, "local": settings.jobs or available_cores(), "slurm": settings.parallel or len(jobs) or 1}
    rows = [
        _row(unit, state[unit.cell.key].value, [title_of[key] for key in unit.after], known[unit.key], job_of)
        for unit in units
    ]
    rows += [
        {"key": cell.key, "title": cell.title, "state": "done", "after": [], "seconds": None, "basis": "", "job": None,
         "refused": ""}
        for cell in cells if cell.key not in number_of
    ]  # fmt: skip
    return DryRun(
        rows=rows,
        cells=len(cells),
        makers=len({key for unit in units for key in unit.after}),
        jobs=jobs,
        slots=slots[settings.launcher],
        time=total(
            [known[unit.key] for unit in units],
            slots[settings.launcher],
            [[number_of[key] for key in unit.after] for unit in units],
        ),
        launcher=settings.launcher,
        parallel=settings.parallel,
    )


def _row(unit: Unit, state: str, after: list[str], known: Estimate | None, job_of: dict[str, int]) -> dict[str, Any]:
    return {
        "key": unit.key,
        "title": unit.title,
        "state": state,
        "after": after,
        "seconds": None if known is None else known.seconds,
        "basis": "" if known is None else known.basis,
        "job": job_of.get(unit.key),
        "refused": unit.cell.refused,
    }
