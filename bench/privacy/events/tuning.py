"""The cost of tuning: a random number of identically distributed runs, of which only the best is released.

The number of runs is truncated negative binomial with a `shape` (0 logarithmic, 1 geometric) and stays secret. A run
draws its candidate at random from a fixed list, trains, and scores the result on public data or by a charged, noisy
answer; the score is part of the run. Renyi divergences: Papernot and Steinke, ICLR 2022 (arXiv:2110.03620), theorem 2.
Privacy profiles, after Koskela, Redberg and Wang, ICML 2024 (arXiv:2402.06701): with ``delta(e)`` the profile of one
run, m the mean and gamma the law's parameter, the release has, at e1 and for every e >= 0, at most a delta of
``m delta(e1 - (shape + 1) log f)`` with ``f = max(e^e, 1 + (1 - gamma) / gamma delta(e))``. Why: the best run's density
is a run's density times the derivative of the law's generating function at the share of runs that are no better. With b
the share of better runs the derivative is proportional to ``(gamma + (1 - gamma) b)^-(shape + 1)``, and at most m. For
the neighbour b is at most ``e^e b + delta(e)``, so the base grows by a weighted average of the two numbers in f: the
first with weight ``(1 - gamma) b``, the second with gamma. (The paper adds them, less 1; f is least where they are
equal.)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from bench.core.errors import BenchError
from bench.core.types import Adjacency
from bench.privacy.events.base_event import Event, Floats

Runs = tuple[tuple[Event, ...], ...]


def check_law(mean: float, shape: float) -> None:
    """Raise :class:`BenchError` unless `mean` is finite and at least 1, and `shape` finite and at least 0."""
    if not (math.isfinite(mean) and mean >= 1):
        raise BenchError(f"the mean number of trials must be finite and at least 1, not {mean:g}. Try 10.")
    if mean > 1e9:
        raise BenchError(f"the mean number of trials must be at most 1e9, not {mean:g}. Try 10.")
    if not (math.isfinite(shape) and shape >= 0):
        raise BenchError(f"the shape of the law of trials must be finite and at least 0, not {shape:g}. Try 1.")


def gamma_of(mean: float, shape: float) -> float:
    """Return the parameter gamma, in (0, 1], of the distribution of trials with this `mean` and `shape`."""
    check_law(mean, shape)
    if mean == 1 or shape == 1:
        return 1 / mean

    def excess(log_gamma: float) -> float:
        return math.log(math.expm1(-log_gamma) / (-log_gamma * special.exprel(shape * log_gamma)) / mean)

    most = -1e-12  # beyond this nothing changes: a mean this close to 1 counts as slightly more
    return math.exp(most if excess(most) >= 0 else float(optimize.brentq(excess, -2 * math.log(mean) - 9, most)))


def draw_trials(mean: float, shape: float, uniform: float | None = None) -> int:
    """Return a number of trials: the inverse distribution function at `uniform`, by default system randomness.

    The number is secret: neither show it nor keep anything that reveals it.
    """
    gamma, left = gamma_of(mean, shape), random.SystemRandom().random() if uniform is None else uniform
    if gamma == 1:
        return 1
    mass = (1 - gamma) / (-math.log(gamma) * special.exprel(-shape * math.log(gamma)))
    trials = 1
    while left > mass > 0:
        left -= mass
        mass *= (1 - gamma) * (trials + shape) / (trials + 1)
        trials += 1
    return trials


@dataclass(frozen=True, slots=True)
class RepeatAndSelect(Event):
    """The best of a random number of trials; `runs` holds each candidate's events.

    Candidates with the same cost count once; otherwise each bound takes the worst at each order or epsilon, which holds
    for any distribution over candidates. `runs` may be given as in a record: lists of dictionaries.
    """

    runs: Runs
    mean: float
    shape: float = 1.0
    kind: ClassVar[str] = "repeat-and-select"

    def __post_init__(self) -> None:
        check_law(self.mean, self.shape)
        parsed = tuple(tuple(e if isinstance(e, Event) else Event.from_dict(e) for e in run) for run in self.runs)
        if not parsed or not all(parsed):
            raise BenchError("tuning needs at least one candidate, and each at least one event.")
        for event in (event for run in parsed for event in run):
            if (event.unit, event.adjacency) != (self.unit, self.adjacency):
                raise BenchError(
                    f"tuning is for one {self.unit.value} under {self.adjacency.value}, and {event.kind} protects one "
                    f"{event.unit.value} under {event.adjacency.value}. State all for the same."
                )
        object.__setattr__(self, "runs", tuple(dict.fromkeys(parsed)))

    def describe(self) -> str:
        law = {0.0: "logarithmic", 1.0: "geometric"}.get(self.shape, f"of shape {self.shape:g}")
        runs = " or ".join(", ".join(event.describe() for event in run) for run in self.runs)
        return f"the best of a random number of trials ({law}, mean {self.mean:g}), each {runs}"

    def replaced(self) -> RepeatAndSelect:
        runs = tuple(tuple(event.replaced() for event in run) for run in self.runs)
        return replace(self, runs=runs, adjacency=Adjacency.REPLACE)

    def as_dict(self) -> dict[str, Any]:
        # Not super(): a dataclass with slots replaces the class in which this method was defined.
        return {**Event.as_dict(self), "runs": [[event.as_dict() for event in run] for run in self.runs]}

    def pure_step(self) -> tuple[float, int] | None:
        """Return ``(2 + shape)`` times the pure epsilon of a trial (arXiv:2110.03620), once."""
        epsilon = max(sum(event.pure_epsilon() for event in run) for run in self.runs)
        return ((2 + self.shape) * epsilon, 1) if math.isfinite(epsilon) else None

    def rdp(self, orders: ArrayLike) -> Floats:
        """Return the bound of theorem 2; its second order is also one of `orders`."""
        order = np.atleast_1d(np.asarray(orders, dtype=np.float64))
        one = np.max([np.sum([event.rdp(order) for event in run], axis=0) for run in self.runs], axis=0)
        extra = (1 + self.shape) * np.min((1 - 1 / order) * one - math.log(gamma_of(self.mean, self.shape)) / order)
        found = one + math.log(self.mean) / (order - 1) + extra
        # A Renyi divergence grows with the order, so higher orders' bounds tighten the loose ones at low orders.
        return np.minimum([found[order >= least].min() for least in order], self.pure_epsilon())

    def epsilon_by_profile(
        self, delta: float, epsilon_at: Callable[[Sequence[Event], float], float],
        delta_at: Callable[[Sequence[Event], float], float],
    ) -> float:  # fmt: skip
        """Return the epsilon at `delta` from the runs' privacy profiles: epsilon at a delta, and its inverse."""
        one = max(epsilon_at(run, delta / self.mean) for run in self.runs)
        odds = 1 / gamma_of(self.mean, self.shape) - 1

        def log_other(epsilon: float) -> float:
            return math.log1p(odds * max(delta_at(run, epsilon) for run in self.runs))

        # The bound holds at every epsilon, so an inexact root is sound.
        most = log_other(0.0)
        at = optimize.brentq(lambda e: e - log_other(e), 0.0, most, xtol=1e-9) if most else 0.0
        return one + (self.shape + 1) * max(at, log_other(at))
