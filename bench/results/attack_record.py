"""Records of attacks (scores of one student and its controls) and audits (counts behind a lower bound on epsilon)."""

# Pydantic copies mutable defaults; ruff does not recognise Row as a pydantic model.
# ruff: noqa: RUF012

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from bench.core.rows import Change, Epsilon, Estimated, Row, RunFile, SchemaError, json_object, validated
from bench.core.types import Adjacency, AuditKind, Instrument, PrivacyUnit
from bench.results.candidates import CandidatesFound
from bench.results.record import VISIBLE, Failure, Provenance, Status


class Role(StrEnum):
    """The student and its controls."""

    STUDENT = "student"
    NON_PRIVATE = "non-private"
    MATCHED = "matched"
    COUNTERFACTUAL = "counterfactual"
    PRIOR = "prior"


class Scores(Row):
    """Scores of an attack on one target."""

    metrics: dict[str, Estimated]
    """Estimates by the metric's name."""
    accuracy: float | None = None
    """Share of the test records that the target classifies correctly."""
    queries: int | None = None
    """Number of images evaluated by the target."""


class AttackRecord(Row):
    """One attack on one student, with its controls; `targets` is by role, `student` first."""

    schema_version: Literal[1] = 1
    """Version of this schema."""
    key: str
    """Unique name: the student's key, the attack and a hash."""
    student: str
    """Key of the student's record."""
    status: Status
    """Outcome."""
    attack: str
    """Name of the attack."""
    attack_version: int
    """Version of the attack."""
    goal: Literal["inversion", "membership", "release", "robustness"]
    """Goal of the attacker."""
    access: str = ""
    """Part of the student that the attack uses."""
    knowledge: str = ""
    """What the attacker knows besides the student."""
    citation: str = ""
    """Source of the attack."""
    dataset: str
    """Data set of the student."""
    preset: str
    """Scale of the attack."""
    reduced: list[str] = []
    """Differences from the attack's own setting, in words."""
    config: dict[str, Any]
    """Settings of the attack."""
    seed: int
    """Seed."""
    auxiliary: str = ""
    """The attacker's data, in words."""
    targets: dict[str, Scores] = {}
    """Scores by role: the student first, then its controls."""
    bounds: dict[str, float] = {}
    """Upper bounds by the proven curve on measures for one canary, by name; empty if the curve is for another unit."""
    no_power: str = ""
    """Why the attack is inconclusive (it fails on the non-private control); else empty."""
    evaluators: dict[str, float] = {}
    """Accuracy of each evaluator on held-out records, by name."""
    pictures: list[RunFile] = []
    """Paths of pictures below the run directory."""
    details: dict[str, Any] = {}
    """Further results of this attack, by name."""
    notes: list[str] = []
    """Remarks of the run."""
    failure: Failure | None = None
    """Why the attack failed; null if it is done."""
    provenance: Provenance
    """Time and environment."""

    @model_validator(mode="after")
    def _scores_the_student(self) -> Self:
        if self.status is Status.DONE and Role.STUDENT.value not in self.targets:
            raise ValueError("a finished attack has its student's scores in targets.student")
        return self


class Channel(Row):
    """Guesses on the coins of one canary family from one part of the releases, summed over the runs.

    `epsilon` is the bound for one record, `cap` its maximum; both at the confidence corrected for all channels.
    """

    name: str
    """Part of the releases: student or images."""
    family: str
    """Family of canaries."""
    canaries: int = Field(ge=1, le=10_000_000)
    """Number of canaries."""
    guesses: int = Field(ge=0)
    """Number of guesses, abstentions left out."""
    correct: int = Field(ge=0)
    """Number of right guesses."""
    group: int = Field(default=1, ge=1, le=10_000)
    """Records that share one coin."""
    epsilon: Epsilon
    """The lower bound for one record."""
    cap: Epsilon
    """The largest bound that so many guesses could give."""
    errors: tuple[int, int, int, int] | None = None
    """(false positives, runs without the canary, false negatives, runs with it); many-run audits only."""
    curve: Epsilon | None = None
    """The bound if the trade-off curve is of the family proven for the ledger: never the audited epsilon."""
    curve_family: Literal["", "gaussian", "pld"] = ""
    """That family; empty if none is proven."""

    @model_validator(mode="after")
    def _possible_counts(self) -> Self:  # pages recompute the bound from the pooled counts
        wrong, without, missed, with_it = self.errors or (0, 1, 0, 1)
        guessed = 0 <= wrong <= without and 0 <= missed <= with_it and without and with_it
        if not (self.correct <= self.guesses <= self.canaries or self.errors) or not guessed:
            raise ValueError("counts of guesses exceed what they count")
        return self


class MechanismVerdict(StrEnum):
    """Outcome of the audit of a mechanism."""

    VIOLATED = "violated"
    HOLDS = "no violation found"
    NO_POWER = "no power"  # inconclusive: even half the noise shows no violation
    NOT_AUDITED = "not audited here"


class MechanismAudited(Row):
    """One ledger mechanism, sampled on adjacent inputs: the observed `epsilon` and the `exact` cost of one draw."""

    kind: str
    """Mechanism."""
    parameters: dict[str, Any]
    """Its parameters."""
    draws: int
    """Number of draws on each input."""
    epsilon: Epsilon
    """Observed lower bound."""
    exact: Epsilon
    """Exact cost of one draw."""
    half_noise: Epsilon | None = None
    """Bound observed with half the noise: the power of the audit."""
    verdict: MechanismVerdict
    """Outcome."""
    reason: str = ""
    """Why it was not audited; else empty."""


class PairBound(Row):
    """Bound by one instrument on a pair of adjacent data sets, at the confidence corrected for all that was tried.

    `pair` describes how the data sets differ, `seen` what was compared; `runs` are the counted ones on each.
    """

    instrument: Instrument
    """Quantity that was measured."""
    pair: str
    """How the two data sets differ, in words."""
    seen: str
    """What was compared, in words."""
    runs: tuple[int, int]
    """Counted runs on the first and on the second data set."""
    epsilon: Epsilon
    """The lower bound."""
    cap: Epsilon
    """The largest bound that so many runs could give; infinite for a transcript."""
    exact: bool = False
    """Whether it was computed from the distributions of the answers, not from draws."""
    errors: tuple[int, int, int, int] | None = None
    """(false positives, runs without, false negatives, runs with); release only."""
    tests: int = 1
    """Bounds that share the audit's error probability (Bonferroni); drawn transcripts before 2026-11-30 say 1."""
    power: Epsilon | None = None
    """The same bound without noise, if it was run."""
    curve: Epsilon | None = None
    """The bound from the same errors by the proven trade-off curve, if there is one."""
    curve_of: str = ""
    """Family of that curve: gaussian or pld; empty without a curve."""

    @property
    def at_most(self) -> float:
        """The largest bound that could have been seen: the smaller of the cap and the bound without noise."""
        return self.cap if self.power is None else min(self.power, self.cap)


def above(bound: float | None, limit: float | None) -> bool:
    """Return whether a bound exceeds a limit by more than rounding, since an exact loss may equal the proven one."""
    return bound is not None and limit is not None and bound > limit * (1 + 1e-6)


class AuditRecord(Row):
    """One audit of one student's pipeline.

    A pair audit runs the method on chosen data, with the privacy settings of the student: `reduced` lists what was made
    smaller. Its `epsilon` is the maximum over `pairs`, with at most one per instrument: those chosen on runs that are
    not counted.
    """

    schema_version: Literal[1] = 1
    """Version of this schema."""
    key: str
    """Unique name: the student's key and a hash."""
    student: str
    """Key of the student's record."""
    shared: str = ""
    """Key of the audit that these figures are copied from, if another row has the same experiment; else empty."""
    status: Status
    """Outcome."""
    method: str
    """Name of the method."""
    dataset: str
    """Data set of the student."""
    kind: AuditKind = AuditKind.ONE_RUN
    """Design of the audit."""
    unit: PrivacyUnit
    """Unit in which the audited data sets differ: one record, label or client."""
    adjacency: Adjacency
    """Neighbouring relation of the audited data sets."""
    delta: float = Field(ge=0, lt=1)
    """Delta of every epsilon."""
    confidence: float = Field(gt=0, lt=1)
    """Confidence of the audited epsilon."""
    plan: dict[str, int]
    """Numbers that the audit was planned with, by name."""
    runs: int
    """Number of runs of the method."""
    channels: list[Channel] = []
    """Bounds by canaries."""
    epsilon: Epsilon | None = None
    """Maximum over the channels or pairs."""
    claimed: Epsilon | None = None
    """Claimed epsilon of the student's record."""
    allowed: Epsilon | None = None
    """Epsilon proven by the ledger of the audited runs, for the same unit."""
    power: list[Channel] = []
    """The same guesses on the pipeline without noise, if it was run."""
    pairs: list[PairBound] = []
    """Bounds by pairs of data sets."""
    candidates: list[CandidatesFound] = []
    """Success of an attacker who knows all other records, by number of candidates."""
    reduced: list[Change] = []
    """Settings made smaller than the student's."""
    bypassed: str = ""
    """Where releases differ despite equal answers of the ledger, in words: private data bypassed the ledger."""
    record_level: bool = False
    """Whether the data sets differ in a training record, although the method's claim is for another unit."""
    mechanisms: list[MechanismAudited] = []
    """Audits of the ledger's mechanisms."""
    accuracy: float | None = None
    """Mean test accuracy of the audited students, a share."""
    notes: list[str] = []
    """Remarks of the run."""
    failure: Failure | None = None
    """Why the audit failed; null if it is done."""
    provenance: Provenance
    """Time and environment."""

    @property
    def violated(self) -> bool:
        """Whether the audit refutes the proven epsilon or a mechanism's cost, or saw private data bypass the ledger."""
        if self.allowed is not None and (above(self.epsilon, self.allowed) or self._escaped):
            return True
        return self._beaten or any(found.verdict is MechanismVerdict.VIOLATED for found in self.mechanisms)

    @property
    def _beaten(self) -> bool:
        return any(above(found.low, found.bound) for found in self.candidates)

    @property
    def _escaped(self) -> bool:
        return bool(self.bypassed) and self.allowed is not None and math.isfinite(self.allowed)

    @property
    def refuted_by(self) -> list[Instrument]:
        """The instruments of a pair audit that refute the claimed epsilon, the release first."""
        return sorted(pair.instrument for pair in self.pairs if above(pair.epsilon, self.claimed))

    @property
    def limit(self) -> float:
        """The smaller of the claimed and proven epsilon, infinite without both."""
        return min([limit for limit in (self.claimed, self.allowed) if limit is not None], default=math.inf)

    def conclusive(self, pair: PairBound) -> bool:
        """Whether a bound exceeds :attr:`limit`, or would if the limit were wrong: only then is a low bound evidence.

        A transcript's loss is exact and needs no run without noise, but it is not evidence if the pair does not change
        it or private data bypass the ledger. A low bound at full size is never evidence: its pair is not the worst.
        """
        if above(pair.epsilon, self.limit):
            return True
        if pair.instrument is Instrument.FULL_SIZE:
            return False
        if pair.instrument is Instrument.TRANSCRIPT:
            return pair.epsilon >= VISIBLE and not self.bypassed
        return pair.power is not None and pair.at_most > self.limit

    @property
    def at_most(self) -> float | None:
        """The largest bound that the guesses or releases could have given; None with only a transcript."""
        if self.channels:
            caps = max(channel.cap for channel in self.channels)
            return min([caps, *([max(channel.epsilon for channel in self.power)] if self.power else [])])
        return max((pair.at_most for pair in self.pairs if pair.instrument is Instrument.RELEASE), default=None)

    @property
    def powerless(self) -> bool:
        """Whether the audit could not have refuted the claimed or proven epsilon, so that its bound is inconclusive.

        With canaries: even if all guesses were right, or if the pipeline had no noise, they would not refute it.
        """
        if self.kind is AuditKind.PAIR:
            return not self.violated and not any(map(self.conclusive, self.pairs))
        if math.isinf(self.limit):
            return False  # no finite epsilon to refute
        if self.power and max(channel.epsilon for channel in self.power) <= self.limit:
            return True
        return bool(self.channels) and max(channel.cap for channel in self.channels) <= self.limit

    @property
    def verdict(self) -> str:
        """A short text on the outcome."""
        if self.failure is not None:
            return f"failed: {self.failure.reason}"
        if self.violated:
            seen = "private data outside the ledger" if self._escaped else "audited > proven"
            seen = "an attack exceeds the proven curve" if self._beaten else seen
            return f"VIOLATED: {seen}"
        if self.kind is AuditKind.PAIR:
            return self._pair_verdict
        if self.kind is AuditKind.CANDIDATES:
            return "within the bound" if self.candidates else "inconclusive: no attack ran"
        if above(self.epsilon, self.claimed):
            return "claim refuted"
        if self.allowed is None:
            return "nothing is claimed about a record"
        if not math.isfinite(self.allowed):
            return "nothing is proven"
        if self.powerless:
            return "no power"
        return "consistent" if self.power else "consistent, power not known"

    def verdict_of(self, *, votes: bool) -> str:
        """Return :attr:`verdict`, worded with `votes` for a claim about its run's votes alone: not refuted."""
        said = "above the claim, which covers only the votes of its own run, by"
        return self.verdict.replace("claim refuted by", said) if votes else self.verdict

    @property
    def _pair_verdict(self) -> str:
        from bench.results.text import epsilon_text  # imports the accountants

        if self.refuted_by:
            return f"claim refuted by {' and '.join(self.refuted_by)}" + ", at record level" * self.record_level
        if math.isinf(self.limit):
            return "nothing is claimed or proven"
        if not self.powerless:
            return "consistent"
        if self.at_most is not None:
            return f"inconclusive: the releases could have shown at most {epsilon_text(self.at_most, 'down')}"
        counted = any(pair.instrument is not Instrument.FULL_SIZE for pair in self.pairs)
        nothing = "the ledger's answers reveal nothing" if counted else "no counted run ended in the time given"
        return f"inconclusive: {self.bypassed or nothing}"


R = TypeVar("R", AttackRecord, AuditRecord)


def parse_row(text: str | bytes, kind: type[R]) -> R:
    """Return the record in `text`; raise ValueError (one line), or its subclass SchemaError on another schema."""
    data = json_object(text)
    if data.get("schema_version") != 1:
        raise SchemaError(f"schema version {data.get('schema_version')!r}, this program reads 1")
    if isinstance(data.get("provenance"), dict):
        data["provenance"].pop("command", None)  # unused field of older records, always null
    return validated(kind, data)
