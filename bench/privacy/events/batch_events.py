"""Events of DP-SGD whose batches are not Poisson samples, re-exported by :mod:`bench.privacy.events.events`.

A record adds a clipped gradient to a batch's sum; `noise_multiplier` is deviation over the clip norm. The number of
records is public: an absent record leaves an empty place (zero-out), which is drawn like a record and adds nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bench.core.types import Adjacency, Sampling
from bench.privacy.events import allocation, composing, losses
from bench.privacy.events.base_event import Event, Floats, positive, whole
from bench.privacy.events.gaussian_events import GaussianEvent
from bench.privacy.events.sampled_events import DPSGD, SampledGaussianEvent


@dataclass(frozen=True, slots=True)
class AllocatedSteps(Event):
    """`epochs` epochs of `steps` steps of DP-SGD; each record is in one batch of each epoch; unit record.

    It chooses the batch uniformly and independently of other records (random allocation, balls and bins). Source and
    proof: :mod:`bench.privacy.events.allocation`. An epoch that ends early costs as much as a whole one at most.
    """

    noise_multiplier: float
    steps: int
    epochs: int = 1
    adjacency: Adjacency = field(default=Adjacency.ADD_REMOVE, kw_only=True)
    kind: ClassVar[str] = "dp-sgd-random-allocation"
    counted: ClassVar[str] = "epochs"

    def __post_init__(self) -> None:
        positive("the noise of DP-SGD", self.noise_multiplier)
        whole("the number of steps of an epoch", self.steps)
        whole("the number of epochs", self.epochs)

    def describe(self) -> str:
        each = f"each record in 1 of {self.steps} random steps of an epoch"
        return f"DP-SGD, {each}, noise {self.noise_multiplier:g}, {self.epochs} epochs"

    @property
    def _moves(self) -> int:
        return 2 if self.adjacency is Adjacency.REPLACE else 1

    def zcdp(self) -> float | None:
        """Return rho for epochs of one step, else None."""
        return self.epochs * (self._moves / self.noise_multiplier) ** 2 / 2 if self.steps == 1 else None

    def rdp(self, orders: ArrayLike) -> Floats:
        """Return a bound on the Renyi divergence, for replace neighbours by its weak triangle inequality.

        Mironov 2017, proposition 11, with the absent record in between; or that of known steps if less.
        """
        order = np.atleast_1d(np.asarray(orders, dtype=np.float64))

        def absent(at: Floats) -> Floats:
            return allocation.allocated_gaussian_rdp(self.noise_multiplier, self.steps, tuple(at.tolist()))

        if self.adjacency is Adjacency.ADD_REMOVE:
            return self.epochs * absent(order)
        between = (order - 0.5) / (order - 1) * absent(2 * order) + absent(2 * order - 1)
        return self.epochs * np.minimum(between, 2 * order / self.noise_multiplier**2)

    def pld(self, interval: float = losses.INTERVAL) -> Any | None:
        """Return the PLD of all epochs."""
        replaced = self.adjacency is Adjacency.REPLACE
        one = partial(allocation.allocated_gaussian_pld, self.noise_multiplier, self.steps, replaced=replaced)
        return composing.many_composed(one, self.epochs, interval, math.sqrt(self._variance))

    def blur(self, interval: float) -> None:
        """Return None: sums of likelihood ratios are rounded too."""

    @property
    def _variance(self) -> float:
        """The approximate variance of the loss of an epoch."""
        return self._moves**2 * math.expm1(min(self.noise_multiplier**-2, 50.0)) / self.steps

    @property
    def composed(self) -> int:
        """The number of steps: each adds to the rounding error."""
        return self.epochs * self.steps

    @property
    def loss_spread(self) -> float:
        """The approximate width of the loss of one epoch or of all, whichever is wider."""
        one = losses.gaussian_spread(self._moves / self.noise_multiplier)
        return max(one, min(self.epochs * one, losses.gaussian_spread(math.sqrt(self.epochs * self._variance))))


@dataclass(frozen=True, slots=True)
class FixedBatches(SampledGaussianEvent):
    """`steps` steps of DP-SGD, each on a fresh random set of a fixed number of places for records; unit record.

    For replace neighbours two batches that share all records but one are at most twice the clip norm apart, in both
    orders: the curve is that of noise of half the multiplier, amplified by the sampling rate (Zhu, Dong, Wang, AISTATS
    2022, proposition 30; Balle, Barthe, Gaboardi 2018, arXiv:1807.01647). An absent record is one replaced by an empty
    place. Its own gradient moves half as far, but in batches without it another record takes its place: the same curve.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    adjacency: Adjacency = field(default=Adjacency.ADD_REMOVE, kw_only=True)
    kind: ClassVar[str] = "dp-sgd-fixed-batches"
    counted: ClassVar[str] = "steps"

    @property
    def symmetric(self) -> bool:
        return True

    @property
    def relative_noise(self) -> float:
        """See :attr:`SampledGaussianEvent.relative_noise`; a batch of all records has no other to take a place."""
        alone = self.sampling_rate == 1 and self.adjacency is Adjacency.ADD_REMOVE
        return self.noise_multiplier if alone else self.noise_multiplier / 2

    def describe(self) -> str:
        share = f"random sets of {self.sampling_rate:g} of the records"
        return f"DP-SGD on {share}, noise {self.noise_multiplier:g}, {self.steps} steps"


@dataclass(frozen=True, slots=True)
class ShuffledEpochs(GaussianEvent):
    """`epochs` epochs of DP-SGD on batches cut from one random order of all places for records; unit record.

    A record is in one batch of each epoch. Nothing is known to be gained by the secrecy of the order, as other records'
    batches may reveal the place that is left: each epoch is one Gaussian release (parallel composition).
    """

    noise_multiplier: float
    epochs: int = 1
    adjacency: Adjacency = field(default=Adjacency.ADD_REMOVE, kw_only=True)
    kind: ClassVar[str] = "dp-sgd-shuffled"
    exact: ClassVar[bool] = False  # type: ignore[misc]
    counted: ClassVar[str] = "epochs"

    def __post_init__(self) -> None:
        positive("the noise of DP-SGD", self.noise_multiplier)
        whole("the number of epochs", self.epochs)

    def describe(self) -> str:
        return f"DP-SGD on shuffled records, noise {self.noise_multiplier:g}, {self.epochs} epochs"

    def zcdp(self) -> float:
        """Return ``epochs / (2 noise_multiplier**2)``."""
        return self.epochs / (2 * self.noise_multiplier**2)

    def gaussian_mu(self) -> float:
        """Return ``sqrt(epochs) / noise_multiplier``: of a known order, which bounds a secret one."""
        return math.sqrt(self.epochs) / self.noise_multiplier


Training = DPSGD | AllocatedSteps | FixedBatches | ShuffledEpochs


def steps_of_epoch(rate: float) -> int:
    """Return the number of batches of an epoch in which each record takes part once, for batches of a share `rate`."""
    return max(1, round(1 / rate))


def training_event(sampling: Sampling, rate: float, noise: float, steps: int) -> Training:
    """Return the event of `steps` steps of DP-SGD on batches of a share `rate` of the records."""
    if sampling is Sampling.POISSON:
        return DPSGD(rate, noise, steps)
    if sampling is Sampling.FIXED:
        return FixedBatches(rate, noise, steps)
    whole("the number of steps", steps)
    each = steps_of_epoch(rate)
    epochs = -(-steps // each)
    return (
        AllocatedSteps(noise, each, epochs) if sampling is Sampling.RANDOM_ALLOCATION else ShuffledEpochs(noise, epochs)
    )
