"""Records of pair audits as `bench audit` would write them, for tests without runs."""

from __future__ import annotations

import math
from typing import Any

from bench.core.types import Adjacency, AuditKind, Instrument, PrivacyUnit
from bench.results.attack_record import AuditRecord, PairBound
from bench.results.record import Status
from helpers.records import provenance


def release(epsilon: float = 0.0, cap: float = 3.75, power: float | None = 3.75, **changes: Any) -> PairBound:
    given: dict[str, Any] = {
        "instrument": Instrument.RELEASE, "pair": "one record's label flips", "seen": "logits", "runs": (200, 200),
        "epsilon": epsilon, "cap": cap, "power": power,
    }  # fmt: skip
    return PairBound(**{**given, **changes})


def transcript(epsilon: float = 0.78, **changes: Any) -> PairBound:
    given: dict[str, Any] = {
        "instrument": Instrument.TRANSCRIPT, "pair": "one record per teacher, the vote tied", "runs": (1, 1),
        "seen": "answers of the ledger", "epsilon": epsilon, "cap": math.inf, "exact": True,
    }  # fmt: skip
    return PairBound(**{**given, **changes})


def full_size(epsilon: float = 0.3, **changes: Any) -> PairBound:
    given = {"instrument": Instrument.FULL_SIZE, "pair": "the row's own data, one record of 897, another label"}
    return transcript(epsilon, **{**given, **changes})


def pair_audit(*pairs: PairBound, student: str = "a", options: str = "audit-1", **changes: Any) -> AuditRecord:
    given: dict[str, Any] = {
        "key": f"{student}--{options}", "student": student, "status": Status.DONE, "method": "pate",
        "dataset": "mnist", "kind": AuditKind.PAIR, "unit": PrivacyUnit.RECORD, "adjacency": Adjacency.REPLACE,
        "delta": 1e-5, "confidence": 0.95, "plan": {}, "runs": 400, "pairs": list(pairs), "claimed": 1.0,
        "epsilon": max((pair.epsilon for pair in pairs), default=None), "allowed": 0.995, "provenance": provenance(),
    }  # fmt: skip
    return AuditRecord(**{**given, **changes})
