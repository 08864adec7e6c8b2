"""The ledger's mechanisms on running sums, charged once for all their steps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.events.base_event import positive, whole
from bench.privacy.events.gaussian_events import BandedSums, TreeSums, square_root
from bench.privacy.mechanisms import mechanisms
from bench.privacy.mechanisms.charging import Charging, mechanism
from bench.privacy.mechanisms.executors import Executor
from bench.privacy.mechanisms.noise import FURTHEST
from bench.privacy.mechanisms.streams import Banded, BinaryTree, Stream


@dataclass(slots=True)
class _Open:
    """A run in progress: what it was charged for, and its next step."""

    event: TreeSums | BandedSums
    sensitivity: float
    shape: tuple[int, ...]
    stream: Stream
    step: int = 0


class StreamMechanisms(Charging):
    """Part of the ledger: one run over steps at a time, on values that may depend on earlier answers."""

    def __init__(self, unit: PrivacyUnit, adjacency: Adjacency, executor: Executor) -> None:
        super().__init__(unit, adjacency, executor)
        self._open: _Open | None = None

    @mechanism("values")
    def tree_sum(
        self, values: NDArray[Any], *, step: int, steps: int, sensitivity: float, noise_multiplier: float
    ) -> NDArray[np.float64]:
        """Release the sum of `values` (of any one shape) of all steps so far, float64 of that shape, by a binary tree.

        Call it for `step` 0, 1, ... in order, at most `steps` in all; step 0 charges for all of them and starts a new
        run. One unit moves the values of one step by at most `sensitivity` in L2 (or of several, if their distances sum
        to no more). The noise on a node has deviation ``noise_multiplier * sensitivity``. Non-finite entries count as
        0. Raises :class:`BenchError` on steps out of order, or if settings change midway.
        """
        event = TreeSums(noise_multiplier, steps, unit=self.unit, adjacency=self.adjacency)
        return self._charge_step(event, BinaryTree(), values, step, sensitivity)

    @mechanism("values")
    def banded_sum(
        self, values: NDArray[Any], *, step: int, steps: int, bands: int, separation: int, sensitivity: float,
        noise_multiplier: float,
    ) -> NDArray[np.float64]:  # fmt: skip
        """Release the sum of `values` of all steps so far by a banded square root; see :meth:`tree_sum`.

        One unit moves the values of at most one of any `separation` >= `bands` consecutive steps, by at most
        `sensitivity` in L2: for instance once per epoch, with batches in a fixed order.
        """
        event = BandedSums(noise_multiplier, steps, bands, separation, unit=self.unit, adjacency=self.adjacency)
        return self._charge_step(event, Banded(square_root(bands)), values, step, sensitivity)

    def _charge_step(
        self, event: TreeSums | BandedSums, stream: Stream, values: NDArray[Any], step: int, sensitivity: float
    ) -> NDArray[np.float64]:
        """Charge at step 0, and return the sum so far; refuse a step that does not follow."""
        given = np.asarray(values, dtype=np.float64)
        positive("sensitivity", sensitivity)
        self._refuse_again()
        whole("the step", step, 0)
        found = self._open
        if step == 0:
            self._charge(event)
            self._open = found = _Open(event, sensitivity, given.shape, stream)
        elif found is None or (found.event, found.sensitivity, found.shape, found.step) != (
            event, sensitivity, given.shape, step,
        ):  # fmt: skip
            raise BenchError(
                f"step {step} follows no step {step - 1} with the same settings and shape: begin with step 0, and call "
                "each step once, in order."
            )
        if step >= event.steps:
            raise BenchError(f"the sums were charged for {event.steps} steps, and step {step} is one more.")
        own, std = mechanisms.finite(given), event.noise_multiplier * sensitivity
        # Exact noise needs the values of each step rounded, and a unit may be in every step. A tree's sums are then
        # exact. A sum by bands is rounded again, and its products and additions each by at most 1/128 of a grid step.
        bands = event.bands if isinstance(event, BandedSums) else 0
        moved = own.size * event.steps**2 * (2 + bands / 32 if bands else 1) ** 2
        grid = self._executor.grid_step(std, sensitivity, moved)
        most = FURTHEST / bands if bands else 2.0**52 / event.steps
        with np.errstate(over="ignore"):
            released = found.stream.released(mechanisms.in_steps(own, grid, most))
        found.step += 1
        if self._call is not None:  # the step's values and the release, for checks and audits
            self._call = dataclasses.replace(self._call, private={"values": np.stack([own, released * (grid or 1.0)])})
        noisy = self._ask(partial(mechanisms.plus_gaussian, released, std, grid))
        return found.stream.total(noisy)
