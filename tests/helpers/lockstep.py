"""Two runs in lockstep, whose answers the auditor draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.audit.lockstep import Transcript, in_lockstep
from bench.privacy.mechanisms.ledger import Ledger

Work = Callable[[Ledger], Any]


def lockstep(
    first: Work,
    second: Work,
    tilt: float = 0.0,
    seed: int = 0,
    unit: PrivacyUnit = PrivacyUnit.RECORD,
    adjacency: Adjacency = Adjacency.REPLACE,
) -> tuple[Transcript, Any, Any]:
    return in_lockstep((first, second), unit, adjacency, np.random.default_rng(seed), tilt)
