"""Events of Gaussian noise on sums: single releases, and running sums over steps by a tree or by bands."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bench.core.errors import BenchError
from bench.core.printable import counted
from bench.privacy.events import losses
from bench.privacy.events.base_event import Event, Floats, positive, whole


class GaussianEvent(Event):
    """Gaussian noise: all runs of the event amount to one Gaussian release with the rho of :meth:`zcdp`.

    `exact` marks the exact discrete Gaussian, which no run draws any more: the Renyi bound holds for it, but not the
    exact figure or the PLD.
    """

    __slots__ = ()
    noise_multiplier: float
    exact: bool

    def twice(self) -> dict[str, Any]:
        return {"noise_multiplier": self.noise_multiplier / 2}

    @abc.abstractmethod
    def zcdp(self) -> float:
        """Return the rho of the whole event."""

    def gaussian_mu(self) -> float | None:
        """Return ``sqrt(2 rho)``, or None for the discrete Gaussian."""
        return None if self.exact else math.sqrt(2 * self.zcdp())

    def rdp(self, orders: ArrayLike) -> Floats:
        """Return ``order * rho``."""
        return self.zcdp() * np.asarray(orders, dtype=np.float64)

    def pld(self, interval: float = losses.INTERVAL) -> Any | None:
        """Return the PLD of the one Gaussian release, or None for the discrete Gaussian."""
        return losses.gaussian_pld(self.gaussian_mu(), interval)


@dataclass(frozen=True, slots=True)
class Gaussian(GaussianEvent):
    """`count` releases with Gaussian noise; `noise_multiplier` is deviation over the caller's L2 sensitivity."""

    noise_multiplier: float
    count: int = 1
    exact: bool = False
    kind: ClassVar[str] = "gaussian"
    counted: ClassVar[str] = "count"

    def __post_init__(self) -> None:
        positive("the noise multiplier of Gaussian noise", self.noise_multiplier)
        whole("the number of Gaussian releases", self.count)

    def describe(self) -> str:
        count = counted(self.count, "release")
        return f"Gaussian, noise {self.noise_multiplier:g} x sensitivity, {count}{discrete(self.exact)}"

    def zcdp(self) -> float:
        """Return ``count / (2 noise_multiplier**2)``."""
        return self.count / (2 * self.noise_multiplier**2)


@dataclass(frozen=True, slots=True)
class TreeSums(GaussianEvent):
    """Running sums over `steps` by a binary tree, `count` times, with Gaussian noise on each node.

    `noise_multiplier` is deviation over the caller's L2 sensitivity of one step's values. Sensitivity: a unit in one
    step is in at most ``floor(log2(steps)) + 1`` nodes, the first step's number; in several steps whose distances sum
    to the sensitivity it costs no more, as the sum of squares is convex in the distances. The values of a step may
    depend on earlier answers. Source: Kairouz et al. 2021 (arXiv:2103.00039), appendix D.
    """

    noise_multiplier: float
    steps: int
    count: int = 1
    exact: bool = False
    kind: ClassVar[str] = "tree-sums"
    counted: ClassVar[str] = "count"

    def __post_init__(self) -> None:
        positive("the noise multiplier of sums over steps", self.noise_multiplier)
        whole("the number of steps", self.steps)
        whole("the number of trees", self.count)

    def describe(self) -> str:
        trees = f"{self.count} trees of {self.steps} steps"
        return f"sums by {trees}, noise {self.noise_multiplier:g} x sensitivity a node{discrete(self.exact)}"

    def zcdp(self) -> float:
        """Return ``count * (floor(log2(steps)) + 1) / (2 noise_multiplier**2)``."""
        return self.count * self.steps.bit_length() / (2 * self.noise_multiplier**2)


MOST_BANDS = 10_000


@dataclass(frozen=True, slots=True)
class BandedSums(GaussianEvent):
    """Running sums over `steps` by the banded square root of the matrix of sums, `count` times, with Gaussian noise.

    `noise_multiplier` is deviation over the caller's L2 sensitivity of one step's values. Sensitivity: a unit is in at
    most one of any `separation` consecutive steps. As `separation` is at least `bands`, its steps move different
    releases and their squared columns add up, most for steps 0, `separation`, 2 `separation`, ... The values of a step
    may depend on earlier answers (Denisov et al. 2022, arXiv:2202.08312). Source: Choquette-Choo et al. 2023
    (arXiv:2306.08153); the coefficients are those of :func:`square_root`.
    """

    noise_multiplier: float
    steps: int
    bands: int
    separation: int
    count: int = 1
    exact: bool = False
    kind: ClassVar[str] = "banded-sums"
    counted: ClassVar[str] = "count"

    def __post_init__(self) -> None:
        positive("the noise multiplier of sums over steps", self.noise_multiplier)
        whole("the number of steps", self.steps)
        whole("the number of bands", self.bands)
        whole("the number of runs over the steps", self.count)
        whole("the separation", self.separation)
        if not self.bands <= min(self.separation, MOST_BANDS):
            raise BenchError(f"bands must be at most the separation, {self.separation}, and {MOST_BANDS:,}.")

    def describe(self) -> str:
        return (
            f"sums over {self.steps} steps by {self.bands} bands, at most one of {self.separation} steps in a row, "
            f"noise {self.noise_multiplier:g} x sensitivity, {self.count} times{discrete(self.exact)}"
        )

    @property
    def squared_sensitivity(self) -> float:
        """The largest squared L2 distance between the releases, for a sensitivity of 1 at each step."""
        column = np.cumsum(square_root(self.bands) ** 2)
        times = -(-self.steps // self.separation)
        last = self.steps - (times - 1) * self.separation  # the number of steps from the last participation on
        return float((times - 1) * column[-1] + column[min(last, self.bands) - 1])

    def zcdp(self) -> float:
        """Return ``count * squared_sensitivity / (2 noise_multiplier**2)``."""
        return self.count * self.squared_sensitivity / (2 * self.noise_multiplier**2)


def square_root(bands: int) -> Floats:
    """Return the first `bands` coefficients of ``(1 - x)^(-1/2)``, whose Toeplitz matrix squared sums all steps.

    This factor minimises the maximal error up to a constant (Fichtenberger, Henzinger and Upadhyay 2022,
    arXiv:2202.11205), truncated at `bands` (Kalinin and Lampert 2024, arXiv:2405.13763).
    """
    places = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * places - 1) / (2 * places))])


def discrete(exact: bool) -> str:
    """Return the end of a description: whether the noise is exact."""
    return ", exact discrete noise" if exact else ""
