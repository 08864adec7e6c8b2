"""When a launch at work ends, from what it has done so far: packing, slots and waits in a queue are in its own pace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.launchers.runtime_estimate import RunningTime, total


@dataclass(frozen=True, slots=True)
class Progressed:
    """One result of a launch: what it is like, its seconds and its age, the seconds since it began.

    Both are None if it has not begun; if it runs, its seconds are those so far.
    """

    kind: tuple[str, ...]
    seconds: float | None = None
    age: float | None = None
    done: bool = False


def remaining(results: Sequence[Progressed]) -> float | None:
    """Return the seconds until all `results` are done; None before the first is.

    A result that is left takes the median of those of its kind, or of all. Results begin in their order, as many at a
    time as now or on average so far, with the same breaks between them as so far.
    """
    elapsed = max((result.age or 0.0 for result in results), default=0.0)
    took: Mapping[tuple[str, ...], list[float]] = defaultdict(list)
    for result in results:
        if result.done and result.seconds is not None:
            took[result.kind].append(result.seconds)
    every = [seconds for kind in took.values() for seconds in kind]
    pace = sum(result.seconds or 0.0 for result in results) / elapsed if elapsed > 0 else 0.0
    if not every or not pace or any(result.done and result.age is None for result in results):
        return None
    slots = max(1, round(pace), sum(result.seconds is not None and not result.done for result in results))
    begun = sorted((result for result in results if not result.done), key=lambda result: result.seconds is None)
    left = [max(0.0, median(took[result.kind] or every) - (result.seconds or 0.0)) for result in begun]
    times = [RunningTime(seconds, "") for seconds in left]
    return total(times, slots) * slots / pace
