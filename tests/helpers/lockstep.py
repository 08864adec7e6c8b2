"""Two runs in lockstep, with silent ledgers whose answers the auditor draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.audit.lockstep import Transcript, in_lockstep
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import ZeroNoise

Work = Callable[[Ledger], Any]


def silent(unit: PrivacyUnit = PrivacyUnit.RECORD, adjacency: Adjacency = Adjacency.REPLACE) -> Ledger:
    return Ledger(unit, adjacency, ZeroNoise(exact=False))


def lockstep(
    first: Work, second: Work, tilt: float = 0.0, seed: int = 0, ledgers: tuple[Ledger, Ledger] | None = None
) -> tuple[Transcript, Any, Any]:
    return in_lockstep((first, second), ledgers or (silent(), silent()), np.random.default_rng(seed), tilt)
