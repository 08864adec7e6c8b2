"""Events of Gaussian noise on Poisson samples, re-exported by :mod:`bench.privacy.events.events`.

Let one record move the true answer by at most C, and let N_w be the mechanism's Gaussian noise around a shift w. For
*add-remove* neighbours (called *zero-out* if the number of records is public: the record's contribution is absent) the
pair ``(1 - q) N_0 + q N_C`` and ``N_0`` dominates, in both orders (Zhu, Dong, Wang, AISTATS 2022, theorem 11).

For *replace* neighbours the outputs are ``P = (1 - q) N_0 + q N_u`` and ``Q = (1 - q) N_0 + q N_v``, given the sample
of the other records. For alpha >= 1 their hockey-stick divergence is ``q E[(1 - alpha e^X - b e^Y)+]`` with
``b = (alpha - 1) (1 - q) / q``, where ``e^X`` and ``e^Y`` are the likelihood ratios of N_v and N_0 to N_u: lognormal of
mean 1, with covariances ``|v - u|^2``, ``|u|^2`` and ``|u|^2 - <u, v>`` over the variance. The function is convex in
them, so by Kahane's inequality (1986) the divergence grows with each covariance. Hence, with C = 1:

- for bounded answers, ``|u|, |v| <= 1``, all three are largest at u = 1, v = -1: that pair dominates;
- for neighbours' votes, u and v displace the same vote, so ``|u|, |v|, |u - v| <= C``, and all three are largest at
  v = 0: at alpha >= 1 the curve of add-remove bounds both orders, which gives the rest of the curve by its symmetry. No
  two records attain both halves at once: the bound is loose for small rates with little noise, by up to sqrt(2) in mu.

Dominating pairs compose even if later queries depend on earlier answers.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bench.core.errors import BenchError
from bench.core.lazy_libraries import dp_accounting
from bench.core.types import Adjacency
from bench.privacy.events import composing, losses, sampled_losses
from bench.privacy.events.base_event import Event, Floats, positive, whole


class SampledGaussianEvent(Event):
    """Runs of a Gaussian mechanism, each on a fresh Poisson sample of the records; unit record."""

    __slots__ = ()
    name: ClassVar[str] = "DP-SGD"
    sampling_rate: float
    noise_multiplier: float

    @property
    def relative_noise(self) -> float:
        """The noise's deviation over the largest move of the answer by a sampled record."""
        return self.noise_multiplier

    @property
    def runs(self) -> int:
        """The number of samples."""
        return int(getattr(self, self.counted))

    @property
    def moves(self) -> int:
        """How far replacing a sampled record moves the answer, in units of the largest move by one record."""
        return 2 if self.adjacency is Adjacency.REPLACE and not self.symmetric else 1

    @property
    def symmetric(self) -> bool:
        """Whether add-remove's curve at epsilon >= 0, extended symmetrically, bounds these neighbours."""
        return False

    def __post_init__(self) -> None:
        positive(f"the sampling rate of {self.name}", self.sampling_rate)
        if self.sampling_rate > 1:
            raise BenchError(f"the sampling rate of {self.name} is at most 1, not {self.sampling_rate}.")
        positive(f"the noise of {self.name}", self.relative_noise)
        whole(f"the number of runs of {self.name}", self.runs)

    def zcdp(self) -> float | None:
        """Return rho if every sample holds every record, else None."""
        return self.runs * self._whole_rho if self.sampling_rate == 1 else None

    @property
    def _whole_rho(self) -> float:
        return (self.moves / self.relative_noise) ** 2 / 2

    def rdp(self, orders: ArrayLike) -> Floats:
        """Return the Renyi divergence of the dominating pairs."""
        order = np.atleast_1d(np.asarray(orders, dtype=np.float64))
        bound = order * self._whole_rho
        if self.sampling_rate < 1:
            bound = np.minimum(bound, self._sampled_rdp(order))
        return self.runs * bound

    def _sampled_rdp(self, order: Floats) -> Floats:
        """Return the Renyi divergence of one run with a sampling rate below 1."""
        if self.symmetric:
            return symmetric_rdp(self.relative_noise, self.sampling_rate, order)
        return _run_rdp(self.relative_noise, self.sampling_rate, tuple(order.tolist()), self.moves == 2)

    def pld(self, interval: float = losses.INTERVAL) -> Any | None:
        """Return the PLD of all runs, in both orders of the neighbours."""
        mu = self.gaussian_mu()
        if mu is not None:
            return losses.gaussian_pld(mu, interval)
        return composing.many_composed(self._sampled_pld, self.runs, interval, self.loss_deviation)

    def _sampled_pld(self, interval: float) -> Any:
        if self.symmetric:
            return sampled_losses.symmetric_gaussian_pld(self.relative_noise, self.sampling_rate, interval)
        replaced = self.moves == 2
        return sampled_losses.sampled_gaussian_pld(self.relative_noise, self.sampling_rate, interval, replaced=replaced)

    @property
    def loss_deviation(self) -> float:
        replaced = self.moves == 2
        return sampled_losses.loss_deviation(self.relative_noise, self.sampling_rate, replaced=replaced)

    @property
    def loss_spread(self) -> float:
        """The approximate width of the loss of one run or of all runs, whichever is wider."""
        one = losses.gaussian_spread(self.moves / self.relative_noise)
        # The variance of a run's loss divided by the squared sampling rate, from its likelihood ratio to N_0.
        square = min(self.relative_noise**-2, 50.0)
        variance = math.expm1(square) if self.moves == 1 else 4 * math.sinh(square)
        several = losses.gaussian_spread(self.sampling_rate * math.sqrt(self.runs * variance))
        return max(one, min(self.runs * one, several))


MOST_SUMMED = 2000
"""The largest order of which dp-accounting's sum of as many terms is taken."""


@lru_cache(maxsize=1024)
def _run_rdp(noise: float, rate: float, orders: tuple[float, ...], replaced: bool) -> Floats:
    """Return one run's Renyi divergence; read-only.

    For add-remove neighbours this is dp-accounting's value, on which published claims rest. It exceeds the exact value
    at fractional orders and is infinite near order 1, where its series does not converge. At tiny rates it rounds below
    the exact value, which then replaces it, and also at high orders, where it takes long. For replace neighbours it is
    the exact value, but at least add-remove's.
    """
    high = np.asarray(orders) > MOST_SUMMED
    if high.any():
        both = sampled_losses.sampled_gaussian_rdp(noise, rate, orders, replaced=replaced)
        if not high.all():
            both[~high] = _run_rdp(noise, rate, tuple(np.asarray(orders)[~high].tolist()), replaced)
        both.flags.writeable = False
        return both
    accountant = dp_accounting.rdp.RdpAccountant(orders)
    # Silence the warning if the series does not converge.
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)))
    finally:
        logger.setLevel(before)
    divergence: Floats = np.array(accountant.rdp, dtype=np.float64)
    small = divergence < 1e-6  # where rounding of a logarithm near 0 matters
    if small.any():
        exact = sampled_losses.sampled_gaussian_rdp(noise, rate, np.asarray(orders)[small])
        low = np.isfinite(exact) & (divergence[small] < (1 - 1e-9) * exact)
        divergence[small] = np.where(low, exact, divergence[small])
    if replaced:
        finite = np.where(np.isfinite(divergence), divergence, 0.0)
        divergence = np.maximum(finite, sampled_losses.sampled_gaussian_rdp(noise, rate, orders, replaced=True))
    divergence.flags.writeable = False
    return divergence


def symmetric_rdp(noise: float, rate: float, order: Floats) -> Floats:
    """Return one run's Renyi divergence for the symmetric curve of :func:`sampled_losses.symmetric_gaussian_pld`."""
    one = _run_rdp(noise, rate, tuple(order.tolist()), False)
    # The curve at alpha < 1 adds at most as much to the integral of E[(P/Q)^order] as the curve at alpha > 1.
    return one + np.log1p(-np.expm1(-(order - 1) * one)) / (order - 1)


@dataclass(frozen=True, slots=True)
class DPSGD(SampledGaussianEvent):
    """`steps` steps of DP-SGD on Poisson batches at `sampling_rate`; unit record.

    Sensitivity: a record adds a clipped gradient to a batch's sum; `noise_multiplier` is deviation over the clip norm.
    Runs are charged for add-remove neighbours; the event also accounts for replace.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    adjacency: Adjacency = field(default=Adjacency.ADD_REMOVE, kw_only=True)
    kind: ClassVar[str] = "dp-sgd"
    counted: ClassVar[str] = "steps"

    def describe(self) -> str:
        return f"DP-SGD, sampling rate {self.sampling_rate:g}, noise {self.noise_multiplier:g}, {self.steps} steps"


@dataclass(frozen=True, slots=True)
class SampledGaussian(SampledGaussianEvent):
    """`count` sums of bounded vectors, each over a Poisson sample of the records, with Gaussian noise; unit record.

    Sensitivity: a record (or a client, if that is the unit) adds one vector to a sum; `noise_multiplier` is deviation
    over the vectors' largest L2 norm. It also covers a bounded number that depends on the sample in any way, with the
    width of its range as the norm.
    """

    sampling_rate: float
    noise_multiplier: float
    count: int = 1
    adjacency: Adjacency = field(default=Adjacency.ADD_REMOVE, kw_only=True)
    kind: ClassVar[str] = "sampled-gaussian"
    counted: ClassVar[str] = "count"
    name: ClassVar[str] = "sampled Gaussian noise"

    def describe(self) -> str:
        noise = f"noise {self.noise_multiplier:g} x norm"
        return f"sampled Gaussian, sampling rate {self.sampling_rate:g}, {noise}, {self.count} sums"


@dataclass(frozen=True, slots=True)
class SampledGNMax(SampledGaussianEvent):
    """The arg max of the votes of the nearest sampled records, with Gaussian noise of deviation `sigma`; unit record.

    Sensitivity: a sampled record adds its vote and displaces at most one neighbour's: two counts move by 1 (L2
    sensitivity ``sqrt(2)``), under add-remove and under replace.
    """

    sampling_rate: float
    sigma: float
    queries: int
    adjacency: Adjacency = field(default=Adjacency.ADD_REMOVE, kw_only=True)
    kind: ClassVar[str] = "sampled-gnmax"
    counted: ClassVar[str] = "queries"
    name: ClassVar[str] = "sampled GNMax"

    @property
    def relative_noise(self) -> float:
        return self.sigma / math.sqrt(2)

    @property
    def symmetric(self) -> bool:
        """See the module: replaced votes that displace the same vote are no farther apart."""
        return self.adjacency is Adjacency.REPLACE

    def describe(self) -> str:
        return f"sampled GNMax, sampling rate {self.sampling_rate:g}, sigma {self.sigma:g}, {self.queries} queries"
