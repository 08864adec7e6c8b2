"""A lower bound on epsilon from draws of a mechanism on two adjacent inputs, and a source of too little noise."""

from __future__ import annotations

import numpy as np

from bench.evaluation.audit.mechanism_audit import HalfNoise
from bench.privacy.auditing.bounds import refuted_epsilon
from bench.privacy.mechanisms.noise import SeededNoise

CONFIDENCE = 0.999


def lower_bound(first: np.ndarray, second: np.ndarray, delta: float = 0.0, confidence: float = CONFIDENCE) -> float:
    """Return the largest epsilon that the draws refute at `confidence`, in the direction first over second.

    `first` and `second` tell of each draw whether its output fell into the set, which was fixed beforehand.
    """
    return refuted_epsilon(int(first.sum()), len(first), int(second.sum()), len(second), delta, confidence)


def half_noise(generator: np.random.Generator) -> HalfNoise:
    """Return a faulty seeded source: half the noise that was asked for."""
    return HalfNoise(SeededNoise(generator))
