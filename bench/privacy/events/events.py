"""The events of a ledger: one frozen value per run of a mechanism, with its parameters and no data.

An event gives its neighbours (`unit`, `adjacency`) and its data-independent cost: pure epsilon, Renyi divergence,
privacy loss distribution (PLD) and, for Gaussian noise, zCDP. :mod:`bench.privacy.accounting.accountants` composes
events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bench.core.errors import BenchError
from bench.core.printable import counted
from bench.privacy.events import losses
from bench.privacy.events.base_event import EVENTS, Event, Floats, positive, whole
from bench.privacy.events.batch_events import AllocatedSteps, FixedBatches, ShuffledEpochs
from bench.privacy.events.choice_events import Exponential, PermuteAndFlip
from bench.privacy.events.gaussian_events import BandedSums, Gaussian, GaussianEvent, TreeSums, discrete
from bench.privacy.events.label_events import PriorRandomizedResponse, RandomizedResponse, TopKRandomizedResponse
from bench.privacy.events.sampled_events import DPSGD, SampledGaussian, SampledGNMax
from bench.privacy.events.tuning import RepeatAndSelect

__all__ = [
    "DPSGD", "EVENTS", "AllocatedSteps", "BandedSums", "Bypass", "ConfidentGNMax", "Event", "Exponential",
    "FixedBatches", "GNMax", "Gaussian", "LNMax", "Laplace", "PermuteAndFlip", "PrintedTopK",
    "PriorRandomizedResponse", "RandomizedResponse", "RepeatAndSelect", "SampledGNMax", "SampledGaussian",
    "ShuffledEpochs", "TopKRandomizedResponse", "TreeSums",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LNMax(Event):
    """The arg max of vote counts with Laplace noise of scale ``1 / gamma``, for `queries` queries.

    Sensitivity: one record changes one teacher and so two counts per query by 1 each (L1 sensitivity 2); the cost is
    that of the whole noisy histogram. Unit: record; adjacency: replace (and add-remove if a record alone determines its
    teacher). With `secure_granularity` g the noise is exact discrete Laplace on steps of 1/g vote, of parameter gamma/g
    per step.

    The arg max alone is cheaper: at gamma 0.05 and delta 1e-5, 1,000 labels of two tied classes cost 7.49, whole
    histograms 11.35. We do not charge that: a two-way tie is not the worst case (a third tied class raises a label's
    divergence by 30%), and no bound below the histogram's is proven here for all votes.
    """

    gamma: float
    queries: int
    secure_granularity: int | None = None
    kind: ClassVar[str] = "lnmax"
    counted: ClassVar[str] = "queries"

    def __post_init__(self) -> None:
        positive("gamma of LNMax", self.gamma)
        whole("the number of LNMax queries", self.queries)
        if self.secure_granularity is not None:
            whole("the granularity of secure noise", self.secure_granularity)

    def describe(self) -> str:
        exact = "" if self.secure_granularity is None else f", exact discrete noise on 1/{self.secure_granularity} vote"
        return f"LNMax, gamma {self.gamma:g} (Laplace scale {1 / self.gamma:g}), {self.queries} queries{exact}"

    def pure_step(self) -> tuple[float, int]:
        """Return the pure epsilon ``2 gamma`` of one query, and the number of queries."""
        return 2 * self.gamma, self.queries

    def twice(self) -> dict[str, Any]:
        """See :meth:`bench.privacy.events.base_event.Event.twice`: two teachers may each move a vote."""
        steps = None if self.secure_granularity is None else 2 * self.secure_granularity
        return {"gamma": 2 * self.gamma, "secure_granularity": steps}

    @property
    def composed(self) -> int:
        """See :attr:`bench.privacy.events.base_event.Event.composed`: two counts per query."""
        return 2 * self.queries

    @property
    def loss_deviation(self) -> float:
        return self.gamma

    def rdp(self, orders: ArrayLike) -> Floats:
        """Return the Renyi divergence of two noisy counts per query, each changed by one vote."""
        if self.secure_granularity is None:
            return 2 * self.queries * losses.laplace_rdp(self.gamma, orders)
        return 2 * self.queries * losses.discrete_laplace_rdp(self.gamma, self.secure_granularity, orders)

    def pld(self, interval: float = losses.INTERVAL) -> Any | None:
        """Return the PLD of every query's noisy histogram."""
        return losses.laplace_pld(self.gamma, 2 * self.queries, interval, self.secure_granularity)


@dataclass(frozen=True, slots=True)
class GNMax(GaussianEvent):
    """The arg max of vote counts with Gaussian noise of deviation `sigma`; unit record, adjacency replace.

    Sensitivity: one moved vote changes two counts by 1 (L2 sensitivity ``sqrt(2)``). The arg max alone costs as much as
    the histogram in the worst case: for each epsilon some margin between two classes gives the label the same delta, as
    half-lines are the best tests of a shift.

    A label of a bounded number of teachers has a pure epsilon, too (Lebensold, Precup and Balle 2024,
    arXiv:2402.06137). We do not charge it: it helps one or two queries with much noise. Of 250 teachers and two
    classes, one label costs at least .163 at sigma 40 (the histogram .110 at delta 1e-5), and .031 (.040) at sigma
    100, but three labels .092 (.073) there.
    """

    sigma: float
    queries: int
    exact: bool = False
    kind: ClassVar[str] = "gnmax"
    counted: ClassVar[str] = "queries"

    def __post_init__(self) -> None:
        positive("sigma of GNMax", self.sigma)
        whole("the number of GNMax queries", self.queries)

    def describe(self) -> str:
        return f"GNMax, sigma {self.sigma:g}, {self.queries} queries{discrete(self.exact)}"

    def twice(self) -> dict[str, Any]:
        """See :meth:`bench.privacy.events.base_event.Event.twice`: two teachers may each move a vote."""
        return {"sigma": self.sigma / 2}

    def zcdp(self) -> float:
        """Return ``queries / sigma**2``."""
        return self.queries / self.sigma**2


@dataclass(frozen=True, slots=True)
class ConfidentGNMax(GaussianEvent):
    """GNMax on at most `max_answers` of `queries`: those whose noisy top count reaches `threshold`.

    Sensitivity: one moved vote changes the top count of every query by 1 (noise `sigma1`), and two counts of an
    answered query by 1 each (L2 sensitivity ``sqrt(2)``, noise `sigma2`). Earlier noise decides which queries are
    answered, which Gaussian composition allows for a bounded number of answers. Unit: record; adjacency: replace.
    """

    threshold: float
    sigma1: float
    sigma2: float
    queries: int
    max_answers: int
    exact: bool = False
    kind: ClassVar[str] = "confident-gnmax"

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise BenchError(f"the threshold of Confident-GNMax must be finite, not {self.threshold}.")
        positive("sigma1 of Confident-GNMax", self.sigma1)
        positive("sigma2 of Confident-GNMax", self.sigma2)
        whole("the number of Confident-GNMax queries", self.queries)
        whole("the largest number of answers", self.max_answers, 0)
        if self.max_answers > self.queries:
            raise BenchError(f"at most {self.queries} queries can be answered, not {self.max_answers}.")

    def describe(self) -> str:
        return (
            f"Confident-GNMax, threshold {self.threshold:g} with sigma {self.sigma1:g} on {self.queries} queries, "
            f"sigma {self.sigma2:g} on at most {self.max_answers} answers{discrete(self.exact)}"
        )

    def twice(self) -> dict[str, Any]:
        """See :meth:`bench.privacy.events.base_event.Event.twice`: two teachers may each move a vote."""
        return {"sigma1": self.sigma1 / 2, "sigma2": self.sigma2 / 2}

    def zcdp(self) -> float:
        """Return ``queries / (2 sigma1**2) + max_answers / sigma2**2``."""
        return self.queries / (2 * self.sigma1**2) + self.max_answers / self.sigma2**2


@dataclass(frozen=True, slots=True)
class Laplace(Event):
    """`count` releases with Laplace noise; `noise_multiplier` is scale over the caller's L1 sensitivity.

    With `grid_steps`, values and exact discrete Laplace noise lie on a grid, and the sensitivity is that many steps.
    """

    noise_multiplier: float
    count: int = 1
    grid_steps: int | None = None
    kind: ClassVar[str] = "laplace"
    counted: ClassVar[str] = "count"

    def __post_init__(self) -> None:
        positive("the noise multiplier of Laplace noise", self.noise_multiplier)
        whole("the number of Laplace releases", self.count)
        if self.grid_steps is not None:
            whole("the sensitivity in steps of the grid", self.grid_steps)

    def describe(self) -> str:
        exact = discrete(self.grid_steps is not None)
        return f"Laplace, noise {self.noise_multiplier:g} x sensitivity, {counted(self.count, 'release')}{exact}"

    def twice(self) -> dict[str, Any]:
        steps = None if self.grid_steps is None else 2 * self.grid_steps
        return {"noise_multiplier": self.noise_multiplier / 2, "grid_steps": steps}

    def pure_step(self) -> tuple[float, int]:
        """Return ``1 / noise_multiplier`` and the number of releases."""
        return 1 / self.noise_multiplier, self.count

    def rdp(self, orders: ArrayLike) -> Floats:
        """Return the Renyi divergence of a one-dimensional release, the worst case for this L1 sensitivity."""
        if self.grid_steps is None:
            return self.count * losses.laplace_rdp(1 / self.noise_multiplier, orders)
        return self.count * losses.discrete_laplace_rdp(1 / self.noise_multiplier, self.grid_steps, orders)

    def pld(self, interval: float = losses.INTERVAL) -> Any | None:
        """Return the PLD of a one-dimensional release, the worst case for this L1 sensitivity."""
        return losses.laplace_pld(1 / self.noise_multiplier, self.count, interval, self.grid_steps)


@dataclass(frozen=True, slots=True)
class Bypass(Event):
    """A use of private data outside any mechanism, with the reason; the ledger then has no guarantee."""

    reason: str
    kind: ClassVar[str] = "bypass"

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise BenchError("a bypass must give the reason why private data is used outside any mechanism.")

    def describe(self) -> str:
        return f"bypass: {self.reason}"

    def rdp(self, orders: ArrayLike) -> Floats:
        """Return infinity at every order."""
        return np.full(np.atleast_1d(np.asarray(orders)).shape, np.inf)


@dataclass(frozen=True, slots=True)
class PrintedTopK(Bypass):
    """DPSD's Eq. (5) as printed: not private, see `responses.printed_top_k`. Unit: query-label."""

    epsilon: float
    k: int
    classes: int
    answers: int
    kind: ClassVar[str] = "top-k-randomized-response-as-printed"
