"""Records of attacks (scores of one student and its controls) and audits (counts behind a lower bound on epsilon)."""

# Pydantic copies mutable defaults; ruff does not recognise Row as a pydantic model.
# ruff: noqa: RUF012

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal, TypeVar

from bench.core.rows import Epsilon, Estimated, Row, SchemaError, json_object, validated
from bench.core.types import Adjacency, AuditKind, PrivacyUnit
from bench.results.record import Failure, Provenance, Status


class Scores(Row):
    """Scores of an attack on one target."""

    metrics: dict[str, Estimated]
    accuracy: float | None = None  # on the test records
    queries: int | None = None  # images evaluated by the target


class AttackRecord(Row):
    """One attack on one student, with its controls; `targets` is by role, `student` first."""

    schema_version: Literal[1] = 1
    key: str
    student: str  # key of the student's record
    status: Status
    attack: str
    attack_version: int
    goal: Literal["inversion", "membership", "robustness"]
    access: str = ""
    knowledge: str = ""
    citation: str = ""
    dataset: str
    preset: str
    reduced: list[str] = []
    config: dict[str, Any]
    seed: int
    auxiliary: str = ""  # the attacker's knowledge, in words
    targets: dict[str, Scores] = {}
    no_power: str = ""  # reason if the attack is inconclusive, because it fails on the non-private control; else empty
    evaluators: dict[str, float] = {}  # name to accuracy on held-out records
    pictures: list[str] = []  # paths below the run directory
    details: dict[str, Any] = {}
    notes: list[str] = []
    failure: Failure | None = None
    provenance: Provenance


class Channel(Row):
    """Guesses on the coins of one canary family from one part of the releases, summed over the runs.

    `epsilon` is the bound for one record, `cap` its maximum; both at the confidence corrected for all channels.
    """

    name: str
    family: str
    canaries: int
    guesses: int
    correct: int
    group: int = 1
    epsilon: Epsilon
    cap: Epsilon
    errors: tuple[int, int, int, int] | None = None
    """(false positives, runs without the canary, false negatives, runs with it); many-run audits only."""


class MechanismVerdict(StrEnum):
    """Outcome of the audit of a mechanism."""

    VIOLATED = "violated"
    HOLDS = "no violation found"
    NO_POWER = "no power"  # inconclusive: even half the noise shows no violation
    NOT_AUDITED = "not audited here"


class MechanismAudited(Row):
    """One ledger mechanism, sampled on adjacent inputs: the observed `epsilon` and the `exact` cost of one draw."""

    kind: str
    parameters: dict[str, Any]
    draws: int
    epsilon: Epsilon
    exact: Epsilon
    half_noise: Epsilon | None = None  # epsilon observed with half the noise: the power of the audit
    verdict: MechanismVerdict
    reason: str = ""  # why it was not audited


class AuditRecord(Row):
    """One audit of one student's pipeline."""

    schema_version: Literal[1] = 1
    key: str
    student: str
    status: Status
    method: str
    dataset: str
    kind: AuditKind = AuditKind.ONE_RUN
    unit: PrivacyUnit  # the canary: one record or one label
    adjacency: Adjacency
    delta: float
    confidence: float
    plan: dict[str, int]
    runs: int
    channels: list[Channel] = []
    epsilon: Epsilon | None = None  # maximum over the channels
    claimed: Epsilon | None = None  # from the student's record
    allowed: Epsilon | None = None  # proven by the ledger of the audited runs, for the same unit
    power: list[Channel] = []  # the same guesses on the pipeline without noise, if it was run
    mechanisms: list[MechanismAudited] = []
    accuracy: float | None = None  # mean test accuracy of the audited students
    notes: list[str] = []
    failure: Failure | None = None
    provenance: Provenance

    @property
    def violated(self) -> bool:
        """Whether the audit refutes the proven epsilon or a mechanism's own."""
        refuted = self.epsilon is not None and self.allowed is not None and self.epsilon > self.allowed
        return refuted or any(found.verdict is MechanismVerdict.VIOLATED for found in self.mechanisms)

    @property
    def powerless(self) -> bool:
        """Whether the audit could not have refuted the claimed or proven epsilon, so that its bound is inconclusive.

        Either all guesses right would not refute it, or the guesses on the pipeline without noise do not.
        """
        limit = min([limit for limit in (self.claimed, self.allowed) if limit is not None], default=math.inf)
        if math.isinf(limit):
            return False  # no finite epsilon to refute
        if self.power and max(channel.epsilon for channel in self.power) <= limit:
            return True
        return bool(self.channels) and max(channel.cap for channel in self.channels) <= limit

    @property
    def verdict(self) -> str:
        """The outcome in a few words."""
        if self.failure is not None:
            return f"failed: {self.failure.reason}"
        if self.violated:
            return "VIOLATED: audited > proven"
        if self.epsilon is not None and self.claimed is not None and self.epsilon > self.claimed:
            return "claim refuted"
        if self.allowed is None:
            return "nothing is claimed of a record"
        if not math.isfinite(self.allowed):
            return "nothing is proven"
        if self.powerless:
            return "no power"
        return "consistent" if self.power else "consistent, power not known"


R = TypeVar("R", AttackRecord, AuditRecord)


def parse_row(text: str | bytes, kind: type[R]) -> R:
    """Return the record in `text`; raise ValueError (one line), or its subclass SchemaError on another schema."""
    data = json_object(text)
    if data.get("schema_version") != 1:
        raise SchemaError(f"schema version {data.get('schema_version')!r}, this program reads 1")
    if isinstance(data.get("provenance"), dict):
        data["provenance"].pop("command", None)  # unused field of older records, always null
    return validated(kind, data)


class Role(StrEnum):
    """The student and its controls."""

    STUDENT = "student"
    NON_PRIVATE = "non-private"
    MATCHED = "matched"
    COUNTERFACTUAL = "counterfactual"
    PRIOR = "prior"
