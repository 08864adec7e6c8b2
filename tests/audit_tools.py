"""A lower bound on epsilon from draws of a mechanism on two adjacent inputs, and a source of too little noise."""

from __future__ import annotations

import numpy as np

from bench.privacy.bounds import refuted_epsilon
from bench.privacy.noise import SeededNoise

CONFIDENCE = 0.999


def lower_bound(first: np.ndarray, second: np.ndarray, delta: float = 0.0, confidence: float = CONFIDENCE) -> float:
    """Return the largest epsilon that the draws refute at `confidence`, in the direction first over second.

    `first` and `second` tell of each draw whether its output fell into the set, which was fixed beforehand.
    """
    return refuted_epsilon(int(first.sum()), len(first), int(second.sum()), len(second), delta, confidence)


class HalfNoise(SeededNoise):
    """A faulty source: half the noise that was asked for."""

    def laplace(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
        return super().laplace(shape, scale / 2)

    def gaussian(self, shape: tuple[int, ...], std: float) -> np.ndarray:
        return super().gaussian(shape, std / 2)

    def keep_or_other(self, positions: np.ndarray, count: int, keep: float) -> np.ndarray:
        odds = keep / (1 - keep) * (count - 1)  # e^eps, squared as half the noise of a Laplace draw would do
        return super().keep_or_other(positions, count, odds**2 / (odds**2 + count - 1))
