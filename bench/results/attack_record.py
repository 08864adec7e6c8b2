"""Records of attacks and audits: each speaks of one student, by its record's key, and lies beside that record.

An attack's record holds numbers for the student and for its controls; an audit's the counts from which its bound
follows, so that a reader of several can correct for their number.
"""

# Pydantic copies mutable defaults; the linter does not see that Row is a pydantic model.
# ruff: noqa: RUF012

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal, TypeVar

from bench.core.rows import Estimated, Row, SchemaError, json_object, validated
from bench.core.types import Adjacency, AuditKind, PrivacyUnit
from bench.results.record import Failure, Provenance, Status


class Scores(Row):
    """What an attack reached on one target."""

    metrics: dict[str, Estimated]
    accuracy: float | None = None
    """Of the target on the test records."""
    queries: int | None = None
    """Images that went through the target."""


class AttackRecord(Row):
    """One attack on one student, with its controls; `targets` is by role, `student` first."""

    schema_version: Literal[1] = 1
    key: str
    student: str
    """The key of the student's record."""
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
    auxiliary: str = ""
    """What the attacker knew, in words."""
    targets: dict[str, Scores] = {}
    no_power: str = ""
    """Why the numbers say nothing of the student: the attack does not break the non-private one. Else empty."""
    evaluators: dict[str, float] = {}
    """Name to accuracy on records that it was not trained on."""
    pictures: list[str] = []
    """Files below the run directory."""
    details: dict[str, Any] = {}
    notes: list[str] = []
    failure: Failure | None = None
    provenance: Provenance


class Channel(Row):
    """What one part of the releases reveals of the coins of one family of canaries, summed over the runs.

    `epsilon` is the bound and `cap` the largest bound that many guesses can give, both for one record and at the
    audit's confidence, corrected for the number of its channels.
    """

    name: str
    family: str
    canaries: int
    guesses: int
    correct: int
    group: int = 1
    epsilon: float
    cap: float
    errors: tuple[int, int, int, int] | None = None
    """(false positives, runs without the canary, false negatives, runs with it); many-run audits only."""


class MechanismVerdict(StrEnum):
    """Outcome of the audit of a mechanism."""

    VIOLATED = "violated"
    HOLDS = "no violation found"
    NO_POWER = "no power"
    """Nothing was found, nor is anything found with half the noise: the audit is inconclusive."""
    NOT_AUDITED = "not audited here"


class MechanismAudited(Row):
    """One mechanism of the ledger, drawn from on adjacent inputs: `epsilon` is seen, `exact` is what one draw costs."""

    kind: str
    parameters: dict[str, Any]
    draws: int
    epsilon: float
    exact: float
    half_noise: float | None = None
    """What the same draws would have shown with half of the noise: the power of the audit."""
    verdict: MechanismVerdict
    reason: str = ""
    """Why it was not audited."""


class AuditRecord(Row):
    """One audit of one student's pipeline."""

    schema_version: Literal[1] = 1
    key: str
    student: str
    status: Status
    method: str
    dataset: str
    kind: AuditKind = AuditKind.ONE_RUN
    unit: PrivacyUnit
    """What the canaries are: one record, or one label."""
    adjacency: Adjacency
    delta: float
    confidence: float
    plan: dict[str, int]
    runs: int
    channels: list[Channel] = []
    epsilon: float | None = None
    """The largest bound over the channels."""
    claimed: float | None = None
    """What the student's record says is claimed."""
    allowed: float | None = None
    """What the ledger proves of the runs that were audited, for the same unit."""
    power: list[Channel] = []
    """The same guesses on the pipeline without noise; empty where that was not run."""
    mechanisms: list[MechanismAudited] = []
    accuracy: float | None = None
    """Mean test accuracy of the audited students: what the canaries cost."""
    notes: list[str] = []
    failure: Failure | None = None
    provenance: Provenance

    @property
    def violated(self) -> bool:
        """Whether the audit refutes what is proven, or a mechanism its own epsilon."""
        refuted = self.epsilon is not None and self.allowed is not None and self.epsilon > self.allowed
        return refuted or any(found.verdict is MechanismVerdict.VIOLATED for found in self.mechanisms)

    @property
    def powerless(self) -> bool:
        """Whether the audit could not have refuted what is claimed or proven.

        That is so where even all guesses right cannot, or where the guesses on the pipeline without noise do not.
        Then the bound says nothing in favour of the pipeline.
        """
        limit = min([limit for limit in (self.claimed, self.allowed) if limit is not None], default=math.inf)
        if math.isinf(limit):
            return False  # nothing is claimed or proven that could be refuted
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


def parse_row(text: str, kind: type[R]) -> R:
    """Return the record of this `kind` that `text` holds.

    Raises ValueError, in one line, where `text` is none; :class:`SchemaError` where it is of a newer schema.
    """
    data = json_object(text)
    if data.get("schema_version") != 1:
        raise SchemaError(f"schema version {data.get('schema_version')!r}, this program reads 1")
    if isinstance(data.get("provenance"), dict):
        data["provenance"].pop("command", None)  # always null: it was meant for records of cells
    return validated(kind, data)


class Role(StrEnum):
    """The student and its controls; see the module."""

    STUDENT = "student"
    NON_PRIVATE = "non-private"
    MATCHED = "matched"
    COUNTERFACTUAL = "counterfactual"
    PRIOR = "prior"
