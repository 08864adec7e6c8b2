"""Where the papers contradict each other or themselves: accuracies that differ, drops that do not follow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.reported.numbers import BASELINE, PAPERS, Reported


@dataclass(frozen=True, slots=True)
class Conflict:
    """Different numbers for what should be one: the same system, data set, epsilon and setting."""

    system: str
    dataset: str
    epsilon: float
    rows: tuple[Reported, ...]


def conflicts(rows: Iterable[Reported]) -> list[Conflict]:
    """Return where papers, or two places of one paper, print different accuracies for the same thing.

    Sorted. Numbers that differ by no more than one unit of the last printed place of the coarser one are the same.
    """
    groups: dict[tuple[str, str, float, str], list[Reported]] = defaultdict(list)
    for row in rows:
        if row.measure == "accuracy" and row.epsilon is not None and row.unit != "none":
            groups[row.system, row.dataset, row.epsilon, row.setting].append(row)
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
    """A printed drop that is not the baseline less the accuracy. All in points or %."""

    drop: Reported
    baseline: Reported
    accuracy: Reported

    @property
    def difference(self) -> float:
        """The drop that the printed accuracies give."""
        return self.baseline.value - self.accuracy.value


def drop_errors(rows: Sequence[Reported]) -> list[DropError]:
    """Return the printed drops that differ from baseline minus accuracy by more than rounding, in the rows' order.

    A drop belongs to the baseline of its paper, data set and setting, and to the accuracy that a table of its paper
    prints for its system at its epsilon. Drops for which either is missing are left out; see :func:`drop_parts`.
    """
    errors = []
    for drop in rows:
        parts = drop_parts(drop, rows) if drop.measure == "drop" else None
        if parts is not None:
            error = DropError(drop, *parts)
            # Both terms and the drop are rounded to the second place at most: half a unit each.
            if abs(error.difference - drop.value) > 0.015 + 1e-9:
                errors.append(error)
    return errors


def drop_parts(drop: Reported, rows: Iterable[Reported]) -> tuple[Reported, Reported] | None:
    """Return the baseline and the accuracy that a printed drop is the difference of; None where one is not printed."""
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
