"""A ledger whose noise a test can repeat."""

from __future__ import annotations

import numpy as np

from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise


def seeded_ledger(unit: PrivacyUnit, adjacency: Adjacency, generator: np.random.Generator) -> Ledger:
    """Return a ledger whose noise comes from `generator`."""
    return Ledger(unit, adjacency, Noisy(SeededNoise(generator)))
