"""The ledger's mechanisms that choose a candidate by noisy scores."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.privacy.events.base_event import positive
from bench.privacy.events.choice_events import Choice, Exponential, PermuteAndFlip
from bench.privacy.mechanisms import mechanisms
from bench.privacy.mechanisms.charging import Charging, mechanism
from bench.privacy.mechanisms.noise import Law


class ChoiceMechanisms(Charging):
    """Part of the ledger: the scores are private, the candidates and their number public."""

    @mechanism("scores")
    def exponential_mechanism(
        self, scores: NDArray[Any], *, sensitivity: float, epsilon: float, monotonic: bool = False
    ) -> NDArray[np.int64]:
        """Release the exponential mechanism's choice for each row of `scores` (choices, candidates): int64 (choices,).

        One unit moves each score by at most `sensitivity`, in all rows; with `monotonic`, all scores of a row move in
        the same direction, which halves the noise. Each row costs `epsilon`. Non-finite scores count as 0. Raises
        :class:`BenchError` on scores of another shape or without candidates.
        """
        return self._choose(Exponential, "gumbel", scores, sensitivity, epsilon, monotonic)

    @mechanism("scores")
    def permute_and_flip(
        self, scores: NDArray[Any], *, sensitivity: float, epsilon: float, monotonic: bool = False
    ) -> NDArray[np.int64]:
        """Release the candidate with the largest score after exponential noise; see :meth:`exponential_mechanism`."""
        return self._choose(PermuteAndFlip, "exponential", scores, sensitivity, epsilon, monotonic)

    def _choose(
        self, kind: type[Choice], law: Law, scores: NDArray[Any], sensitivity: float, epsilon: float, monotonic: bool
    ) -> NDArray[np.int64]:
        given = np.asarray(scores, dtype=np.float64)
        if given.ndim != 2 or not given.size:
            raise BenchError(
                f"scores must have the shape (choices, candidates), at least one of each, not {given.shape}."
            )
        scale = choice_scale(sensitivity, epsilon, monotonic)
        self._charge(kind(epsilon, len(given), unit=self.unit, adjacency=self.adjacency))
        return self._ask(partial(mechanisms.noisy_choice, self._or_zeros(given), scale, law))


def choice_scale(sensitivity: float, epsilon: float, monotonic: bool) -> float:
    """Return the scale of the noise on scores: the most that one unit moves a difference of scores, over epsilon."""
    return (1 if monotonic else 2) * positive("sensitivity", sensitivity) / positive("epsilon of a choice", epsilon)
