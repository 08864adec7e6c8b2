"""Typed records of cells, keyed by the hash of the specification; two runs of a cell differ only in ``provenance``."""

# Pydantic copies mutable defaults; ruff does not recognise Row as a pydantic model.
# ruff: noqa: RUF012

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator
from pydantic_core import to_json

from bench.core.config import NoiseKind
from bench.core.disclosure import Disclosure
from bench.core.rows import Change, Epsilon, Row, RunFile, SchemaError, Share, Unbounded, json_object, validated
from bench.core.types import Adjacency, PrivacyUnit, PublicKind
from bench.results.answers import Answers
from bench.results.cell_spec import CellSpec, Specified
from bench.results.record_upgrades import UPGRADES

SCHEMA_VERSION = 3  # increment when a field is removed or changes its meaning; older records are upgraded


SAFE_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")  # keys name files
SALT = "[0-9a-f]{64}"
COLLAPSED = "collapsed"


def _counted(event: dict[str, Any]) -> dict[str, Any]:
    times = event.get("times", 1)
    if type(times) is not int or times < 1:
        raise ValueError("times must be a whole number of at least 1")
    return event


StoredEvent = Annotated[dict[str, Any], AfterValidator(_counted)]
"""A ledger's event as plain values; `times`, if given, is how often it ran."""


class Status(StrEnum):
    """Outcome of a cell."""

    DONE = "done"
    FAILED = "failed"


class Accountant(Row):
    """The cost of the mechanisms by one accountant."""

    name: str
    """Name of the accountant."""
    epsilon: Epsilon
    """Its epsilon, infinite without a guarantee."""
    sound: bool
    """Whether it bounds the privacy loss of the run."""
    data_dependent: bool
    """Whether it depends on private data."""
    releasable: bool
    """Whether it may be published: a data-dependent figure only when sanitised."""
    order: Annotated[Unbounded, Field(gt=0)] | None = None
    """Renyi order or moment at which the minimum is reached, if it has one."""
    note: str = ""
    """Remarks, for example the conversion used."""


class Claimed(Row):
    """The cost by the method's paper."""

    epsilon: Epsilon
    """Epsilon by the paper's own analysis."""
    source: str
    """Place in the paper."""
    note: str = ""
    """Why the claim does not hold, or what else limits it."""


VISIBLE = 0.01
"""The smallest lower bound that is printed as more than 0."""


class Audited(Row):
    """A lower bound on epsilon from an audit, at `confidence`."""

    epsilon: Epsilon
    """The lower bound."""
    confidence: float
    """Confidence of the bound."""
    audit: str
    """What was seen, in words."""
    inconclusive: bool = False
    """Whether a larger bound was out of reach, or may have been."""
    at_most: Epsilon | None = None
    """The largest bound that could have been seen; null if unknown or unlimited."""

    @property
    def silent(self) -> bool:
        """Whether the audit found nothing and had no power, so there is no figure to print."""
        return self.inconclusive and self.epsilon < VISIBLE


class Plausibility(Row):
    """A bound on accuracy from the claimed epsilon, for claims that hold between any two teachers.

    The accuracy exceeds `threshold` (share of the test records) with at most this `probability`; see
    :mod:`bench.privacy.auditing.utility_bound`.
    """

    probability: float
    """Bound on the probability of a larger accuracy if the claim holds."""
    threshold: float
    """Share of the test records."""
    permutations: float
    """Number of relabellings of the classes that the bound counts."""


class Privacy(Row):
    """The three epsilons of a row with their unit and adjacency."""

    unit: PrivacyUnit
    """Unit that the guarantee protects."""
    adjacency: Adjacency
    """Neighbouring relation for which the claimed and the proven epsilon hold."""
    delta: float
    """Delta of every epsilon."""
    claimed: Claimed
    """Epsilon that the paper claims."""
    proven: Accountant
    """The smallest epsilon of the ledger that is sound, publishable and data-independent."""
    audited: Audited | None = None
    """Lower bound from audits, filled in when records are read with their audits; null in the file."""
    plausibility: Plausibility | None = None
    """Bound on the accuracy by the claim; null if the claim is about one unit, which no accuracy contradicts."""
    bypasses: list[str] = []
    """Where private data is used outside any mechanism, in words."""
    accountants: list[Accountant] = []
    """Figures of every accountant that applies."""
    withheld: str = ""
    """Why data-dependent figures are omitted; empty if they are not."""
    events: list[StoredEvent] = []
    """Ledger events, by their first use: mechanism and parameters, no data; equal ones once, with a count `times`."""
    record_level: Accountant | None = None
    """Guarantee for one training record, if the unit is a label; infinite with public images."""

    @cached_property
    def events_text(self) -> str:
        """The events as JSON text, a key of what is computed from them."""
        # The seeds of a row share one text, hashed once. json.dumps would take six times as long.
        return sys.intern(to_json(self.events, inf_nan_mode="constants").decode())


class Queries(Row):
    """Numbers of teacher queries: asked, answered, and answered correctly."""

    asked: int
    """Number of queries to the teachers."""
    answered: int
    """Number of queries answered."""
    label_accuracy: Share | None = None
    """Share of the answers that are the true label; null if unknown or withheld."""


class Utility(Row):
    """Utility of the released student on the test split."""

    accuracy: Share
    """Share of the test records classified correctly."""
    test_records: int = Field(ge=1)
    """Number of test records."""
    official_accuracy: Share | None = None
    """Accuracy on the official test set, if the split makes part of it public and the method uses no public data."""
    official_records: int | None = None
    """Size of the whole official test set; null if `official_accuracy` is null."""
    answers: Answers | None = None
    """Answers on all records of these accuracies; null in older records and for data that is not a public benchmark."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.official_accuracy is None) != (self.official_records is None):
            raise ValueError("official_accuracy and official_records are given both or not at all")
        if (right := self.right) is not None:
            for number, accuracy in ((self.test_records, self.accuracy), (len(right), self.official_accuracy)):
                if accuracy is not None and abs(right.count(1, 0, number) / number - accuracy) > 1e-6:
                    raise ValueError("answers and accuracy disagree")
        return self

    @property
    def right(self) -> bytes | None:
        """A byte for each answer, 1 if it is right, starting with the test records; None if no answers are recorded."""
        return None if self.answers is None else self.answers.right(self.official_records or self.test_records)


class Student(Row):
    """The released student: timm rebuilds it from `name` and `options`; weights in `file` below the run directory."""

    name: str
    """Name of the timm architecture."""
    options: dict[str, Any]
    """Arguments of ``timm.create_model``."""
    parameters: int
    """Number of parameters."""
    file: RunFile
    """Weights (safetensors), a path below the run directory."""
    sha256: str
    """Hash of that file."""


class ImageGrid(Row):
    """PNG of the first released images, `file` below the run directory."""

    file: RunFile
    """Path below the run directory."""
    sha256: str
    """Hash of that file."""


class Failure(Row):
    """Why a cell failed; `log` is a path below the run directory."""

    kind: str
    """Kind of failure; "collapsed" for useless images of a generator."""
    reason: str
    """Reason in words."""
    log: str | None = None
    """Path of the traceback below the run directory."""
    spent: list[StoredEvent] = []
    """Ledger events before the failure, as in `events`; another run with fresh noise costs as much again."""

    def words(self, run_dir: Path | None) -> str:
        """Return the reason, with the path of the log if `run_dir` is known."""
        return self.reason + (f" (log: {run_dir / self.log})" if run_dir and self.log else "")


class Provenance(Row):
    """Time and environment: the only part in which two runs of a cell may differ. None comes with a reason."""

    started: str
    """Start, in UTC; the date alone for data that is not a public benchmark."""
    wall_seconds: float
    """Running time in seconds, without waiting for other processes."""
    peak_memory_mib: float | None
    """Peak memory in MiB."""
    git_commit: str | None
    """Commit of the program."""
    git_dirty: bool | None
    """Whether tracked files outside `leaderboards` had changes."""
    packages: dict[str, str]
    """Versions of the packages that matter, by name."""
    python: str
    """Version of Python."""
    platform: str
    """Operating system and architecture."""
    processor: str | None = None
    """Processor, vector instructions of torch, and the number of artefacts cached by another; None in older records."""
    device: str
    """Device of torch."""
    threads: int | None
    """CPU threads of one operation."""
    artefacts_made: int = 0
    """Number of artefacts computed."""
    artefacts_found: int = 0
    """Number of artefacts taken from the cache."""
    artefacts: dict[str, tuple[int, int]] = {}
    """Cache misses and hits by kind of artefact."""
    unread: dict[str, str] = {}
    """Reason for each field that could not be read, or is given coarsely."""


class Record(Row, Specified):
    """One cell of a grid, done or failed."""

    schema_version: Annotated[Literal[3], WithJsonSchema({"enum": [2, 3]})] = 3
    """Version of this schema; in a file of version 2 no event has `times`."""
    key: str
    """Unique name: what was requested in words, and a hash of what the result depends on."""
    status: Status
    """Outcome."""
    cell: CellSpec
    """What was requested."""
    citation: str = ""
    """Source of the method."""
    public_benchmark: bool = True
    """Whether the data is freely available; otherwise figures that depend on it are omitted."""
    reduced: list[Change] = []
    """Differences from the paper's setting."""
    config: dict[str, Any]
    """The calibrated settings of the method."""
    public_data: str
    """Public data used, in words."""
    public_kinds: list[PublicKind]
    """Kinds of public data that the method declares."""
    private_records: int
    """Number of private records."""
    public_records: int
    """Number of unlabelled public records."""
    privacy: Privacy | None = None
    """Claimed, proven and audited epsilon; null for a failed cell."""
    utility: Utility | None = None
    """Accuracy; null for a failed cell."""
    score: float | None = None
    """Selection score of a tuned student: right answers on public records, or a noisy count; null if not tuned."""
    queries: Queries | None = None
    """Teacher answers; null for methods without teachers."""
    student: Student | None = None
    """The released student; null for a failed cell."""
    image_grid: ImageGrid | None = None
    """Released images, or those of a generator that collapsed; null without any of a displayable shape."""
    notes: list[str] = []
    """Remarks of the run."""
    failure: Failure | None = None
    """Why the cell failed; null if it is done."""
    noise_salt: str | None = Field(default=None, pattern=f"^{SALT}$")
    """Salt that seeds the noise besides seed and key; null if these alone seed it, or if the noise stays secret."""
    provenance: Provenance
    """Time and environment."""

    @property
    def spec(self) -> CellSpec:
        """The cell's specification."""
        return self.cell

    @property
    def collapsed(self) -> bool:
        """Whether it failed because its generator's images were useless: a result that is published."""
        return self.failure is not None and self.failure.kind == COLLAPSED and self.image_grid is not None

    @property
    def own_adjacency(self) -> Adjacency:
        """The adjacency of the method's own analysis; replace if a failed cell states none."""
        return Adjacency.REPLACE if self.privacy is None else self.privacy.adjacency

    @property
    def dataset(self) -> str:
        """The data set's name, without the path of a user's folder."""
        return self.cell.dataset

    @property
    def disclosure(self) -> Disclosure:
        """Which figures of the run may be shown, and to whom."""
        return Disclosure(self.public_benchmark)

    @property
    def noise_salt_option(self) -> str:
        """The ``--noise-salt`` that redraws the same noise; empty if there is none or it is secret."""
        known = self.disclosure.noise_salt and self.noise is NoiseKind.SEEDED and self.epsilon is not None
        return (self.noise_salt or "none") if known else ""


def parse_record(text: str | bytes) -> Record:
    """Return the record in `text`, upgraded from an older schema if needed.

    Raise ValueError (one line) on invalid text, :class:`SchemaError` on a newer schema.
    """
    data = json_object(text)
    version = data.get("schema_version")
    while isinstance(version, int) and version in UPGRADES:  # in an untrusted file it may be a list
        data = UPGRADES[version](data)
        version = data["schema_version"]
    if version != SCHEMA_VERSION:
        raise SchemaError(f"schema version {version!r}, this program reads up to {SCHEMA_VERSION}")
    return validated(Record, data)


@dataclass(frozen=True, slots=True)
class Glance:
    """The fields of a record that planning needs; `file` is its student's file, None without a student."""

    key: str
    status: Status
    file: str | None


def glance(data: bytes) -> Glance | None:
    """Return a glance at the record in `data`, None if invalid; no full validation, because plans read thousands."""
    try:
        values = json_object(data)
        if values["schema_version"] not in (SCHEMA_VERSION, *UPGRADES):
            return None
        student = values["student"]
        file = None if student is None else student["file"]
        found = Glance(values["key"], Status(values["status"]), file)
    except (ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found.key, str) and isinstance(found.file, str | None) else None
