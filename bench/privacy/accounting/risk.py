"""Bounds that a proven privacy curve gives on attacks on one record: membership inference, reconstruction from a prior.

With g(x) the largest probability, with the record, of a set of outputs that has probability x without it:

- the true positive rate of a membership test at false positive rate x is at most g(x), and its advantage, the true
  less the false positive rate, at most the largest g(x) - x;
- an attacker who names a record correctly with probability kappa before seeing the student does so with probability
  at most g(kappa) after (Hayes et al. 2023, arXiv:2302.07225, theorem 2; Kulynych et al. 2025, arXiv:2507.06969).

Both hold between the neighbours of the events' adjacency, in either direction, and for their privacy unit: under the
unit label it is the label that is reconstructed. What an attacker infers from other people's records is not bounded;
a bound on success says nothing about how far it exceeds the success without the student's record (arXiv:2603.12142).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from bench.core.errors import BenchError
from bench.core.risk_target import RiskTarget
from bench.privacy.accounting.accountants import basic, common_unit, rdp
from bench.privacy.accounting.distributions import composed_losses, gaussian_total, loss_distribution, merged
from bench.privacy.events import losses
from bench.privacy.events.base_event import Event, Floats
from bench.privacy.events.events import Bypass

Power = Callable[[Floats], Floats]
"""Maps probabilities x in [0, 1] to g(x), in one direction between the neighbours."""

PRIORS = (0.1, 0.01, 0.001)
"""Success of an attacker who has not seen the student: one of 10, 100 or 1,000 equally likely candidates."""
RATES = (0.01, 0.001)
"""False positive rates."""
DELTAS = tuple(10**-exponent for exponent in np.linspace(0.3, 10, 40))
"""Deltas whose epsilons bound the curve of events that have no privacy loss distribution."""
GRID = 201
"""Points of the three grids on which an advantage is searched, which make it at most 1e-6 too large."""
TANGENTS = 8001
"""Number of tangents to the curve."""
LARGEST_ROUNDING = 1e-8
"""Largest rounding error of a privacy loss distribution, which adds to every bound."""


@dataclass(frozen=True, slots=True)
class Risk:
    """Upper bounds on an attacker's success, all 1 after a bypass."""

    advantage: float
    """Largest true less false positive rate of a membership test."""
    tpr: tuple[float, ...]
    """Largest true positive rate at each of :data:`RATES`."""
    reconstruction: tuple[float, ...]
    """Largest probability of naming the record, for each of :data:`PRIORS`."""

    @classmethod
    def from_values(cls, values: Iterable[float]) -> Risk:
        """Return the risk with the `values` of :data:`NAMES`, in that order."""
        advantage, *others = values
        return cls(advantage, tuple(others[: len(RATES)]), tuple(others[len(RATES) :]))

    def as_dict(self) -> dict[str, float]:
        """Return the bounds by name: ``advantage``, ``tpr@0.01`` ..., ``reconstruction@0.1`` ..."""
        return {
            "advantage": self.advantage,
            **{f"tpr@{rate:g}": value for rate, value in zip(RATES, self.tpr, strict=True)},
            **{f"reconstruction@{prior:g}": value for prior, value in zip(PRIORS, self.reconstruction, strict=True)},
        }


NAMES = tuple(Risk(0.0, RATES, PRIORS).as_dict())
UNBOUNDED = Risk(1.0, (1.0,) * len(RATES), (1.0,) * len(PRIORS))


def risk(events: Sequence[Event], group: int = 1, coarseness: float = 1.0) -> Risk:
    """Return the bounds for one unit of the `events`, or for a `group` of units attacked together.

    A `coarseness` of 5 takes a fifth of the time and makes the bounds up to 0.5% looser.

    Raises :class:`BenchError` on a group below 1 or units that do not compose.
    """
    if not events:
        return Risk(0.0, RATES, PRIORS)
    if any(isinstance(event, Bypass) for event in events):
        return UNBOUNDED
    curve = _curve(tuple(merged(events)), group, coarseness)
    return Risk(curve.advantage(), tuple(curve.largest(RATES)), tuple(curve.largest(PRIORS)))


def reconstruction(events: Sequence[Event], prior: float, group: int = 1) -> float:
    """Return the largest probability that an attacker of success `prior` has after seeing the student.

    Raises :class:`BenchError` on a `prior` outside (0, 1), and as :func:`risk`.
    """
    if not 0 < prior < 1:
        raise BenchError(f"a prior is a probability between 0 and 1, not {prior:g}: 0.01 is one of 100 candidates.")
    if not events:
        return prior
    if any(isinstance(event, Bypass) for event in events):
        return 1.0
    return _curve(tuple(merged(events)), group).largest([prior])[0]


def bound_on(target: RiskTarget, events: Sequence[Event]) -> float:
    """Return the bound for one unit of the `events` on the measure of `target`."""
    # The largest true positive rate at a false positive rate is g as well.
    return risk(events).advantage if target.at is None else reconstruction(events, target.at)


@dataclass(frozen=True, slots=True)
class _Curve:
    """g in each direction between neighbours that differ in `group` units."""

    one: Sequence[Power]  # for neighbours that differ in one unit
    group: int

    def largest(self, probabilities: Sequence[float]) -> list[float]:
        """Return the larger g at `probabilities`."""
        at = np.array(probabilities)
        found: list[float] = np.max([self._along_path(power, at) for power in self.one], axis=0).tolist()
        return found

    def advantage(self) -> float:
        """Return the largest g(x) - x, from above."""
        return max(self._advantage(power) for power in self.one)

    def _advantage(self, power: Power) -> float:
        low, high = 0.0, 1.0
        for _ in range(2):  # g is concave, so the maximum is next to the grid's maximum
            grid = np.linspace(low, high, GRID)
            best = int((self._along_path(power, grid) - grid).argmax())
            low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
        grid = np.linspace(low, high, GRID)
        return min(1.0, float((self._along_path(power, grid[1:]) - grid[:-1]).max()))  # g increases

    def _along_path(self, power: Power, x: Floats) -> Floats:
        for _ in range(self.group):  # Dong, Roth and Su 2022, theorem 2.14
            x = np.clip(power(x), x, 1.0)
        return x


@lru_cache(maxsize=256)
def _curve(events: tuple[Event, ...], group: int, coarseness: float = 1.0) -> _Curve:
    if group < 1:
        raise BenchError(f"a group has at least one record, not {group}.")
    common_unit(events)
    mu = gaussian_total(events)
    if mu is not None:
        return _Curve([lambda x: np.asarray(special.ndtr(special.ndtri(x) + group * mu))], 1)
    return _Curve(_by_losses(events, coarseness) or [_by_epsilons(events)], group)


@lru_cache(maxsize=8)
def _by_losses(events: tuple[Event, ...], coarseness: float) -> list[Power] | None:
    if losses.rounding(composed_losses(events)) > LARGEST_ROUNDING:
        return None
    total = loss_distribution(events, coarseness)
    if total is None:
        return None
    return [least_of_lines(np.exp(epsilons), deltas) for epsilons, deltas in total.profiles(TANGENTS)]


def _by_epsilons(events: Sequence[Event]) -> Power:
    """Return the bound from epsilons at several deltas, by accountants that take milliseconds."""
    rows = [[accountant(events, delta) for accountant in (basic, rdp)] for delta in DELTAS]
    epsilons = np.array([min((row.epsilon for row in found if row is not None), default=np.inf) for found in rows])
    known = np.isfinite(epsilons) & (epsilons < 500)
    ratios, deltas = np.exp(epsilons[known]), np.array(DELTAS)[known]
    # The curve holds in both directions: P(S) <= e^epsilon Q(S) + delta, and so for the complement.
    return least_of_lines(np.concatenate([ratios, 1 / ratios]), np.concatenate([deltas, 1 - (1 - deltas) / ratios]))


def least_of_lines(slopes: Floats, intercepts: Floats) -> Power:
    """Return the least of the lines and of 1."""
    slopes, intercepts = np.append(slopes, 0.0), np.append(intercepts, 1.0)

    def least(x: Floats) -> Floats:
        parts = np.array_split(x, 1 + x.size // 100)
        return np.concatenate([np.min(slopes * part[:, None] + intercepts, axis=1) for part in parts])

    return least
