"""The proven epsilon of a record for replace neighbours, from its ledger's events: it is no field of a record."""

from __future__ import annotations

import json
import math
from functools import lru_cache

from bench.core.errors import BenchError
from bench.core.types import Adjacency
from bench.privacy.accountants import replace_one
from bench.privacy.base_event import Event
from bench.results.record import Privacy


def replaced_epsilon(privacy: Privacy) -> float:
    """Return the proven epsilon for replace neighbours; infinite where the events do not give one."""
    if privacy.adjacency is Adjacency.REPLACE or math.isinf(privacy.proven.epsilon):
        return privacy.proven.epsilon
    return _replaced(json.dumps(privacy.events, sort_keys=True), privacy.delta)


@lru_cache(maxsize=4096)
def _replaced(events: str, delta: float) -> float:
    listed = json.loads(events)
    try:
        return replace_one([Event.from_dict(values) for values in listed], delta).epsilon if listed else math.inf
    except (BenchError, TypeError, ValueError, OverflowError):
        return math.inf
