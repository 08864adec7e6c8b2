"""Contradictions in the papers: accuracies that differ, and drops that do not match the accuracies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.core.grouping import grouped
from bench.reports.reported.numbers import BASELINE, Reported
from bench.reports.reported.systems import PAPERS


@dataclass(frozen=True, slots=True)
class Conflict:
    """Different accuracies printed for the same system, data set, epsilon and setting."""

    system: str
    dataset: str
    epsilon: float
    rows: tuple[Reported, ...]


def conflicts(rows: Iterable[Reported]) -> list[Conflict]:
    """Return the conflicts, sorted; accuracies count as equal within one unit in the last digit of the coarser one."""
    groups = grouped(
        ((row.system, row.dataset, row.epsilon, row.setting), row)
        for row in rows
        if row.measure == "accuracy" and row.epsilon is not None and row.unit != "none"
    )
    found = [
        Conflict(system, dataset, epsilon, tuple(sorted(group, key=lambda r: (list(PAPERS).index(r.paper), r.table))))
        for (system, dataset, epsilon, _), group in groups.items()
        if any(not _same_number(group[0].value, other.value) for other in group[1:])
    ]
    return sorted(found, key=lambda c: (c.system, c.dataset, c.epsilon, c.rows[0].setting))


def _same_number(one: float, other: float) -> bool:
    places = min(len(repr(float(value)).partition(".")[2]) for value in (one, other))
    return abs(one - other) <= 10.0**-places + 1e-9


@dataclass(frozen=True, slots=True)
class DropError:
    """A printed drop that differs from baseline minus accuracy. All values are in points or %."""

    drop: Reported
    baseline: Reported
    accuracy: Reported

    @property
    def difference(self) -> float:
        """Baseline minus accuracy, as printed."""
        return self.baseline.value - self.accuracy.value


def drop_errors(rows: Sequence[Reported]) -> list[DropError]:
    """Return the drops that are off by more than rounding, in row order; skip those without :func:`drop_parts`."""
    errors = []
    for drop in rows:
        parts = drop_parts(drop, rows) if drop.measure == "drop" else None
        if parts is not None:
            error = DropError(drop, *parts)
            # Three numbers with at most two decimals each contribute half a unit of rounding error.
            if abs(error.difference - drop.value) > 0.015 + 1e-9:
                errors.append(error)
    return errors


def drop_parts(drop: Reported, rows: Iterable[Reported]) -> tuple[Reported, Reported] | None:
    """Return the baseline (same setting) and accuracy (same epsilon) of a drop, or None if the paper lacks one."""
    here = [r for r in rows if (r.paper, r.dataset, r.measure) == (drop.paper, drop.dataset, "accuracy")]
    baseline = next((r for r in here if r.system == BASELINE and r.setting == drop.setting), None)
    accuracy = next(
        (
            r
            for r in here
            if (r.system, r.epsilon, r.setting) == (drop.system, drop.epsilon, "") and not r.table.startswith("text")
        ),
        None,
    )
    return None if baseline is None or accuracy is None else (baseline, accuracy)
