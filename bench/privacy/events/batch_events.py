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

from bench.core.printable import counted
from bench.core.types import Adjacency, Sampling
from bench.privacy.events import allocation, composing, losses, sampled_losses
from bench.privacy.events.base_event import Event, Floats, positive, whole
from bench.privacy.events.gaussian_events import GaussianEvent
from bench.privacy.events.sampled_events import DPSGD, SampledGaussianEvent

COMPARED = 1e-5
"""The delta at which the better of two bounds is chosen; both hold at every delta."""
COMPARED_ORDERS = np.array([1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256])


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
        return f"DP-SGD, {each}, noise {self.noise_multiplier:g}, {counted(self.epochs, 'epoch')}"

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
            return self.epochs * np.minimum(absent(order), order / (2 * self.noise_multiplier**2))
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

    An attacker who knows the batches sees an absent record in a share `sampling_rate` of them, each a Gaussian release
    of the whole noise. That bound is less where the rate is high, the noise small or the steps are few.
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

    def rdp(self, orders: ArrayLike) -> Floats:
        """Return the smaller Renyi divergence of secret and of known batches."""
        secret = SampledGaussianEvent.rdp(self, orders)
        return secret if self.adjacency is Adjacency.REPLACE else np.minimum(secret, self._known_rdp(orders))

    def pld(self, interval: float = losses.INTERVAL) -> Any | None:
        """Return the PLD of all steps, for secret batches or for known ones, whichever Renyi divergences favour."""
        if not self._known:
            return SampledGaussianEvent.pld(self, interval)
        one = partial(sampled_losses.known_sample_pld, self.noise_multiplier, self.sampling_rate)
        return composing.many_composed(one, self.steps, interval, self.loss_deviation)

    def _known_rdp(self, orders: ArrayLike) -> Floats:
        return self.steps * sampled_losses.known_sample_rdp(self.noise_multiplier, self.sampling_rate, orders)

    @property
    def _known(self) -> bool:
        if self.sampling_rate == 1 or self.adjacency is Adjacency.REPLACE or self.noise_multiplier < 0.1:
            return False
        left = -math.log(COMPARED) / (COMPARED_ORDERS - 1)
        secret = SampledGaussianEvent.rdp(self, COMPARED_ORDERS)
        return bool((self._known_rdp(COMPARED_ORDERS) + left).min() < (secret + left).min())

    @property
    def loss_deviation(self) -> float:
        if not self._known:
            return sampled_losses.loss_deviation(self.relative_noise, self.sampling_rate)
        mu, rate = 1 / self.noise_multiplier, self.sampling_rate
        return mu * math.sqrt(rate + rate * (1 - rate) * mu**2 / 4)


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
        return f"DP-SGD on shuffled records, noise {self.noise_multiplier:g}, {counted(self.epochs, 'epoch')}"

    def twice(self) -> dict[str, Any]:
        return {}

    def zcdp(self) -> float:
        """Return rho for a known order, which bounds a secret one; a replaced record moves its batch twice as far."""
        moves = 2 if self.adjacency is Adjacency.REPLACE else 1
        return self.epochs * (moves / self.noise_multiplier) ** 2 / 2


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
